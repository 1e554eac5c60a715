# SPDX-License-Identifier: Apache-2.0
"""Scorers: how well a node that fits would serve a demand, in [0, 1], higher is better."""

from collections.abc import Callable

from app.knowledge.cuda_compatibility import Compatibility, CUDANeed, judge_driver
from app.nodes.model import Node
from app.placement.fragmentation import fragmentation
from app.placement.mig_layouts import mig_layout
from app.placement.packing import packing, spreading
from app.policy.demand import Demand
from app.policy.schema_placement import DEFAULT_SCORES, ScorerName

Scorer = Callable[[Demand, Node], float]


def product_preference(demand: Demand, node: Node) -> float:
    """Prefer products in the order that the policy gives; one not named comes last."""
    product = node.node_class.product
    for position, pattern in enumerate(demand.preferred_products):
        if product is not None and pattern.matches(product):
            return 1.0 - position / len(demand.preferred_products)
    return 0.0


def driver_headroom(demand: Demand, node: Node) -> float:
    """Prefer the driver that runs the image natively, then by minor version, then by forward compatibility."""
    needs = (*demand.cuda, *demand.cuda_wishes)
    if not needs:
        return 1.0
    return min(_headroom(need, node) for need in needs)


def _headroom(need: CUDANeed, node: Node) -> float:
    if node.node_class.driver is None:
        return 0.25
    return _HEADROOM[judge_driver(need, node.node_class.host)]


_HEADROOM = {
    Compatibility.Native: 1.0,
    Compatibility.MinorVersion: 0.5,
    Compatibility.Forward: 0.25,
    Compatibility.TooOld: 0.0,
    Compatibility.RequirementUnmet: 0.0,
}
"""An order, not a measurement: native surely runs; minor-version fails where PTX is compiled at run time."""


def interconnect(demand: Demand, node: Node) -> float:
    """Prefer GPUs joined all-to-all for pods of several, and leave them alone for pods of one."""
    if node.node_class.nvlink is None:
        return 0.5
    return float(node.node_class.nvlink is (sum(amount for _, amount in demand.resources) > 1))


def nvlink_domain(demand: Demand, node: Node) -> float:
    """Prefer the NVLink domain in which pods of the same group run: multi-node NVLink ends with it (gpu.clique)."""
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
"""Every scorer under the name that policies use."""

BY_CLASS: frozenset[ScorerName] = frozenset(
    {ScorerName.ProductPreference, ScorerName.DriverHeadroom, ScorerName.Interconnect}
)
"""Those that look at the node's class alone: one score serves all nodes of the class."""

AHEAD: frozenset[ScorerName] = frozenset({ScorerName.Fragmentation})
"""Those that look at what is to come, and at CPU: a demand carries these only where one is in use."""


def looks_ahead(demand: Demand) -> bool:
    """Tell whether a demand names a scorer that looks ahead."""
    return any(name in AHEAD for name, _ in demand.scores or DEFAULT_SCORES)
