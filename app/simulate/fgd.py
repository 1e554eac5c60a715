# SPDX-License-Identifier: Apache-2.0
"""FGD as published: Weng et al., "Beware of Fragmentation", USENIX ATC '23, and the artifact's scheduler plugin."""

from functools import lru_cache
from math import exp

from app.nodes.model import Node
from app.placement.stranded import STATES_KEPT, GPUs, free_gpus, placements, stranded
from app.policy.demand import Demand
from app.policy.expected_demand import ExpectedDemand

COVERED = 0.95
"""Share of the arrivals whose classes count, most popular first; pods without GPU are among them (as in the FGD
paper)."""
LEVELS = 100
SQUASH_MILLI = 1000.0
"""Steps of the score, and what is one unit of the sigmoid (the plugin)."""
OUTLOOKS_KEPT = 16


def fgd(demand: Demand, node: Node) -> float:
    """Prefer the node where F grows least."""
    if demand.expected_demand is None:
        return 0.5
    product, cpu = node.node_class.product, node.free.cpu_milli
    return _score(demand, popular(demand.expected_demand), product, cpu, free_gpus(node.free))


@lru_cache(STATES_KEPT)
def _score(demand: Demand, expected_demand: ExpectedDemand, product: str | None, cpu: int | None, gpus: GPUs) -> float:
    ways = placements(gpus, sum(amount for _, amount in demand.resources), demand.share_milli)
    if not ways:
        return 0.0
    left = None if cpu is None else cpu - demand.cpu_milli
    gain = stranded(expected_demand, product, cpu, gpus) - min(
        stranded(expected_demand, product, left, each) for each in ways
    )
    return int(LEVELS / (1.0 + exp(-gain / SQUASH_MILLI))) / LEVELS


@lru_cache(OUTLOOKS_KEPT)
def popular(expected_demand: ExpectedDemand) -> ExpectedDemand:
    """Keep the most popular classes, until they cover enough."""
    kept = []
    covered = 0.0
    for ask, probability in expected_demand.classes:
        if covered >= COVERED:
            break
        kept.append((ask, probability))
        covered += probability
    return ExpectedDemand(tuple((ask, probability / covered) for ask, probability in kept))
