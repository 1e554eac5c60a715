# SPDX-License-Identifier: Apache-2.0
"""Sample fleets: what their files mean is what nodes are read as (S1-S4, S9, S15)."""

from pathlib import Path

import msgspec
import pytest

from app.cluster.view import view
from app.demo.gfd import product_label
from app.demo.notation import DemoFleet, NodePool, fleet_names, read_fleet
from app.demo.sample_fleets import demo_fleet
from app.explain.pending_pod import explain
from app.knowledge.products import normal_form
from app.nodes.model import Node, Sharing
from app.placement.engine import judge
from app.server.service import build
from app.settings import Settings
from app.values.errors import BadInput
from app.values.steps import finish
from app.values.versions import parse_version
from tests.builders import demand, gpus, knowledge, pod, shipped
from tests.demo.fleets import nodes, state

UNITS = {
    Sharing.Exclusive: "whole",
    Sharing.TimeSlicing: "time-sliced",
    Sharing.MPS: "MPS",
    Sharing.MIG: "slices",
    Sharing.Unknown: "whole or share",
}


def say(node: Node) -> str:
    """Say what a node was read as: product; what is offered, and of what kind; what is wrong; memory not declared."""
    known = node.node_class
    names = {"nvidia.com/gpu": UNITS[known.sharing], "nvidia.com/gpu.shared": f"shared {UNITS[known.renamed_sharing]}"}
    words = [known.product or "unknown"]
    words += [
        f"{amount} {names.get(resource, resource.removeprefix('nvidia.com/'))}" for resource, amount in known.offered
    ]
    words += [f"of {known.mig_profile}"] * (known.mig_profile is not None) + [f"by {known.replicas}"] * (
        known.replicas > 1
    )
    words += ["by DRA"] * ("nvidia.com/gpu" in known.dra_resources) + ["invalid"] * known.mig_invalid
    words += [f"layout {known.mig_state}"] * (known.mig_state not in (None, "success"))
    words += [known.upgrade_state or ""] * (known.upgrade_state not in (None, "upgrade-done"))
    promised = known.labelled_gpus and not known.dra_resources and not any(amount for _, amount in known.offered)
    words += [f"but {known.labelled_gpus} promised"] * bool(promised)
    told = [f"{known.withdrawn} withdrawn"] * (known.withdrawn > 0) + ["stale labels"] * known.stale
    told += [f"{left} MiB left" for left in node.free.memory.values()]
    return ", ".join([" ".join(words), *told])


