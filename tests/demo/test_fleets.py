# SPDX-License-Identifier: Apache-2.0
"""Sample fleets: their figures agree with the fact tables, their pods could run so, and their notation is strict."""

from pathlib import Path

import msgspec
import pytest

from app.demo.notation import DemoFleet, NodePool, fleet_names, read_fleet
from app.demo.sample_fleets import demo_fleet, product_label
from app.explain.pending_pod import explain
from app.knowledge.products import normal_form
from app.server.composition import build
from app.settings import Settings
from app.values.computations import finish
from app.values.errors import BadInput
from app.values.versions import parse_version
from app.world.world import world_of
from tests.builders import knowledge, shipped
from tests.demo.fleets import nodes, state


def labelled_nodes() -> list[tuple[str, NodePool, str]]:
    """List the nodes that GPU Feature Discovery or a ResourceSlice describes."""
    fleets = [(name, pool) for name in fleet_names() for pool in read_fleet(name).pools]
    return [
        (name, pool, pool.node_names()[0])
        for name, pool in fleets
        if pool.gpu is not None and (pool.gfd != "none" or pool.dra)
    ]


LABELLED = labelled_nodes()
LABELLED_IDS = [f"{name} {node}" for name, _, node in LABELLED]


@pytest.mark.parametrize(("name", "pool", "node"), LABELLED, ids=LABELLED_IDS)
def test_figures_of_a_node_are_those_of_its_pool(name: str, pool: NodePool, node: str) -> None:
    """S3: product, driver, CUDA and compute capability, and the memory of a GPU, or of a slice where that is the
    unit."""
    assert pool.gpu is not None
    node_class = state(name).nodes[node].node_class
    slices = list(pool.mig.slices.values()) if pool.mig else []

    assert node_class.product == normal_form(product_label(pool.gpu))
    assert (node_class.driver, node_class.cuda) == (parse_version(pool.driver), parse_version(pool.cuda))
    assert node_class.compute_capability == parse_version(pool.gpu.compute)
    if node_class.mig_profile:
        assert node_class.memory_mib == slices[0].memory
    elif not (pool.dra and slices):
        assert node_class.memory_mib == pool.gpu.memory


@pytest.mark.parametrize(("name", "pool", "node"), LABELLED, ids=LABELLED_IDS)
def test_figures_of_a_pool_agree_with_the_fact_tables(name: str, pool: NodePool, node: str) -> None:
    """S15: products and drivers have the facts of the tables; old drivers report a little less memory."""
    assert pool.gpu is not None
    row = knowledge().products.find(product_label(pool.gpu))

    assert row is not None, (name, node)
    assert row.compute_capability == parse_version(pool.gpu.compute)
    assert row.memory_mib is not None
    assert 0.96 * row.memory_mib <= pool.gpu.memory <= row.memory_mib
    assert knowledge().cuda.highest_cuda(parse_version(pool.driver)) == parse_version(pool.cuda)


@pytest.mark.parametrize("name", fleet_names())
def test_capacity_is_there_and_never_below_allocatable(name: str) -> None:
    """F70: capacity equals allocatable, unless the pool says otherwise."""
    stated = {node for pool in read_fleet(name).pools if pool.allocatable for node in pool.node_names()}
    status = {document["metadata"]["name"]: document["status"] for document in nodes(name)}

    differing = {node for node, amounts in status.items() if amounts["capacity"] != amounts["allocatable"]}
    assert differing == stated
    for amounts in status.values():
        gpu_resources = [key for key in amounts["capacity"] if key.startswith("nvidia.com/")]
        assert all(int(amounts["allocatable"][key]) <= int(amounts["capacity"][key]) for key in gpu_resources)


