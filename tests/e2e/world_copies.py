# SPDX-License-Identifier: Apache-2.0
"""Copies of a recorded world on a control plane, where pods with claims are posed to the real kube-scheduler and to us.

Each copy has the world's nodes under names of its own, and every slice of the worlds names a node, so that what is
allocated in one copy means nothing in another: the pods of a round, one for each node of each copy, are posed at once.
A pod is pinned to its node by `matchFields`, as those were whose verdicts are recorded (tests/dra/recorded).
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from app.cluster.snapshot import fill
from app.dra.allocator import NodeAllocation, Outcome, allocate
from app.dra.pod_claims import ADMIN_ACCESS
from app.dra.pod_judge import CANNOT_ALLOCATE, ClaimJudge, ClaimRefusal
from app.explain.survey import read_scheduled_pod
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaim
from app.world.state import State
from app.world.world import World, world_of
from tests.bench.load import spread
from tests.builders import knowledge, policies
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, registered
from tests.controlplane.kubectl import Object
from tests.dra.recorded_worlds import objects_of
from tests.e2e.offers import dra_path
from tests.e2e.stage import create_namespace, eventually, refusal

PLAIN = "plain-scheduler"
NAMESPACE = "worlds"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ROUND_SECONDS = 300
PAUSE, PAUSE_SECONDS = threading.Event(), 0.3
"""Between two reads of all pods, which cost more than the scheduler takes for some of them."""
KEPT = 0.5
"""Share of the pods with devices that keep them for the next rounds."""
TIMED_OUT = "timed out"
"""What kube-scheduler says where it has searched for devices for ten seconds (filterTimeout)."""
LAST = "last.example"
"""Driver, class and node of the object of each kind that is created last: whoever was given its device has seen all of
the world, since a watch tells in order."""
OTHERS = 2
"""Other nodes that a judge is asked about before the pod's own, so that one answer may serve nodes that are alike."""


LAST_CLASS = {
    "kind": "DeviceClass",
    "metadata": {"name": LAST},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{LAST}"'}}]},
}
LAST_SLICE = {
    "kind": "ResourceSlice",
    "metadata": {"name": LAST},
    "spec": {
        "driver": LAST,
        "nodeName": LAST,
        "pool": {"name": LAST, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "last"}],
    },
}


@dataclass(frozen=True)
class Posed:
    """A pod with claims, pinned to a node."""

    name: str
    node: str
    specs: tuple[Object, ...]

    def claims(self) -> list[str]:
        """Name the claims."""
        return [f"{self.name}-{number}" for number in range(len(self.specs))]

    def pod(self) -> Object:
        """Write the pod."""
        pinned = {"key": "metadata.name", "operator": "In", "values": [self.node]}
        required = {"nodeSelectorTerms": [{"matchFields": [pinned]}]}
        entries = [{"name": f"c{number}", "resourceClaimName": name} for number, name in enumerate(self.claims())]
        used = [{"name": entry["name"]} for entry in entries]
        spec = {
            "schedulerName": PLAIN,
            "automountServiceAccountToken": False,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "resourceClaims": entries,
            "containers": [{"name": "main", "image": "x", "resources": {"claims": used}}],
        }
        metadata = {"name": self.name, "namespace": NAMESPACE}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class Ours:
    """What we say of a pod on its node: the cause of a refusal, and what the allocator gives it."""

    refusal: ClaimRefusal | None
    not_judged: str
    allocation: NodeAllocation