MEANT: dict[str, dict[str, str]] = {
    "aks": {
        "aks-t4-12345678-vmss000000": "t4 1 whole or share",
        "aks-a100-12345678-vmss000000": "a100-80gb-pcie 4 whole",
        "aks-spot-12345678-vmss000000": "a100-80gb-pcie 1 whole or share",
        "aks-nap-a100-x2x4z": "a100-sxm4-80gb 8 whole or share",
        "aks-system-12345678-vmss000000": "unknown",
    },
    "dgx": {
        "dgx-h100-0": "h100-80gb-hbm3 8 whole",
        "hgx-h200-1": "h200 8 whole",
        "dgx-b200-0": "b200 8 whole",
        "nvl72-a-17": "gb200 4 whole",
        "head-0": "unknown",
    },
    "dra": {
        "dra-h100-1": "h100-80gb-hbm3 by DRA",
        "dra-a100-0": "a100-sxm4-80gb 0 whole by DRA",
        "dra-l4-0": "l4 by DRA",
        "plugin-t4-0": "t4 4 whole",
    },
    "edge": {
        "store-001": "t4 1 whole",
        "store-004": "a2 1 whole",
        "store-005": "l4 1 whole",
        "store-006": "l4 1 whole",
        "vdi-1": "a16 4 whole",
        "plant-lab-1": "a100-sxm4-40gb 1 whole",
        "kiosk-1": "unknown 1 whole or share",
    },
    "eks": {
        "ip-10-0-1-10.ec2.internal": "a10g 1 whole or share",
        "ip-10-0-2-20.ec2.internal": "a100-sxm4-40gb 8 whole",
        "ip-10-0-3-30.ec2.internal": "l4 1 whole or share",
        "ip-10-0-4-40.ec2.internal": "h100-80gb-hbm3 8 whole or share",
        "ip-10-0-5-50.ec2.internal": "t4 4 whole or share",
        "ip-10-0-9-90.ec2.internal": "unknown",
    },
    "gke": {
        "gke-prod-l4-0": "l4 2 whole",
        "gke-prod-h100-1": "h100-80gb-hbm3 8 whole",
        "gke-prod-v100-0": "unknown 1 whole",
        "gke-prod-a100-mig-0": "a100-sxm4-40gb 7 slices of 1g.5gb",
        "gke-prod-t4-shared-0": "t4 4 time-sliced by 4, 15360 MiB left",
        "gke-prod-l4-mps-0": "l4 2 MPS by 2, 23034 MiB left",
        "gke-prod-a100-0": "a100-sxm4-80gb 4 whole",
        "gke-prod-t4-spot-0": "t4 1 whole",
        "gke-prod-default-0": "unknown",
    },
    "mig": {
        "h100-balanced-1": "h100-80gb-hbm3 0 whole 16 mig-1g.10gb 8 mig-2g.20gb 8 mig-3g.40gb",
        "h100-changing-0": "h100-80gb-hbm3 0 whole 0 mig-1g.10gb 0 mig-2g.20gb 0 mig-3g.40gb layout pending"
        " but 8 promised, 32 withdrawn",
        "a100-40-half-0": "a100-sxm4-40gb 4 whole 28 mig-1g.5gb",
        "a100-80-media-0": "a100-80gb-pcie 0 whole 2 mig-1g.10gb.me 2 mig-3g.40gb",
        "a100-40-single-0": "a100-sxm4-40gb 56 slices of 1g.5gb",
        "a100-40-single-old-0": "a100-sxm4-40gb 56 slices of 1g.5gb",
        "a30-single-0": "a30 8 slices of 2g.12gb",
        "a100-80-single-pending-0": "a100-80gb-pcie 4 whole layout pending",
        "h100-rebooting-0": "h100-80gb-hbm3 8 whole layout rebooting",
    },
    "mixed": {
        "h100-0": "h100-80gb-hbm3 8 whole",
        "h200-0": "h200 8 whole",
        "a100-1": "a100-sxm4-80gb 8 whole",
        "a100-old-0": "a100-sxm4-40gb 8 whole",
        "v100-old-0": "v100-sxm2-32gb 8 whole",
        "t4-1": "t4 4 whole",
        "a10-0": "a10 4 whole",
        "l4-0": "l4 1 whole",
        "l40s-0": "l40s 4 whole",
        "a10-shared-0": "a10 4 time-sliced by 4, 23028 MiB left",
        "t4-mps-0": "t4 2 MPS by 2, 15360 MiB left",
        "a100-mig-single-0": "a100-sxm4-80gb 7 slices of 1g.10gb",
        "h100-mig-success": "h100-80gb-hbm3 0 whole 4 mig-1g.10gb 1 mig-3g.40gb",
        "h100-mig-pending": "h100-80gb-hbm3 0 whole 4 mig-1g.10gb 1 mig-3g.40gb layout pending",
        "h100-mig-failed": "h100-80gb-hbm3 0 whole 4 mig-1g.10gb 1 mig-3g.40gb layout failed",
        "a100-upgrading-0": "a100-sxm4-80gb 8 whole drain-required",
        "h100-ghost-0": "h100-80gb-hbm3 0 whole but 8 promised",
        "cpu-0": "unknown",
    },
    "shared": {
        "a10-sliced-1": "a10 8 time-sliced by 4, 46056 MiB left",
        "l4-renamed-0": "l4 16 shared time-sliced by 8, 46068 MiB left",
        "l4-renamed-lately-0": "l4 0 whole 8 shared time-sliced by 8, 23034 MiB left",
        "l40s-mps-0": "l40s 16 MPS by 4, 184272 MiB left",
        "l40s-mps-renamed-0": "l40s 16 shared MPS by 4, 184272 MiB left",
        "a100-mig-sliced-0": "a100-sxm4-80gb 28 time-sliced of 1g.10gb by 2, 137984 MiB left",
        "a10-whole-0": "a10 2 whole",
    },
    "sick": {
        "ghost-fresh-0": "h100-80gb-hbm3 0 whole but 8 promised, 8 withdrawn",
        "ghost-old-0": "h100-80gb-hbm3 0 whole but 8 promised",
        "ghost-never-0": "h100-80gb-hbm3 but 8 promised",
        "unhealthy-0": "h100-80gb-hbm3 6 whole, 2 withdrawn",
        "unhealthy-full-0": "h100-80gb-hbm3 7 whole, 1 withdrawn",
        "upgrade-required-0": "a100-sxm4-80gb 8 whole upgrade-required",
        "upgrade-draining-0": "a100-sxm4-80gb 8 whole drain-required",
        "upgrade-restarting-0": "a100-sxm4-80gb 0 whole pod-restart-required but 8 promised, 8 withdrawn",
        "upgrade-failed-0": "a100-sxm4-80gb 8 whole upgrade-failed",
        "upgrade-done-0": "a100-sxm4-80gb 8 whole",
        "mig-invalid-0": "a100-sxm4-80gb invalid",
        "mig-failed-0": "h100-80gb-hbm3 0 whole 2 mig-1g.10gb 1 mig-2g.20gb 1 mig-3g.40gb layout failed",
        "stale-count-0": "a100-sxm4-80gb 4 whole, stale labels",
        "stale-mig-0": "h100-80gb-hbm3 0 whole 7 mig-1g.10gb 0 mig-2g.20gb 0 mig-3g.40gb, stale labels",
        "shared-roomy-0": "a10 4 time-sliced by 4, 8692 MiB left",
        "shared-overrun-0": "a10 4 time-sliced by 4, -5644 MiB left",
        "shared-silent-0": "a10 4 time-sliced by 4, 12788 MiB left",
        "shared-mps-0": "t4 4 MPS by 2, 23552 MiB left",
    },
    "weekday": {
        "h100-2": "h100-80gb-hbm3 8 whole",
        "a100-mig-1": "a100-sxm4-80gb 0 whole 8 mig-3g.40gb",
        "a10-shared-0": "a10 8 time-sliced by 4, 7144 MiB left",
        "l40s-upgrading-0": "l40s 4 whole drain-required",
        "t4-sick-0": "t4 3 whole, 1 withdrawn",
        "cpu-0": "unknown",
    },
}  # fmt: skip