@pytest.mark.parametrize("name", fleet_names())
def test_pods_are_on_nodes_of_the_fleet_in_namespaces_of_the_fleet(name: str) -> None:
    objects = demo_fleet(name)
    names = {
        kind: {document["metadata"]["name"] for document in objects if document["kind"] == kind}
        for kind in ("Node", "Namespace")
    }
    pods = [document for document in objects if document["kind"] == "Pod"]
    waiting = [document for document in pods if document["status"]["phase"] == "Pending"]

    assert {document["spec"]["nodeName"] for document in pods if document not in waiting} <= names["Node"]
    assert {document["metadata"]["namespace"] for document in pods} <= names["Namespace"]
    assert len({document["metadata"]["uid"] for document in pods}) == len(pods)
    assert not any("nodeName" in document["spec"] for document in waiting)


def test_pods_of_the_weekday_are_bound_as_a_scheduler_could_have() -> None:
    """F89: no node of the fleet holds more GPUs or more of their memory than it has."""
    free = [node.free for node in state("weekday").nodes.values()]
    assert all(amount >= 0 for resources in free for amount in (*resources.units.values(), *resources.memory.values()))


WAITING = {
    "vision/train-vlm": "DriverTooOld",
    "language/distill": "InsufficientGPUs",
    "search/embed-small-0": "MIGProfileAbsent",
    "vision/notebook-eve": "GPUMemoryBudgetExceeded",
    "vision/thumbnails": "InsufficientResource",
}


@pytest.mark.parametrize(("name", "cause"), WAITING.items())
def test_pods_of_the_weekday_wait_each_for_a_reason_of_its_own(name: str, cause: str) -> None:
    """F83, F84: each has a reason of its own, and a change that helps."""
    pods = {
        f"{document['metadata']['namespace']}/{document['metadata']['name']}": document
        for document in demo_fleet("weekday")
        if document["kind"] == "Pod"
    }
    explained = finish(explain(pods[name], world_of(state("weekday"), shipped()), live=True))

    assert explained.primary is not None
    assert explained.primary.reason == cause
    assert explained.fixes


CLAIMING = {
    "team-a/train-1": ("DevicesInUse", "end pod team-b/notebook, which has gpu-0"),
    "team-a/long-context": ("DevicesNotSuitable", "request gpu: ask for memory >= 81559Mi instead of >= 141Gi"),
    "team-b/serve": ("DevicesNotSuitable", "request slice: ask for profile == 1g.10gb instead of == 3g.40gb"),
}


@pytest.mark.parametrize(("name", "cause"), CLAIMING.items())
def test_pods_of_the_cluster_without_labels_wait_for_devices(name: str, cause: tuple[str, str]) -> None:
    """S13, F84: they ask only by claims, are on the waiting list, and each has its cause and a change that helps."""
    pods = {pod.key: pod for pod in state("gpucluster").waiting_pods()}
    assert pods.keys() == {*CLAIMING, "team-b/classic"}
    document = pods[name].document
    assert document is not None
    explained = finish(explain(document, world_of(state("gpucluster"), shipped()), live=True))

    assert (explained.unjudged, explained.primary and explained.primary.reason) == ((), cause[0])
    assert cause[1] in [edit.text for fix in explained.fixes for edit in fix.edits]


def test_nvl72_rack_is_one_clique_of_eighteen_nodes() -> None:
    """F54, S15."""
    cliques = [document["metadata"]["labels"].get("nvidia.com/gpu.clique") for document in nodes("dgx")]

    assert len({clique for clique in cliques if clique}) == 1
    assert len([clique for clique in cliques if clique]) == 18


def test_unknown_fleet_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match="demo fleet: got 'no', wants one of aks, dgx, dra, edge, eks, gke, gpucluster, mig, m"
    ):
        build(Settings(demo=True, demo_fleet="no", certs=tmp_path))


def test_demo_serves_the_fleet_asked_for(tmp_path: Path) -> None:
    service = build(Settings(demo=True, demo_fleet="dgx", certs=tmp_path))

    assert set(service.nodes) == {document["metadata"]["name"] for document in nodes("dgx")}
    assert service.absent == ()


def test_misspelt_field_of_the_notation_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `gpu_count`"):
        msgspec.yaml.decode("{description: d, pools: [{names: [n], gpu_count: 8}]}", type=DemoFleet)
