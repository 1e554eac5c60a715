# SPDX-License-Identifier: Apache-2.0
"""Random expected demands, nodes and demands for the tests of the scorers that use the expected demand."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from hypothesis import strategies as st

from app.nodes.model import FreeResources, Node
from app.placement.scheduler_demand import expected_from_weights
from app.placement.unusable_capacity import GPUs, cpu_steps, free_gpus, unusable_milli_at_step
from app.policy.demand import Demand, DemandClass, ExpectedDemand
from tests.builders import demand, gpus, knowledge, node, pod

GPU = "nvidia.com/gpu"
PRODUCTS = {"t4": "Tesla-T4", "h100-80gb-hbm3": "NVIDIA-H100-80GB-HBM3"}
"""GPU product labels by their normal form."""
T4 = ((knowledge().products.pattern("Tesla-T4"),),)

DEMAND_CLASSES = st.builds(
    DemandClass,
    cpu_milli=st.sampled_from([0, 1000, 4000, 8000]),
    gpus=st.integers(0, 4),
    products=st.sampled_from([(), T4]),
) | st.builds(DemandClass, cpu_milli=st.sampled_from([1000, 4000]), gpus=st.just(1), share_milli=st.integers(1, 999))
FREE = st.fixed_dictionaries({product: st.integers(0, 9000) for product in PRODUCTS})
EXPECTED_DEMANDS = st.builds(
    lambda weights, free: ExpectedDemand(
        tuple((ask, weight / sum(weights.values())) for ask, weight in weights.items()), tuple(free.items())
    ),
    st.dictionaries(DEMAND_CLASSES, st.integers(1, 9), min_size=1, max_size=8),
    FREE,
)
SIZES = st.lists(st.sampled_from([0, 190, 470, 530, 999, 1000, 1000, 1000]), max_size=6).map(
    lambda sizes: tuple(sorted(sizes, reverse=True))
)
CPU = st.none() | st.sampled_from([0, 999, 1000, 5000, 9000])


def exact_stranded(
    expected_demand: ExpectedDemand, product: str | None, cpu: int | None, sizes: tuple[int, ...]
) -> Fraction:
    """Compute F, the stranded GPU, class by class and GPU by GPU in exact fractions, as the FGD paper defines it."""
    stranded = Fraction(0)
    for ask, probability in expected_demand.classes:
        share = ask.share_milli or 1000
        room = [size for size in sizes if size >= share]
        runs = ask.gpus > 0 and len(room) >= ask.gpus and (cpu is None or cpu >= ask.cpu_milli)
        if ask.products and product != "t4":
            runs = False
        stranded += Fraction(probability) * sum(size for size in sizes if not runs or size < share)
    return stranded


def sizes_left(sizes: tuple[int, ...], count: int, share: int) -> Iterator[tuple[int, ...]]:
    """Yield what is left of the GPUs after each possible choice of GPUs for a pod, in thousandths of a GPU."""
    for chosen in combinations(range(len(sizes)), count):
        if all(sizes[place] >= (share or 1000) for place in chosen):
            left = [size - (share or 1000) if place in chosen else size for place, size in enumerate(sizes)]
            yield tuple(sorted(left, reverse=True))


def demand_for(count: int, share: int = 0, cpu: int = 0, expected_demand: ExpectedDemand | None = None) -> Demand:
    return replace(demand(pod(gpus(count))), share_milli=share, cpu_milli=cpu, expected_demand=expected_demand)


def node_with_gpus(sizes: tuple[int, ...], cpu: int | None = None, product: str = "t4") -> Node:
    """Make a node whose free thousandths are known for each GPU."""
    made = node(product=PRODUCTS[product], offers={GPU: len(sizes)})
    return replace(made, free=FreeResources({GPU: sizes.count(1000)}, gpus=sizes), free_cpu_milli=cpu)


def expected_from_classes(
    classes: Iterable[DemandClass], free: Mapping[str, int] | None = None
) -> ExpectedDemand | None:
    """Give the expected demand by a list of classes, in which each counts as often as it occurs."""
    weights: dict[DemandClass, float] = {}
    for demand_class in classes:
        weights[demand_class] = weights.get(demand_class, 0.0) + 1.0
    return expected_from_weights(weights, free or {})


def free_by_product(nodes: Iterable[Node]) -> Mapping[str, int]:
    """Sum up the free GPU capacity in thousandths by product, including products of which nothing is free."""
    free: dict[str, int] = {}
    for one in nodes:
        if (product := one.node_class.product) is not None:
            free[product] = free.get(product, 0) + sum(free_gpus(one.free))
    return free


def unusable_milli(expected_demand: ExpectedDemand, product: str | None, cpu_milli: int | None, gpus: GPUs) -> float:
    """Compute F: the expected free capacity, in thousandths of a GPU, that the next pod cannot use.

    `cpu_milli` is the free CPU of the node; None means that CPU is sufficient for each class.
    """
    steps = cpu_steps(expected_demand)
    step = len(steps) if cpu_milli is None else bisect_right(steps, cpu_milli)
    return unusable_milli_at_step(expected_demand, product, gpus, step)