def test_every_fleet_has_its_meaning_written_down() -> None:
    assert set(MEANT) == set(fleet_names())


@pytest.mark.parametrize(
    ("name", "node", "meant"),
    [(name, node, meant) for name, rows in MEANT.items() for node, meant in rows.items()],
    ids=[f"{name} {node}" for name, rows in MEANT.items() for node in rows],
)
def test_node_is_read_as_its_fleet_means_it(name: str, node: str, meant: str) -> None:
    """S1-S4, S9, S15, F65, F67, F70, F73, F135."""
    assert say(state(name).nodes[node]) == meant


def test_labels_of_slices_that_are_gone_are_stale() -> None:
    """F73: GFD still tells of 2, 1 and 1 slices, where the device plugin has seven small ones."""
    assert state("sick").nodes["stale-mig-0"].node_class.stale


@pytest.mark.parametrize("node", ["dra-mig-0", "dra-mig-two-0"])
def test_mig_devices_do_not_serve_whole_gpus(node: str) -> None:
    """F135: the DeviceClass that serves nvidia.com/gpu takes devices of type gpu only."""
    assert "nvidia.com/gpu" not in state("dra").nodes[node].node_class.dra_resources
    assert judge(demand(pod(gpus(1))), state("dra").nodes[node], recount=False) is not None


def told() -> list[tuple[str, NodePool, str]]:
    """List the nodes of which GPU Feature Discovery or a ResourceSlice tells."""
    fleets = [(name, pool) for name in fleet_names() for pool in read_fleet(name).pools]
    return [
        (name, pool, pool.node_names()[0])
        for name, pool in fleets
        if pool.gpu is not None and (pool.gfd != "none" or pool.dra)
    ]


