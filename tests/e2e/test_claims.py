# SPDX-License-Identifier: Apache-2.0
"""The real kube-scheduler allocates random claims on random slices, and our allocator says the same of each pod: bound
or refused, on which nodes, and which devices it gets (S13, F135).

The pods come one after the other, so that what is allocated is known when the next is judged. A pod that is refused is
deleted, and some of those that are bound, so that devices become free again.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import pytest

from app.dra.allocator import NodeAllocation, Outcome, allocate
from app.dra.cluster_devices import ClusterDevices, PoolIndex
from app.dra.selectors import Selection
from app.kube.device_classes import DeviceClass
from app.kube.devices import ResourceSlice
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaim
from app.nodes.model import Node
from app.nodes.reading import read_node
from tests.builders import knowledge
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.claims_drawn import CLASSES, RACKS, DrawnClaims, DrawnDevices, device_class
from tests.e2e.offers import GROUP, dra_path, dra_version, keeps_counters_apart, try_slice
from tests.e2e.settling import QUICK
from tests.e2e.stage import create_namespace, eventually, read_pod, refusal

PLAIN = "plain-scheduler"
DECIDED_SECONDS = 120
FREED = 0.5
"""Share of the bound pods that end at once."""


@dataclass
class ClaimComparison:
    """The cluster, our view of it, and what was seen so far. `version` is that of resource.k8s.io."""

    plane: ControlPlane
    namespace: str
    version: str
    nodes: Mapping[str, Node]
    facts: ClusterDevices
    selection: Selection = field(default_factory=Selection)
    seen: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    @property
    def claims(self) -> str:
        """The path of the claims."""
        return f"/apis/{GROUP}/{self.version}/namespaces/{self.namespace}/resourceclaims"


@pytest.fixture
def stage(plane: ControlPlane, request: pytest.FixtureRequest) -> ClaimComparison:
    """Nodes with slices of all kinds, the DeviceClasses, and a scheduler without an extender."""
    if not (keeps_counters_apart(plane) and "allowMultipleAllocations" in repr(try_slice(plane, devices=[SHARED]))):
        pytest.skip(
            "The API server drops counters of their own slice, or allowMultipleAllocations. Choose a newer version."
        )
    number, seed = request.param
    drawn = DrawnDevices(random.Random(seed))
    names = [f"node-{index}" for index in range(number)]
    for name in names:
        drawn.node(name)
    drawn.shared_pools()
    documents = [
        node_object(name, offers={}, labels={"rack": RACKS[index % len(RACKS)]}) for index, name in enumerate(names)
    ]
    add_nodes(plane.api, documents)
    plane.api.create_all(f"{dra_path(plane)}/resourceslices", drawn.slices)
    plane.api.create_all(f"{dra_path(plane)}/deviceclasses", map(device_class, CLASSES))
    header = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    plane.start_scheduler({**header, **QUICK, "profiles": [{"schedulerName": PLAIN}]}, PLAIN)
    slices = PoolIndex(map(partial(read_record, ResourceSlice), plane.api.items(f"{dra_path(plane)}/resourceslices")))
    classes = {name: read_record(DeviceClass, device_class(name)) for name in CLASSES}
    nodes = {name: read_node(document, knowledge()) for name, document in zip(names, documents, strict=True)}
    return ClaimComparison(
        plane, create_namespace(plane, "drawn"), dra_version(plane), nodes, ClusterDevices(slices, classes)
    )


SHARED = {"name": "d", "allowMultipleAllocations": True}


def pod_of(stage: ClaimComparison, name: str) -> Object:
    """Write a pod that has the claim of its own name."""
    spec = {
        "schedulerName": PLAIN,
        "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "devices"}]}}],
    }
    return {"metadata": {"name": name, "namespace": stage.namespace}, "spec": spec}


def decided(stage: ClaimComparison, document: Object) -> Object:
    """Wait until a pod is bound or refused, and return it."""
    stored: list[Object] = []

    def known() -> bool:
        stored[:] = [read_pod(stage.plane, document)]
        return bool(stored[0]["spec"].get("nodeName") or refusal(stored[0]))

    eventually(f"{document['metadata']['name']} is bound or refused", known, DECIDED_SECONDS)
    return stored[0]


def pose(stage: ClaimComparison, name: str, spec: Object, ends: bool) -> None:
    """Pose one claim to both, compare, and let the pod end where it is refused, or with `ends`."""
    created = stage.plane.api.try_create(stage.claims, {"metadata": {"name": name}, "spec": spec})
    if not created.is_success:
        stage.seen["invalid"] += 1
        return
    asked = read_record(ResourceClaim, created.json())
    verdicts = {node: allocate([asked], facts, stage.facts, stage.selection) for node, facts in stage.nodes.items()}
    document = stage.plane.api.create(f"/api/v1/namespaces/{stage.namespace}/pods", pod_of(stage, name))
    pod = decided(stage, document)
    got = read_record(ResourceClaim, stage.plane.api.get(f"{stage.claims}/{name}"))
    if why := difference(verdicts, pod, got):
        stage.differences.append(f"{name}: {why}; asked {spec}")
    stage.seen["bound" if pod["spec"].get("nodeName") else "refused"] += 1
    stage.seen.update({verdict.outcome.name for verdict in verdicts.values()})
    if pod["spec"].get("nodeName") and not ends:
        stage.facts.allocated.put(got)
    else:
        remove(stage, name)


def difference(verdicts: Mapping[str, NodeAllocation], pod: Object, got: ResourceClaim) -> str:
    """Say how our verdicts on the nodes differ from what became of a pod; "" where they agree."""
    outcomes = {verdict.outcome for verdict in verdicts.values()}
    node = pod["spec"].get("nodeName")
    if Outcome.NOT_JUDGED in outcomes:
        return "we do not judge it"
    if node is None:
        fitting = [name for name, verdict in verdicts.items() if verdict.outcome is Outcome.ALLOCATED]
        return f"refused ({refusal(pod)[:300]}), we say {fitting}" if fitting and Outcome.ERROR not in outcomes else ""
    if Outcome.ERROR in outcomes:
        return f"bound to {node}, we say it is given up: {next(v.text for v in verdicts.values() if v.text)}"
    verdict = verdicts[node]
    ours = [(granted.request, granted.device.id, granted.consumed) for granted in verdict.devices]
    results = got.allocation.results if got.allocation else ()
    theirs = [(result.request, result.device, result.consumed) for result in results]
    return "" if ours == theirs else f"on {node} they take {theirs}, we {ours or verdict.outcome.name}"


def remove(stage: ClaimComparison, name: str) -> None:
    """Delete a pod and its claim, and wait until the claim is gone, which its controller releases first."""
    stage.plane.api.delete(f"/api/v1/namespaces/{stage.namespace}/pods/{name}")
    stage.plane.api.delete(f"{stage.claims}/{name}")
    eventually(f"claim {name} is gone", lambda: stage.plane.api.client.get(f"{stage.claims}/{name}").status_code == 404)


@pytest.mark.parametrize(
    ("stage", "count"),
    [
        pytest.param((12, 1), 60, id="few"),
        pytest.param((50, 2), 1000, id="many", marks=pytest.mark.long),
    ],
    indirect=["stage"],
)
def test_claims_get_just_the_devices_that_the_scheduler_gives_them(stage: ClaimComparison, count: int) -> None:
    """S13, F135: bound or refused, the node, the devices in their order, and the capacity that a share consumes."""
    drawn, chance = DrawnClaims(random.Random(count)), random.Random(7)
    for number in range(count):
        pose(stage, f"c{number}", drawn.spec(), chance.random() < FREED)

    print(f"{count} claims on {len(stage.nodes)} nodes: {dict(stage.seen)}")
    assert stage.differences == []
    assert min(stage.seen[kind] for kind in ("bound", "refused", "ALLOCATED", "REFUSED", "ERROR")) > 0
