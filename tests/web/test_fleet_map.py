# SPDX-License-Identifier: Apache-2.0
"""The totals of the fleet map equal those made from scratch; its fragmentation equals a slow twin."""

import random
from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.web.fleet_map import WHOLE_SECONDS, FleetMap
from app.web.views.fleet_tiles import TileFilter, fragmented_gpus
from app.world.state import State
from tests.builders import container, gpus, knowledge, node_document, pod

COUNTS = st.dictionaries(st.integers(0, 8), st.integers(1, 5), max_size=5)
MAKES = (("NVIDIA-H100-80GB-HBM3", 8), ("Tesla-T4", 4), ("NVIDIA-A10-SHARED", 4))


def finish(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def lost_by_pods(frees: Mapping[int, int], sizes: Mapping[int, int]) -> float:
    """Compute fragmentation from every pair of a pod and a node."""
    pods = [size for size, count in sizes.items() for _ in range(count)]
    nodes = [free for free, count in frees.items() for _ in range(count)]
    return sum(free for size in pods for free in nodes if free < size) / len(pods) if pods else 0.0


@given(COUNTS, st.dictionaries(st.integers(1, 8), st.integers(1, 5), max_size=4))
def test_fragmentation_equals_its_slow_twin(frees: Mapping[int, int], sizes: Mapping[int, int]) -> None:
    """F132, F52: it is the mean of the free GPUs that a pod like the running ones could not use."""
    assert fragmented_gpus(frees, sizes) == lost_by_pods(frees, sizes)


def test_fragmentation_counts_what_the_usual_pod_cannot_use() -> None:
    """F132: half of the pods request one GPU and lose nothing, half request eight and lose the seven of a node."""
    assert fragmented_gpus(Counter({8: 2, 7: 1}), Counter({1: 3, 8: 3})) == 3.5


def change(state: State, drawn: random.Random) -> None:
    """Make one random change of the fleet."""
    name = f"n{drawn.randrange(6)}"
    match drawn.randrange(5):
        case 0:
            product, amount = drawn.choice(MAKES)
            state.put_node(node_document(name, product, offers={"nvidia.com/gpu": amount}))
        case 1:
            state.drop_node(name)
        case 2:
            state.drop_pod(f"p{drawn.randrange(12)}")
        case _:
            made = pod(gpus(drawn.randrange(1, 5)), nodeName=name)
            made["metadata"] |= {"uid": f"p{drawn.randrange(12)}", "namespace": drawn.choice("abc")}
            state.put_pod({**made, "status": {"phase": drawn.choice(["Running", "Succeeded"])}})


def test_map_that_follows_equals_one_made_from_scratch() -> None:
    """F132: it is compared after each of 600 changes, seen one by one or many together."""
    state, drawn = State(knowledge()), random.Random(1121)
    following = FleetMap(state)

    for _ in range(600):
        change(state, drawn)
        if drawn.random() < 0.4:
            finish(following.catch_up())
            fresh = FleetMap(state)
            finish(fresh.catch_up())
            assert following.tiles == fresh.tiles
            assert following.totals() == fresh.totals()
            assert following.choices() == fresh.choices()


def test_map_catches_up_where_too_much_was_missed() -> None:
    """F132: the state forgets old changes, after which the map reads all nodes."""
    state = State(knowledge())
    fleet_map = FleetMap(state)
    state.put_node(node_document("a"))
    finish(fleet_map.catch_up())
    state.put_node(node_document("b"))
    state.changes.reset()

    finish(fleet_map.catch_up())

    assert set(fleet_map.tiles) == {"a", "b"}


def test_map_shows_memory_that_pods_without_gpus_took_a_minute_ago() -> None:
    """F132: they do not count as a change of a node, so every tile is made again once a minute for who looks."""
    now = [0.0]
    state = State(knowledge())
    document = node_document("a")
    document["status"]["allocatable"]["memory"] = "64Gi"
    state.put_node(document)
    fleet_map = FleetMap(state, lambda: now[0])
    finish(fleet_map.catch_up())
    taker = pod(container({}, {"memory": "64Gi"}), nodeName="a")
    state.put_pod({**taker, "status": {"phase": "Running"}})

    finish(fleet_map.catch_up())
    at_once = sum(total.stranded for total in fleet_map.totals())
    now[0] += WHOLE_SECONDS
    finish(fleet_map.catch_up())

    assert (at_once, sum(total.stranded for total in fleet_map.totals())) == (0, 8)


def test_groups_are_by_product_and_in_the_order_of_names() -> None:
    """F132."""
    state = State(knowledge())
    for name, product in (("b", "Tesla-T4"), ("a", "Tesla-T4"), ("c", "NVIDIA-H100-80GB-HBM3")):
        state.put_node(node_document(name, product))
    fleet_map = FleetMap(state)
    finish(fleet_map.catch_up())

    groups = finish(fleet_map.tile_groups(TileFilter()))

    assert [(group.product, group.count) for group in groups] == [("H100-80GB-HBM3", 1), ("Tesla-T4", 2)]
    assert groups[1].parts[0].index("n-a") < groups[1].parts[0].index("n-b")
    assert finish(fleet_map.tile_groups(TileFilter(product="K80"))) == ()