@dataclass
class Copies:
    """A world with its copies on a control plane, and what was seen of it.

    `not_judged` are our verdicts by why there is none, `kept` the pods that keep their devices. In `seen`, `invalid`
    counts the claims that the API server refused.
    """

    plane: ControlPlane
    world: str
    chance: random.Random
    nodes: list[list[str]] = field(default_factory=list)
    slices: list[Object] = field(default_factory=list)
    classes: list[Object] = field(default_factory=list)
    recorded: list[Object] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    not_judged: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)

    @property
    def claims(self) -> str:
        """The path of the claims."""
        return f"{dra_path(self.plane)}/namespaces/{NAMESPACE}/resourceclaims"

    def create(self, number: int) -> str:
        """Create so many copies, and wait until kube-scheduler has seen them all.

        Says what the API server refuses of them, "" where it takes all.
        """
        kinds: dict[str, list[Object]] = {}
        for document in objects_of(self.world):
            kinds.setdefault(document["kind"], []).append(document)
        self.classes, self.recorded = kinds["DeviceClass"], kinds.get("ResourceClaim", [])
        names = [node["metadata"]["name"] for node in kinds["Node"]]
        self.nodes = [[f"{name}-{copy}" for name in names] for copy in range(number)]
        nodes = [_node(one, copy) for copy, one in product(range(number), kinds["Node"])]
        add_nodes(self.plane.api, [*nodes, registered({"metadata": {"name": LAST}})])
        slices = [_slice(one, copy) for copy, one in product(range(number), kinds["ResourceSlice"])]
        path = dra_path(self.plane)
        for plural, documents in (
            ("deviceclasses", [*self.classes, LAST_CLASS]),
            ("resourceslices", [*slices, LAST_SLICE]),
        ):
            for document in documents:
                answer = self.plane.api.try_create(f"{path}/{plural}", {**document, "apiVersion": path[6:]})
                if not answer.is_success:
                    return str(answer.json()["message"])
        self._wait_until_seen()
        own = {f"{name}-0" for name in names}
        self.slices = [one for one in self.plane.api.items(f"{path}/resourceslices") if one["spec"]["nodeName"] in own]
        return ""

    def _wait_until_seen(self) -> None:
        """Wait until kube-scheduler has given the device that was published last."""
        request = {"name": "device", "exactly": {"deviceClassName": LAST}}
        one = Posed("last", LAST, ({"devices": {"requests": [request]}},))
        (claim,) = one.claims()
        self.plane.api.create(self.claims, {"metadata": {"name": claim}, "spec": one.specs[0]})
        self.plane.api.create(PODS, one.pod())
        given = lambda: "allocation" in self.plane.api.get(f"{self.claims}/{claim}").get("status", {})  # noqa: E731
        eventually(f"{self.world}: kube-scheduler has seen all of it", given, ROUND_SECONDS)
        self._delete_others()

    def remove(self) -> None:
        """Delete the copies."""
        self.kept.clear()
        self._delete_others()
        path = dra_path(self.plane)
        for collection in ("/api/v1/nodes", f"{path}/resourceslices", f"{path}/deviceclasses"):
            self.plane.api.delete(collection)

    def seed(self) -> None:
        """Pose the claims of the recording in every other copy, where their devices stay with them."""
        holders = [(one, one["status"]["allocation"]["devices"]["results"][0]["pool"]) for one in self.recorded]
        posed = [
            Posed(f"seed-{copy}-{number}", f"{node}-{copy}", (claim["spec"],))
            for copy in range(0, len(self.nodes), 2)
            for number, (claim, node) in enumerate(holders)
        ]
        self.kept.update(self._pose(posed))

    def round(self, number: int, specs: Sequence[tuple[Object, ...]]) -> None:
        """Pose the claims of one pod for each copy, on each of its nodes, and let half of those with devices end."""
        posed = [
            Posed(f"p{number}-{copy}-{position}", node, of_copy)
            for copy, of_copy in enumerate(specs)
            for position, node in enumerate(self.nodes[copy])
        ]
        outcome = self._pose(posed)
        with_devices = sorted(name for name, (_, devices) in outcome.items() if devices is not None)
        self.kept.update(name for name in with_devices if self.chance.random() < KEPT)
        self._delete_others()

    def _pose(self, posed: Sequence[Posed]) -> Mapping[str, tuple[Object, object]]:
        """Pose pods, and compare; return each with its devices, None where it has none."""
        claims = ((name, spec) for one in posed for name, spec in zip(one.claims(), one.specs, strict=True))
        documents = ({"metadata": {"name": name}, "spec": spec} for name, spec in claims)
        spread(self.plane.api, lambda own, claim: own.create(self.claims, claim), documents)
        before = self._snapshot()
        ours = {one.name: self._ours(one, before) for one in posed}
        spread(self.plane.api, lambda own, pod: own.create(PODS, pod), (one.pod() for one in posed))
        outcome: dict[str, tuple[Object, list[ResourceClaim] | None]] = {}

        def decided() -> bool:
            PAUSE.wait(PAUSE_SECONDS)
            claims = {one["metadata"]["name"]: one for one in self.plane.api.items(self.claims)}
            for pod in self.plane.api.items(PODS):
                name = pod["metadata"]["name"]
                if name not in ours or name in outcome:
                    continue
                held = [
                    read_record(ResourceClaim, claims[entry["resourceClaimName"]])
                    for entry in pod["spec"]["resourceClaims"]
                ]
                if all(claim.allocation for claim in held):
                    outcome[name] = pod, held
                elif refusal(pod) and not any(claim.allocation for claim in held):
                    outcome[name] = pod, None
            return len(outcome) == len(ours)

        eventually(f"{self.world}: {len(ours)} pods have devices or are refused", decided, ROUND_SECONDS)
        for one in posed:
            self._compare(one, ours[one.name], *outcome[one.name])
        return outcome

    def is_valid(self, spec: Object) -> bool:
        """Ask the API server whether it takes a claim."""
        answer = self.plane.api.try_create(f"{self.claims}?dryRun=All", {"metadata": {"name": "valid"}, "spec": spec})
        self.seen["invalid"] += not answer.is_success
        return answer.is_success

    def _snapshot(self) -> World:
        """Read the cluster as the service does."""
        state, path = State(knowledge()), dra_path(self.plane)
        lists = {
            "Namespace": "/api/v1/namespaces",
            "Node": "/api/v1/nodes",
            "DeviceClass": f"{path}/deviceclasses",
            "ResourceSlice": f"{path}/resourceslices",
            "ResourceClaim": self.claims,
        }
        fill(
            state,
            [
                {"apiVersion": path[6:], **item, "kind": kind}
                for kind, collection in lists.items()
                for item in self.plane.api.items(collection)
            ],
        )
        return world_of(state, policies())

    def _ours(self, one: Posed, snapshot: World) -> Ours:
        """Judge a pod on its node, after some other nodes."""
        judge = read_scheduled_pod(one.pod(), snapshot, admit=False).claims
        assert judge is not None
        for other in self.chance.sample(sorted(snapshot.nodes), min(OTHERS, len(snapshot.nodes))):
            judge.refusal(snapshot.nodes[other])
        return self._judged(judge, one, snapshot)

    def _judged(self, judge: ClaimJudge, one: Posed, snapshot: World) -> Ours:
        node = snapshot.nodes[one.node]
        judge.not_judged = ""
        refused = judge.refusal(node)
        allocation = allocate(judge.pod_claims.on(node), node, judge.cluster, judge.selection)
        return Ours(refused, judge.not_judged or (allocation.text if _open(allocation) else ""), allocation)

    def _compare(self, one: Posed, ours: Ours, pod: Object, held: list[ResourceClaim] | None) -> None:
        self.seen["allocated" if held else "refused"] += 1
        self.seen[ours.allocation.outcome.name] += 1
        if ours.not_judged:
            self.not_judged[ours.not_judged] += 1
        elif TIMED_OUT in refusal(pod) and ours.refusal is not None:
            self.not_judged["by kube-scheduler, which timed out; we refuse"] += 1
        elif why := difference(ours, refusal(pod), held):
            self.differences.append(f"{self.world}, {one.node}, {one.name}: {why}; asked {one.specs}")

    def _delete_others(self) -> None:
        """Delete all pods and claims but those kept, and wait until a controller has freed the claims."""
        own = {name for name in self._names(self.claims) if name.rpartition("-")[0] not in self.kept}
        paths = [f"{PODS}/{name}" for name in self._names(PODS) - self.kept] + [f"{self.claims}/{name}" for name in own]
        spread(self.plane.api, lambda api, document: api.delete(document["path"]), ({"path": path} for path in paths))
        eventually(
            f"{self.world}: {len(own)} claims are gone", lambda: not own & self._names(self.claims), ROUND_SECONDS
        )

    def _names(self, collection: str) -> set[str]:
        return {one["metadata"]["name"] for one in self.plane.api.items(collection)}


