# SPDX-License-Identifier: Apache-2.0
"""Random gangs, placed with the extender and without.

Each gang finds the same fleet twice: once kube-scheduler places it alone, once with our extender. Pods that hold GPUs
are bound before; in half of the worlds the gang may preempt them, in a third it wants to be in one zone.
"""

import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.controlplane.binaries import Binaries, find_binaries
from tests.controlplane.cluster import CONTROLLERS, ControlPlane, control_plane
from tests.controlplane.fleet import add_nodes, kubelets, node_object
from tests.controlplane.gates import GROUPS, WANTED
from tests.controlplane.kubectl import Object
from tests.e2e.settling import QUICK
from tests.e2e.stage import OURS, Service, eventually, gpu_pod, scheduler_configuration, serving

PLAIN = "plain-scheduler"
SPACE = "gangs"
ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"
SHARED_ENTRY: Object = {"name": "shared"}
"""The entry of a claim that a PodGroup has for all its members."""
QUIET_SECONDS = 1.0
"""A gang that is bound has its verdict when nothing has moved for so long."""
FURTHER_ATTEMPTS = 3
"""One that is not has its verdict when kube-scheduler has tried it so often again and nothing has moved: the first of
these attempts may have begun before, and that of v1.36 may see only some of the pods (schedule_one_podgroup.go)."""
REFUSED_SECONDS, EVICTING_SECONDS = 3.5, 7.0
"""Where it is not tried again, as by v1.37: seconds without a move and without a call of filter, beyond the back-off of
QUICK. A preempting gang of v1.36 takes some hundred calls for one attempt, which may take longer than this."""
ATTEMPTS = re.compile(r"^scheduler_podgroup_schedule_attempts_total\{.*\} (\S+)$", re.MULTILINE)
SHARES = {"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2",
          "nvidia.com/gpu.sharing-strategy": "time-slicing"}  # fmt: skip


class GroupPlane(ControlPlane):
    """A control plane whose kube-scheduler places PodGroups."""

    gates = (*WANTED, *GROUPS)
    controllers = (*CONTROLLERS, "podgroup-protection-controller")
    """With the one that lets deleted PodGroups go, and with them their claims."""
    admission_off = ("TaintNodesByCondition", "Priority")


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang to place: its size, how many must fit, what each member asks for, and the world that it finds.

    `held` are (node, GPUs) of bound pods. `zoned` asks for one zone, `preempts` is whether its priority is higher than
    theirs. `annotations` are those of gpu-usher, without the prefix. `devices` is what a claim of each member asks for
    instead of `gpus`, and `shared` what one of the PodGroup does (claimed_gangs.py).
    """

    name: str
    size: int
    least: int
    gpus: int
    held: tuple[tuple[str, int], ...]
    zoned: bool = False
    preempts: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a gang: the node of each bound member, the condition's message, and what it took."""

    nodes: tuple[str, ...]
    message: str
    calls: int = 0
    milliseconds: float = 0.0


def fleet() -> list[Object]:
    """Write a mixed fleet in two zones: H100, A100 and shared T4."""
    nodes = []
    for index in range(12):
        labels = {ZONE: "ab"[index % 2]}
        if index < 4:
            nodes.append(node_object(f"h100-{index}", labels=labels))
        elif index < 8:
            nodes.append(node_object(f"a100-{index}", "NVIDIA-A100-SXM4-80GB", offers={GPU: 4}, labels=labels))
        else:
            nodes.append(node_object(f"t4-{index}", "Tesla-T4-SHARED", offers={GPU: 8}, labels={**labels, **SHARES}))
    return nodes


