# SPDX-License-Identifier: Apache-2.0
"""Free GPUs by product equal a sum from scratch after any order of events; nodes that are gone leave nothing."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.nodes.model import Node
from app.placement.scheduler_demand import free_step
from app.placement.unusable_capacity import whole_milli
from app.world.node_groups import FreeGPUs
from tests.builders import node
from tests.placement.expected_demands import GPU, free_by_product

PRODUCTS = ("Tesla-T4", "NVIDIA-A10", None)
EVENTS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([*PRODUCTS, "gone", "per GPU"]), st.integers(0, 8)), max_size=40
)
"""Nodes by number, each with its product and the GPUs that pods hold; `per GPU` has facts of each GPU, as with DRA."""
CLASSES = {product: node(product=product, offers={GPU: 8}) for product in PRODUCTS}


def made(name: str, product: str | None, used: int) -> Node:
    if product == "per GPU":
        of = CLASSES["Tesla-T4"]
        return replace(of, name=name, free=replace(of.free, gpus=(1000,) * (8 - used) + (250,) * (used // 2)))
    of = CLASSES[product]
    return replace(of, name=name, free=replace(of.free, units={GPU: 8 - used}))


@given(events=EVENTS)
def test_any_order_of_events_equals_a_sum_from_scratch(events: list[tuple[int, str | None, int]]) -> None:
    """F51: one generation stands for one answer."""
    index, alive, answers = FreeGPUs(), dict[str, Node](), dict[int, dict[str, int]]()
    for number, product, used in events:
        name = str(number)
        if product == "gone":
            alive.pop(name, None)
            index.drop(name)
        else:
            alive[name] = made(name, product, used)
            index.put(alive[name])
        whole: dict[str, int] = {}
        for known in alive.values():
            if (label := known.node_class.product) is not None:
                whole[label] = whole.get(label, 0) + whole_milli(known)
        expected = {label: free_step(free, whole[label])[1] for label, free in free_by_product(alive.values()).items()}

        assert index.rounded() == {label: free for label, free in expected.items() if whole[label]}
        assert answers.setdefault(index.generation, expected) == expected
