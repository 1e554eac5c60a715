# SPDX-License-Identifier: Apache-2.0
"""The baseline FGD: Weng et al., "Beware of Fragmentation", USENIX ATC '23, and its artifact's scheduler plugin."""

from functools import lru_cache
from math import exp

from app.nodes.model import Node
from app.placement.unusable_capacity import STATES_KEPT, GPUs, free_gpus, placements, unusable_milli
from app.policy.demand import Demand, ExpectedDemand

COVERED = 0.95
"""Share of the arrivals whose classes count, the most popular first; the FGD paper includes pods without GPU."""
LEVELS = 100
"""Steps of a score, which is a whole number from 0 to 100 in the plugin."""
SQUASH_MILLI = 1000.0
"""The plugin divides the change of F, in thousandths of a GPU, by this number and takes the sigmoid of the result."""
EXPECTED_DEMANDS_KEPT = 16
"""Expected demands whose popular classes are cached. A guess: a run has one at a time, and few runs share a process."""


def fgd(demand: Demand, node: Node) -> float:
    """Prefer the node where the fragmentation F grows least."""
    if demand.expected_demand is None:
        return 0.5
    product, cpu = node.node_class.product, node.free_cpu_milli
    return _score(demand, popular(demand.expected_demand), product, cpu, free_gpus(node.free))


@lru_cache(STATES_KEPT)
def _score(demand: Demand, expected_demand: ExpectedDemand, product: str | None, cpu: int | None, gpus: GPUs) -> float:
    results = placements(gpus, sum(amount for _, amount in demand.resources), demand.share_milli)
    if not results:
        return 0.0
    left = None if cpu is None else cpu - demand.cpu_milli
    gain = unusable_milli(expected_demand, product, cpu, gpus) - min(
        unusable_milli(expected_demand, product, left, result) for result in results
    )
    return int(LEVELS / (1.0 + exp(-gain / SQUASH_MILLI))) / LEVELS


@lru_cache(EXPECTED_DEMANDS_KEPT)
def popular(expected_demand: ExpectedDemand) -> ExpectedDemand:
    """Return the most popular classes that together cover COVERED of the arrivals."""
    classes = []
    covered = 0.0
    for demand_class, probability in expected_demand.classes:
        if covered >= COVERED:
            break
        classes.append((demand_class, probability))
        covered += probability
    return ExpectedDemand(tuple((demand_class, probability / covered) for demand_class, probability in classes))