def draw(seed: int, annotated: bool = False) -> Gang:
    """Draw a gang; an annotated one names products, or declares memory on shared GPUs."""
    chance = random.Random(seed)
    held = []
    for node in fleet():
        free = int(node["status"]["allocatable"][GPU])
        if chance.random() < 0.6:
            held.append((node["metadata"]["name"], chance.randint(1, free)))
    size, annotations = chance.randint(1, 8), {}
    gpus = chance.choice((1, 1, 2, 4, 8))
    if annotated:
        if chance.random() < 0.5:
            annotations, gpus = {"gpu-memory": chance.choice(("3Gi", "6Gi", "12Gi"))}, 1
        else:
            annotations = {"products": chance.choice(("H100", "A100", "!T4"))}
    return Gang(
        f"gang-{seed}", size, chance.choice((size, size, max(1, size // 2))), gpus, tuple(held),
        chance.random() < 0.33, chance.random() < 0.5, annotations,
    )  # fmt: skip


class Stage:
    """A control plane with both schedulers, a service, and the fleet."""

    def __init__(self, plane: ControlPlane, service: Service) -> None:
        self.plane, self.service = plane, service
        self.version = podgroup_version(plane)

    def _path(self, kind: str) -> str:
        root = "/api/v1" if kind == "pods" else f"/apis/scheduling.k8s.io/{self.version}"
        return f"{root}/namespaces/{SPACE}/{kind}"

    def clear(self) -> None:
        """Delete all pods and groups, and wait until the service has seen it."""
        self.plane.api.delete(self._path("pods"))
        self.plane.api.delete(self._path("podgroups"))
        eventually("the pods are gone", lambda: not self.plane.api.items(self._path("pods")))

    def hold(self, gang: Gang) -> None:
        """Bind the pods that hold GPUs."""
        for index, (node, gpus) in enumerate(gang.held):
            for number in range(gpus):
                name = f"held-{index}-{number}"
                made = gpu_pod(name, SPACE, {GPU: 1}, nodeName=node, priority=0, terminationGracePeriodSeconds=0)
                self.plane.api.create(self._path("pods"), made)

    def group(self, gang: Gang, scheduler: str) -> Object:
        """Write the PodGroup of a gang."""
        spec: Object = {"schedulingPolicy": {"gang": {"minCount": gang.least}}}
        if gang.zoned:
            spec["schedulingConstraints"] = {"topology": [{"key": ZONE}]}
        if gang.preempts:
            spec["priority"] = 1000
        if gang.shared:
            spec["resourceClaims"] = [SHARED_ENTRY | {"resourceClaimTemplateName": f"devices-{gang.shared}"}]
        metadata = {"name": f"{gang.name}-{scheduler}", "namespace": SPACE}
        return {
            "apiVersion": f"scheduling.k8s.io/{self.version}",
            "kind": "PodGroup",
            "metadata": metadata,
            "spec": spec,
        }

    def create(self, gang: Gang, scheduler: str) -> None:
        """Create the PodGroup and its members."""
        self.plane.api.create(self._path("podgroups"), self.group(gang, scheduler))
        self.plane.api.create_all(self._path("pods"), (member(gang, index, scheduler) for index in range(gang.size)))

    def start_ours(self) -> None:
        """Start the scheduler with our extender."""
        self.plane.start_scheduler({**scheduler_configuration(self.service), **QUICK}, OURS)

    def verdict(self, gang: Gang, scheduler: str) -> Outcome:
        """Wait until nothing moves any more, and read what became of a gang."""
        quiet_since, tried, last = time.monotonic(), 0.0, None

        def quiet() -> bool:
            nonlocal quiet_since, tried, last
            pods, condition = self._read(gang, scheduler)
            everyone = self.plane.api.items(self._path("pods"))
            moving = any(one["metadata"].get("deletionTimestamp") for one in everyone)
            evicted = len(everyone) < gang.size + sum(number for _, number in gang.held)
            nodes = [(one["spec"].get("nodeName"), (one.get("status") or {}).get("nominatedNodeName")) for one in pods]
            state = (nodes, condition[0], len(everyone))  # the message may name other nodes at each attempt
            if moving or state != last:
                quiet_since, tried, last = time.monotonic(), self._attempts(scheduler), state
                return False
            seconds = time.monotonic() - quiet_since
            if sum(bool(node) for node, _ in nodes) >= gang.least:
                return seconds > QUIET_SECONDS
            if condition[0] != "False" or seconds < QUIET_SECONDS:
                return False
            calm = seconds > (EVICTING_SECONDS if evicted else REFUSED_SECONDS)
            return self._attempts(scheduler) >= tried + FURTHER_ATTEMPTS or (calm and self._waits(scheduler))

        eventually(f"{gang} has a verdict", quiet)
        pods, condition = self._read(gang, scheduler)
        return Outcome(tuple(sorted(filter(None, (one["spec"].get("nodeName") for one in pods)))), condition[1])

    def _attempts(self, scheduler: str) -> float:
        """Count the attempts of kube-scheduler at groups, whatever became of them."""
        return sum(map(float, ATTEMPTS.findall(self.plane.schedulers[scheduler].metrics())))

    def _waits(self, scheduler: str) -> bool:
        """Tell whether kube-scheduler is not in an attempt: it does not call filter for a while."""
        before = self.service.calls("filter")
        time.sleep(QUIET_SECONDS if scheduler == OURS else 0)
        return self.service.calls("filter") == before

    def _read(self, gang: Gang, scheduler: str) -> tuple[list[Object], tuple[str, str]]:
        pods = self.plane.api.items(self._path("pods"))
        pods = [one for one in pods if one["metadata"]["name"].startswith("member-")]
        group = self.plane.api.get(f"{self._path('podgroups')}/{gang.name}-{scheduler}")
        found = (group.get("status") or {}).get("conditions") or [{}]
        return pods, (found[0].get("status", ""), found[0].get("message", ""))

    def place(self, gang: Gang, scheduler: str) -> Outcome:
        """Place a gang on the fleet as it finds it; the pods stay."""
        self.clear()
        self.hold(gang)
        calls, spent = self._spent()
        self.create(gang, scheduler)
        seen = self.verdict(gang, scheduler)
        calls_then, spent_then = self._spent()
        return Outcome(seen.nodes, seen.message, int(calls_then - calls), 1000 * (spent_then - spent))

    def _spent(self) -> tuple[float, float]:
        """Return the filter calls so far, and the seconds of their answers."""
        seconds = self.service.metric("gpu_usher_request_duration_seconds_sum", verb="filter")
        return self.service.calls("filter"), seconds


def member(gang: Gang, index: int, scheduler: str) -> Object:
    """Write a member of a gang."""
    more = {"schedulerName": scheduler, "schedulingGroup": {"podGroupName": f"{gang.name}-{scheduler}"}}
    priority = 1000 if gang.preempts else 0
    claims: Object = {"resourceClaims": entries} if (entries := claim_entries(gang)) else {}
    limits: Object = {GPU: gang.gpus} if gang.gpus else {"cpu": "100m"}
    fields: Object = {"priority": priority, "annotations": gang.annotations, **more, **claims}
    return gpu_pod(f"member-{index}", SPACE, limits, **fields)


def claim_entries(gang: Gang) -> list[Object]:
    """Write spec.resourceClaims of a member."""
    own = [{"name": "own", "resourceClaimTemplateName": f"devices-{gang.devices}"}] if gang.devices else []
    shared = [SHARED_ENTRY | {"resourceClaimTemplateName": f"devices-{gang.shared}"}] if gang.shared else []
    return [*own, *shared]


def programs_of(minor: str) -> Binaries:
    """Find the programs of a version that places PodGroups; a test skips where none is chosen, or it is not built."""
    if not minor:
        pytest.skip("PodGroups are placed since 1.36. Run `make e2e-versions`, which plays them on newer versions.")
    programs = find_binaries(minor)
    if isinstance(programs, str):
        pytest.skip(programs)
    return programs


def podgroup_version(plane: ControlPlane) -> str:
    """Find the newest version of scheduling.k8s.io that serves PodGroups."""
    versions = plane.api.get("/apis/scheduling.k8s.io")["versions"]
    for version in versions:
        resources = plane.api.get(f"/apis/{version['groupVersion']}")["resources"]
        if any(resource["name"] == "podgroups" for resource in resources):
            return str(version["version"])
    raise AssertionError(f"no PodGroups in {versions}")


@contextmanager
def stage(binaries: Binaries, policies: Path | None = None) -> Iterator[Stage]:
    """Run a control plane with the fleet, the service, and a scheduler with and without the extender."""
    with control_plane(binaries, make=GroupPlane) as plane, kubelets(plane.api):
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": SPACE}})
        add_nodes(plane.api, fleet())
        with serving(plane, **({"policies": str(policies)} if policies else {})) as service:
            eventually("all nodes are known", lambda: service.health()["caches"]["nodes"]["objects"] == len(fleet()))
            made = Stage(plane, service)
            made.start_ours()
            plain = {**scheduler_configuration(service), **QUICK, "profiles": [{"schedulerName": PLAIN}]}
            plane.start_scheduler({key: value for key, value in plain.items() if key != "extenders"}, PLAIN)
            yield made


def compare(world: Stage, gangs: Sequence[Gang], again: bool = False) -> Iterator[tuple[Gang, Outcome, Outcome]]:
    """Place each gang without the extender and with it.

    With `again` a gang that differs is placed once more, since kube-scheduler 1.36 may fail a gang of which it saw only
    some pods at first, without us as well.
    """
    for gang in gangs:
        seen = world.place(gang, PLAIN), world.place(gang, OURS)
        if again and not agree(gang, *seen):
            other = replace(gang, name=f"{gang.name}-again")
            seen = world.place(other, PLAIN), world.place(other, OURS)
        yield gang, *seen


def agree(gang: Gang, plain: Outcome, ours: Outcome) -> bool:
    """Tell whether a gang binds either way, or does not; beyond the least number kube-scheduler draws among zones."""
    alike = gang.least == gang.size or not gang.zoned
    return (len(plain.nodes) >= gang.least) == (len(ours.nodes) >= gang.least) and (
        not alike or gang.preempts or len(plain.nodes) == len(ours.nodes)
    )
