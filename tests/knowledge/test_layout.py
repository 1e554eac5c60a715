# SPDX-License-Identifier: Apache-2.0
"""Placing MIG instances on a node against trying every placement of every instance, for every product (F60)."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.knowledge.mig_geometry import Geometry, GPULayout, Instance, InstancePlacement, place_instances
from app.knowledge.products import normal_form
from tests.builders import knowledge

H100 = "NVIDIA-H100-80GB-HBM3"
A100_40 = "NVIDIA-A100-SXM4-40GB"
RTX = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"
GEOMETRIES = sorted({id(table): name for name, table in knowledge().geometry.items()}.values())
"""One product for each table row, since products of one row share the geometry."""


def layout(product: str, *taken: tuple[str, int], gpu: str = "gpu-0") -> GPULayout:
    return GPULayout(gpu, knowledge().geometry[normal_form(product)], tuple(Instance(*instance) for instance in taken))


def legal(geometry: Geometry, instances: Sequence[Instance]) -> bool:
    """Tell by the rules of the fact file whether these instances may lie on one GPU together."""
    slots = geometry.slots
    slices = [memory_slice for name, start in instances for memory_slice in range(start, start + slots[name].length)]
    return (
        all(start in slots[name].starts for name, start in instances)
        and len(slices) == len(set(slices))
        and sum(slots[name].compute for name, _ in instances) <= geometry.compute_total
        and all(count <= slots[name].max_instances for name, count in Counter(name for name, _ in instances).items())
    )


def can_lie(gpus: list[tuple[Geometry, list[Instance]]], profiles: Sequence[str]) -> bool:
    """Try every GPU and every start for each instance in turn."""
    if not profiles:
        return True
    for geometry, there in gpus:
        for start in geometry.slots[profiles[0]].starts if profiles[0] in geometry.slots else ():
            there.append(Instance(profiles[0], start))
            fits = legal(geometry, there) and can_lie(gpus, profiles[1:])
            there.pop()
            if fits:
                return True
    return False


def check(layouts: Sequence[GPULayout], profiles: Sequence[str]) -> None:
    """Compare with trying everything. The result must be legal, and in the order of the wanted instances."""
    places = place_instances(layouts, profiles)

    assert (places is not None) is can_lie([(layout.geometry, list(layout.taken)) for layout in layouts], profiles)
    for index, layout in enumerate(layouts if places is not None else ()):
        new = [
            Instance(name, place.start)
            for name, place in zip(profiles, places or (), strict=True)
            if place.gpu == index
        ]
        assert legal(layout.geometry, [*layout.taken, *new])


@st.composite
def occupied(draw: st.DrawFn, product: str) -> GPULayout:
    """Draw a GPU with instances in any legal layout, even a wasteful one."""
    geometry = knowledge().geometry[product]
    spots = [Instance(name, start) for name, slot in geometry.slots.items() for start in slot.starts]
    there: list[Instance] = []
    for spot in draw(st.lists(st.sampled_from(spots), max_size=5)):
        if legal(geometry, [*there, spot]):
            there.append(spot)
    return GPULayout(product, geometry, tuple(there))


@pytest.mark.parametrize("product", GEOMETRIES)
def test_instances_fit_just_where_some_place_is_left_for_each(product: str) -> None:
    """F60, P13: one GPU of every product, with any layout on it."""
    names = sorted(knowledge().geometry[product].slots)

    @settings(max_examples=40, derandomize=True, deadline=None)
    @given(occupied(product), st.lists(st.sampled_from(names), max_size=5))
    def run(one: GPULayout, profiles: list[str]) -> None:
        check([one], profiles)
        starts = one.geometry.find_starts(profiles, one.taken)
        assert (starts is not None) is (place_instances([one], profiles) is not None)

    run()


@pytest.mark.parametrize("product", GEOMETRIES)
def test_instances_fit_on_a_node_just_where_some_gpu_has_a_place_for_each(product: str) -> None:
    """F60: the node has two or three GPUs, of which one may be of another product."""
    names = sorted(knowledge().geometry[product].slots)
    other = st.sampled_from(GEOMETRIES).flatmap(occupied)

    @settings(max_examples=24, derandomize=True, deadline=None)
    @given(st.lists(occupied(product), min_size=1, max_size=2), other, st.lists(st.sampled_from(names), max_size=4))
    def run(some: list[GPULayout], one: GPULayout, profiles: list[str]) -> None:
        check([*some, one], profiles)

    run()


@pytest.mark.parametrize(
    ("product", "taken", "profiles", "fits"),
    [
        (H100, [], ["4g.40gb", "3g.40gb"], True),
        (H100, [("1g.10gb", 0)], ["4g.40gb"], False),
        (H100, [("1g.10gb", 4)], ["4g.40gb"], True),
        (H100, [("1g.10gb", 4)], ["4g.40gb", "3g.40gb"], False),
        (H100, [("1g.10gb", 2), ("1g.10gb", 6)], ["3g.40gb"], False),
        (H100, [("2g.20gb", 0), ("2g.20gb", 2), ("2g.20gb", 4)], ["1g.10gb"], True),
        (H100, [("2g.20gb", 0), ("2g.20gb", 2), ("2g.20gb", 4)], ["1g.20gb"], True),
        (H100, [("2g.20gb", 0), ("2g.20gb", 2), ("2g.20gb", 4)], ["1g.10gb", "1g.10gb"], False),
        (H100, [("3g.40gb", 0), ("3g.40gb", 4)], ["1g.10gb"], False),
        (H100, [("1g.10gb.me", 6)], ["1g.10gb.me"], False),
        (H100, [("1g.10gb.me", 6)], ["1g.10gb"], True),
        (H100, [("1g.10gb", start) for start in range(7)], ["1g.10gb"], False),
        (A100_40, [("1g.10gb", 0), ("1g.10gb", 2), ("1g.10gb", 4)], ["1g.10gb"], True),
        (A100_40, [("1g.5gb", 0), ("1g.5gb", 2), ("1g.5gb", 4), ("1g.5gb", 6)], ["1g.10gb"], False),
        (H100, [("1g.10gb", 0), ("1g.10gb", 2), ("1g.10gb", 4), ("1g.10gb", 6)], ["1g.10gb"], True),
        (RTX, [("1g.24gb", 3)], ["2g.48gb"], True),
        (RTX, [("1g.24gb", 3)], ["2g.48gb", "2g.48gb"], False),
        (RTX, [("1g.24gb", 3), ("1g.24gb", 6)], ["2g.48gb"], False),
        ("NVIDIA-A30", [("1g.6gb", 1)], ["2g.12gb", "1g.6gb"], True),
        ("NVIDIA-A30", [("1g.6gb", 1), ("1g.6gb", 2)], ["2g.12gb"], False),
        (H100, [], ["1g.5gb"], False),
    ],
)
def test_where_an_instance_lies_decides(
    product: str, taken: list[tuple[str, int]], profiles: list[str], fits: bool
) -> None:
    """F60, P14: a small slice at a bad start blocks a large one although enough slices are free."""
    assert (place_instances([layout(product, *taken)], profiles) is not None) is fits


def test_fuller_gpu_is_filled_first_and_the_order_asked_is_kept() -> None:
    """P14: an empty GPU stays whole."""
    node = [layout(H100), layout(H100, ("3g.40gb", 0), gpu="gpu-1")]

    assert (InstancePlacement(1, 4), InstancePlacement(0, 0)) == place_instances(node, ["3g.40gb", "4g.40gb"])
    assert (InstancePlacement(1, 6), InstancePlacement(1, 4)) == place_instances(node, ["1g.10gb", "2g.20gb"])


def test_many_slices_are_shared_out_over_eight_gpus() -> None:
    """F60: the node is full to the last compute slice, and one more instance does not fit."""
    node = [layout(H100, gpu=f"gpu-{minor}") for minor in range(8)]

    places = place_instances(node, ["4g.40gb", "3g.40gb"] * 8)

    assert places is not None
    assert {2} == set(Counter(place.gpu for place in places).values())
    assert place_instances(node, ["4g.40gb", "3g.40gb"] * 8 + ["1g.10gb"]) is None
    assert place_instances([], ["1g.10gb"]) is None
    assert place_instances([], []) == ()
