# SPDX-License-Identifier: Apache-2.0
"""Tiles: the cells of every sample fleet as a person would count them, and the state of a node."""

from collections import Counter

import pytest

from app.cluster.snapshot import fill
from app.demo.notation import fleet_names
from app.demo.sample_fleets import demo_fleet
from app.nodes.gpu_health import Health
from app.web.views.node_tile import GPU_WIDTH, MOST_PER_RUN, GPUCell, NodeState, Tile, tile_of
from app.world.state import State
from tests.builders import gpus, knowledge, node_document, pod


def state_of(fleet: str | None = None) -> State:
    state = State(knowledge())
    if fleet:
        fill(state, demo_fleet(fleet))
    return state


def tile(state: State, name: str) -> Tile:
    node = state.nodes[name]
    held = state.devices.devices_held_on(node)
    return tile_of(node, state.allocations.bound(name), state.node_requests.used.get(name, {}), state.knowledge, held)


def drawn(node_tile: Tile) -> list[tuple[str, int, int, str]]:
    return [(run.cell.name, run.count, run.width, run.text) for run in node_tile.runs]


@pytest.mark.parametrize(
    ("fleet", "node", "state", "cells"),
    [
        ("mixed", "h100-1", NodeState.Partly, [("Used", 2, 8, ""), ("Free", 6, 8, "")]),
        ("mixed", "h100-0", NodeState.Full, [("Used", 8, 8, "")]),
        ("mixed", "h200-0", NodeState.Free, [("Free", 8, 8, "")]),
        ("mixed", "h100-ghost-0", NodeState.Ghost, [("Ghost", 8, 8, "")]),
        ("mixed", "a100-upgrading-0", NodeState.Upgrading, [("Free", 8, 8, "")]),
        ("mixed", "h100-mig-pending", NodeState.Changing, [("Free", 4, 1, ""), ("Free", 1, 4, "")]),
        ("mixed", "h100-mig-success", NodeState.Free, [("Free", 4, 1, ""), ("Free", 1, 4, "")]),
        ("mixed", "a100-mig-single-0", NodeState.Free, [("Free", 7, 1, "")]),
        ("mixed", "a10-shared-0", NodeState.Partly, [("Shared", 1, 8, "1/4")]),
        ("mixed", "t4-mps-0", NodeState.Free, [("Shared", 1, 8, "0/2")]),
    ],
)
def test_cells_are_what_the_node_has(
    fleet: str, node: str, state: NodeState, cells: list[tuple[str, int, int, str]]
) -> None:
    """F132: free, used, shared with their number, MIG slices in their size, upgrading, ghosts."""
    node_tile = tile(state_of(fleet), node)

    assert (node_tile.state, drawn(node_tile)) == (state, cells)


def test_tile_names_the_namespaces_whose_claims_hold_devices() -> None:
    """F132, F135: a map filtered by namespace shows the nodes where it claims devices."""
    node_tile = tile(state_of("gpucluster"), "h100-0")

    assert node_tile.namespaces == ("team-a",)
    assert node_tile.words == "h100-0: full, 8 of 8 used; team-a 8"


@pytest.mark.parametrize("fleet", fleet_names())
def test_every_unit_of_every_sample_fleet_is_drawn_once(fleet: str) -> None:
    """F132: as many cells as units are free, and a GPU's slices are no wider than the GPU."""
    state = state_of(fleet)

    for name, node in state.nodes.items():
        if not node.has_gpus:
            continue
        node_tile = tile(state, name)
        cells: Counter[GPUCell] = Counter()
        for run in node_tile.runs:
            cells[run.cell] += run.count
            assert 1 <= run.count <= MOST_PER_RUN
            assert 1 <= run.width <= GPU_WIDTH
        if node.node_class.offered and GPUCell.Shared not in cells:
            free = sum(count.free for count in node_tile.counts)
            used = sum(count.units for count in node_tile.counts) - free
            assert (cells[GPUCell.Free], cells[GPUCell.Used]) == (free, used)
        if node.free.gpus and not node.node_class.offered:
            assert sum(run.count * run.width for run in node_tile.runs) == GPU_WIDTH * len(node.free.gpus)


def test_ill_gpus_are_drawn_among_the_free_ones_first() -> None:
    """F132: DCGM counts the ill GPUs of a node, here one that the plugin has not withdrawn."""
    state = state_of("mixed")
    state.put_health("h100-1", Health(ill=1))

    node_tile = tile(state, "h100-1")

    assert drawn(node_tile) == [("Used", 2, 8, ""), ("Free", 5, 8, ""), ("Ill", 1, 8, "")]
    assert node_tile.state is NodeState.Ill


def test_node_with_a_faulty_condition_is_ill_and_names_it() -> None:
    """F132, F72: which of its GPUs is faulty is not told, so that none is drawn as ill."""
    state = state_of()
    state.put_node(node_document(conditions={"SysLogsXIDError": "True"}))

    node_tile = tile(state, "n")

    assert (node_tile.state, drawn(node_tile)) == (NodeState.Ill, [("Free", 8, 8, "")])
    assert node_tile.words.endswith("SysLogsXIDError=True")