@pytest.mark.parametrize(("name", "pool", "node"), told(), ids=[f"{name} {node}" for name, _, node in told()])
def test_figures_of_a_node_are_those_of_its_pool(name: str, pool: NodePool, node: str) -> None:
    """S3: product, driver, CUDA, compute capability; memory of a GPU, or of a slice where a unit is one."""
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


@pytest.mark.parametrize(("name", "pool", "node"), told(), ids=[f"{name} {node}" for name, _, node in told()])
def test_figures_of_a_pool_agree_with_the_fact_tables(name: str, pool: NodePool, node: str) -> None:
    """S15: what the files say of products and drivers, the tables say too; old drivers report a little less memory."""
    assert pool.gpu is not None
    row = knowledge().products.find(product_label(pool.gpu))

    assert row is not None, (name, node)
    assert row.compute_capability == parse_version(pool.gpu.compute)
    assert row.memory_mib is not None
    assert 0.96 * row.memory_mib <= pool.gpu.memory <= row.memory_mib
    assert knowledge().cuda.highest_cuda(parse_version(pool.driver)) == parse_version(pool.cuda)


@pytest.mark.parametrize("name", fleet_names())
def test_capacity_is_there_and_never_below_allocatable(name: str) -> None:
    """F70: equal, unless the pool says otherwise."""
    said = {node for pool in read_fleet(name).pools if pool.allocatable for node in pool.node_names()}
    status = {document["metadata"]["name"]: document["status"] for document in nodes(name)}

    differing = {node for node, amounts in status.items() if amounts["capacity"] != amounts["allocatable"]}
    assert differing == said
    for amounts in status.values():
        gpu_resources = [key for key in amounts["capacity"] if key.startswith("nvidia.com/")]
        assert all(int(amounts["allocatable"][key]) <= int(amounts["capacity"][key]) for key in gpu_resources)


@pytest.mark.parametrize("name", fleet_names())
def test_pods_are_on_nodes_of_the_fleet_in_namespaces_of_the_fleet(name: str) -> None:
    objects = demo_fleet(name)
    known = {
        kind: {document["metadata"]["name"] for document in objects if document["kind"] == kind}
        for kind in ("Node", "Namespace")
    }
    pods = [document for document in objects if document["kind"] == "Pod"]
    waiting = [document for document in pods if document["status"]["phase"] == "Pending"]

    assert {document["spec"]["nodeName"] for document in pods if document not in waiting} <= known["Node"]
    assert {document["metadata"]["namespace"] for document in pods} <= known["Namespace"]
    assert len({document["metadata"]["uid"] for document in pods}) == len(pods)
    assert not any("nodeName" in document["spec"] for document in waiting)


def test_pods_of_the_weekday_are_bound_as_a_scheduler_could_have() -> None:
    """F89: no node of it holds more than it has, of GPUs or of their memory."""
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
    """F83, F84: and there is a change that helps."""
    pods = {
        f"{document['metadata']['namespace']}/{document['metadata']['name']}": document
        for document in demo_fleet("weekday")
        if document["kind"] == "Pod"
    }
    explained = finish(explain(pods[name], view(state("weekday"), shipped()), live=True))

    assert explained.primary is not None
    assert explained.primary.reason == cause
    assert explained.fixes


def test_nvl72_rack_is_one_clique_of_eighteen_nodes() -> None:
    """F54, S15."""
    cliques = [document["metadata"]["labels"].get("nvidia.com/gpu.clique") for document in nodes("dgx")]

    assert len({clique for clique in cliques if clique}) == 1
    assert len([clique for clique in cliques if clique]) == 18


def test_unknown_fleet_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match="demo fleet: got 'no', wants one of aks, dgx, dra, edge, eks, gke, mig, mixed, sh"
    ):
        build(Settings(demo=True, demo_fleet="no", certs=tmp_path))


def test_demo_serves_the_fleet_asked_for(tmp_path: Path) -> None:
    service = build(Settings(demo=True, demo_fleet="dgx", certs=tmp_path))

    assert set(service.nodes) == {document["metadata"]["name"] for document in nodes("dgx")}
    assert service.absent == ()


def test_misspelt_field_of_the_notation_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `gpu_count`"):
        msgspec.yaml.decode("{description: d, pools: [{names: [n], gpu_count: 8}]}", type=DemoFleet)
