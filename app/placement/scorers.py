# SPDX-License-Identifier: Apache-2.0
"""Scorers: functions that score how well a node that fits would serve a demand, in [0, 1]; higher is better."""

from collections.abc import Callable, Mapping

from app.knowledge.cuda_compatibility import Compatibility, CUDANeed, judge_driver
from app.nodes.model import Node
from app.placement.fragmentation import ScoreByCPU, fragmentation, fragmentation_by_cpu
from app.placement.mig_layouts import mig_layout
from app.placement.packing import packing, spreading
from app.policy.demand import Demand
from app.policy.schema_placement import DEFAULT_SCORES, ScorerName

Scorer = Callable[[Demand, Node], float]


def product_preference(demand: Demand, node: Node) -> float:
    """Prefer products in the order of the policy; products that it does not list come last."""
    product = node.node_class.product
    for position, pattern in enumerate(demand.preferred_products):
        if product is not None and pattern.matches(product):
            return 1.0 - position / len(demand.preferred_products)
    return 0.0


def driver_headroom(demand: Demand, node: Node) -> float:
    """Prefer a driver that runs the image natively, then by minor-version, then by forward compatibility."""
    needs = (*demand.cuda, *demand.preferred_cuda)
    if not needs:
        return 1.0
    return min(_headroom(need, node) for need in needs)


def _headroom(need: CUDANeed, node: Node) -> float:
    if node.node_class.driver is None:
        return 0.25
    compatibility = judge_driver(need, node.node_class.host)
    depends = need.forward_depends and compatibility is Compatibility.Forward
    return _HEADROOM[compatibility] * (0.5 if depends else 1.0)


_HEADROOM = {
    Compatibility.Native: 1.0,
    Compatibility.MinorVersion: 0.5,
    Compatibility.Forward: 0.25,
    Compatibility.TooOld: 0.0,
    Compatibility.RequirementUnmet: 0.0,
}
"""Scores that only express an order: native always runs, and minor-version fails if PTX is compiled at run time."""


def interconnect(demand: Demand, node: Node) -> float:
    """Prefer GPUs that NVLink joins all-to-all for pods of several GPUs, and other GPUs for pods of one."""
    if node.node_class.nvlink is None:
        return 0.5
    return float(node.node_class.nvlink is (demand.gpus > 1))


def nvlink_domain(demand: Demand, node: Node) -> float:
    """Prefer the NVLink domain (gpu.clique) in which pods of the same workload run, since NVLink ends with it."""
    return float(bool(demand.group_cliques) and node.clique in demand.group_cliques)


SCORERS: tuple[tuple[ScorerName, Scorer], ...] = (
    (ScorerName.Packing, packing),
    (ScorerName.Spreading, spreading),
    (ScorerName.ProductPreference, product_preference),
    (ScorerName.DriverHeadroom, driver_headroom),
    (ScorerName.Interconnect, interconnect),
    (ScorerName.NVLinkDomain, nvlink_domain),
    (ScorerName.Fragmentation, fragmentation),
    (ScorerName.MIGLayout, mig_layout),
)
"""Each scorer with its name in policies."""

BY_CLASS: frozenset[ScorerName] = frozenset(
    {ScorerName.ProductPreference, ScorerName.DriverHeadroom, ScorerName.Interconnect}
)
"""The scorers that depend only on the node's class, so that one score applies to all nodes of the class."""

BY_FREE_CPU: Mapping[ScorerName, Callable[[Demand, Node], ScoreByCPU]] = {
    ScorerName.Fragmentation: fragmentation_by_cpu
}
"""The scorers that depend on the free CPU of a node: functions that give the score by it, all else being equal."""

USING_EXPECTED_DEMAND: frozenset[ScorerName] = frozenset({ScorerName.Fragmentation})
"""The scorers that depend on the expected demand and on CPU, which a demand contains only if one of them is used."""


def uses_expected_demand(demand: Demand) -> bool:
    """Tell whether a scorer of the demand depends on the expected demand, as always for a pod without GPUs.

    Such a pod is scored by Fragmentation alone, whatever policies say (engine.py, WITHOUT_GPUS).
    """
    return not demand.requests_gpus or any(name in USING_EXPECTED_DEMAND for name, _ in demand.scores or DEFAULT_SCORES)