def test_gpus_that_the_plugin_withdrew_are_drawn_besides() -> None:
    """F132."""
    state = state_of()
    state.put_node(node_document(offers={"nvidia.com/gpu": 6}, capacity={"nvidia.com/gpu": 8}))

    assert drawn(tile(state, "n")) == [("Free", 6, 8, ""), ("Ill", 2, 8, "")]


@pytest.mark.parametrize(
    ("allocatable", "requests", "stranded"),
    [
        ({"cpu": "64", "memory": "512Gi", "pods": "110"}, {"cpu": "8"}, False),
        ({"cpu": "64", "memory": "512Gi", "pods": "110"}, {"cpu": "63500m"}, True),
        ({"cpu": "64", "memory": "512Gi", "pods": "110"}, {"memory": "512Gi"}, True),
        ({"cpu": "64", "memory": "512Gi", "pods": "1"}, {}, True),
        ({}, {"cpu": "64"}, False),
    ],
    ids=["room", "no cpu", "no memory", "no place", "unknown"],
)
def test_free_gpus_of_a_node_that_is_full_otherwise_are_stranded(
    allocatable: dict[str, str], requests: dict[str, str], stranded: bool
) -> None:
    """F132: CPU, memory or places for pods are used up; a resource that a node does not report strands nothing."""
    state = state_of()
    document = node_document()
    document["status"]["allocatable"] |= allocatable
    state.put_node(document)
    amounts = {"nvidia.com/gpu": "1", **requests}
    holder = pod({"name": "m", "resources": {"limits": amounts, "requests": amounts}}, nodeName="n")
    state.put_pod({**holder, "status": {"phase": "Running"}})

    node_tile = tile(state, "n")

    assert [count.free for count in node_tile.counts] == [7]
    assert node_tile.stranded is stranded


@pytest.mark.parametrize(
    ("labels", "state"),
    [
        ({"nvidia.com/mig.config.state": "failed"}, NodeState.ChangeFailed),
        ({"nvidia.com/mig.config.state": "pending"}, NodeState.Changing),
        ({"nvidia.com/gpu-driver-upgrade-state": "upgrade-failed"}, NodeState.UpgradeFailed),
        ({"nvidia.com/gpu-driver-upgrade-state": "drain-required"}, NodeState.Upgrading),
    ],
    ids=["MIG failed", "MIG pending", "upgrade failed", "upgrade"],
)
def test_what_failed_is_not_said_to_be_changing(labels: dict[str, str], state: NodeState) -> None:
    """F132: the first never ends by itself."""
    world = state_of()
    document = node_document()
    document["metadata"]["labels"] |= labels
    world.put_node(document)

    assert tile(world, "n").state is state


def test_nothing_is_free_on_a_node_that_does_not_answer() -> None:
    """F132: its cells are crossed out, its free GPUs unusable."""
    world = state_of()
    document = node_document()
    document["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    world.put_node(document)

    node_tile = tile(world, "n")

    assert (node_tile.state, node_tile.stranded) == (NodeState.NotReady, True)
    assert {run.cell for run in node_tile.runs} == {GPUCell.Ill}


def test_slices_and_gpus_of_one_node_are_counted_apart() -> None:
    """F132: as `inventory` counts them."""
    world = state_of()
    document = node_document()
    units = {"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "14"}
    document["status"]["allocatable"] |= units
    document["status"]["capacity"] = units
    world.put_node(document)

    counts = tile(world, "n").counts

    assert {count.unit: count.units for count in counts} == {"a MIG slice": 14, "a whole GPU": 2}


def test_text_says_what_the_colours_do() -> None:
    """F132: for people who cannot see the colours."""
    assert tile(state_of("mixed"), "h100-1").words == "h100-1: partly used, 2 of 8 used; team-b 2"
    assert tile(state_of("mixed"), "h100-ghost-0").words == (
        "h100-ghost-0: missing GPUs, label nvidia.com/gpu.count (GPU Feature Discovery) promises 8 GPUs, none is "
        "offered"
    )


def test_namespaces_of_a_tile_are_those_that_hold_its_gpus() -> None:
    """F132."""
    state = state_of()
    state.put_node(node_document())
    for namespace in ("b", "a", "b"):
        made = pod(gpus(2), nodeName="n")
        made["metadata"] |= {"namespace": namespace, "uid": f"{namespace}{len(state.allocations.bound('n'))}"}
        state.put_pod({**made, "status": {"phase": "Running"}})

    node_tile = tile(state, "n")

    assert node_tile.namespaces == ("a", "b")
    assert list(node_tile.sizes) == [2, 2, 2]
    assert node_tile.words.endswith("; b 4; a 2")