def _open(allocation: NodeAllocation) -> bool:
    return allocation.outcome is Outcome.NOT_JUDGED


def difference(ours: Ours, words: str, held: list[ResourceClaim] | None) -> str:
    """Say how our verdict differs from what became of a pod, with its devices or the scheduler's words; "" if not."""
    if held is None:
        if ours.refusal is None or ours.allocation.outcome is Outcome.ALLOCATED:
            return f"refused ({words[:300]}), we say {ours.refusal}, {ours.allocation.outcome.name}"
        named = CANNOT_ALLOCATE in words
        if named != (not ours.refusal.error):
            return f"refused ({words[:300]}), we say {ours.refusal}"
        return ""
    if ours.refusal is not None:
        return f"gets devices, we say {ours.refusal}"
    granted = [(one.request, one.device.id, one.consumed) for one in ours.allocation.devices]
    results = [
        (result.request, result.device, result.consumed)
        for claim in held
        for result in (claim.allocation.results if claim.allocation else ())
    ]
    return "" if granted == results else f"gets {results}, we say {granted or ours.allocation.outcome.name}"


def _node(document: Object, copy: int) -> Object:
    """Write the node of a copy, as its kubelet would register it."""
    name = f"{document['metadata']['name']}-{copy}"
    labels = {**(document["metadata"].get("labels") or {}), "kubernetes.io/hostname": name}
    return registered({**document, "metadata": {"name": name, "labels": labels}})


def _slice(document: Object, copy: int) -> Object:
    """Write the slice of a copy; slices of a pool keep their order."""
    spec = document["spec"]
    pool = {**spec["pool"], "name": f"{spec['pool']['name']}-{copy}"}
    named = {"name": f"{document['metadata']['name']}-{copy}"}
    return {**document, "metadata": named, "spec": {**spec, "nodeName": f"{spec['nodeName']}-{copy}", "pool": pool}}


def label_namespace(plane: ControlPlane) -> None:
    """Create the namespace of all pods, whose claims may have admin access."""
    create_namespace(plane, NAMESPACE)
    plane.api.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": dict.fromkeys(ADMIN_ACCESS, "true")}})


def specs(drawn: Iterator[Object], chance: random.Random, number: int) -> list[tuple[Object, ...]]:
    """Draw the claims of so many pods, one in ten of which has two."""
    return [tuple(next(drawn) for _ in range(2 if chance.random() < 0.1 else 1)) for _ in range(number)]
