# SPDX-License-Identifier: Apache-2.0
"""The Fragmentation scorer: how much GPU capacity a placement wastes for expected pods (F51, F52, F61).

It adds three losses in thousandths of a GPU: waste (waste_score.py), share prices (share_prices.py), and scarcity
(scarcity.py).
"""

from functools import lru_cache

from app.knowledge.mig_profiles import profile_of
from app.nodes.model import WHOLE_MILLI, Node
from app.placement.packing import packing
from app.placement.scarcity import scarcity
from app.placement.share_prices import share_prices
from app.placement.unusable_capacity import STATES_KEPT, GPUs, free_gpus, placements
from app.placement.waste_score import wasted_milli
from app.policy.demand import Demand

LEVEL_MILLI = 40.0
"""Thousandths of a GPU in one level. Nodes of one level get equal scores, so that the order of names fills them one
after another. It is the step of the published scheduler plugin, int(100 x sigmoid(x / 1000)), at 0. Values from 10 to
200 differ by at most 0.1 percentage points of allocated GPUs in the benchmark (docs/placement.md)."""
PRICE = 20.0
"""The weight of a GPU lost in share prices against a GPU of waste, so that the price decides first. Values from 5 to 40
are alike in the benchmark; 0 costs 0.35 percentage points of allocated GPUs on the published trace, and 1.3 on the
trace of shares alone."""
HALF_WAY = 25.0
"""Levels, together one GPU, at which the score is half-way between the middle and its end, so that one GPU counts as
much as a quarter of the range of another scorer. A guess."""


def fragmentation(demand: Demand, node: Node) -> float:
    """Prefer the node where the pod wastes the least GPU capacity for expected pods, or uses what they cannot use.

    It scores as Packing before any pod was seen, and for MIG slices, whose layout it does not know. For a pod without
    GPUs a node without GPUs is best.
    """
    if demand.expected_demand is None or not _counts_gpus(demand):
        return packing(demand, node)
    if not demand.resources and not node.node_class.offered and not node.free.gpus:
        return 1.0
    return _score(demand, node.node_class.product, node.free.cpu_milli, free_gpus(node.free))


@lru_cache(STATES_KEPT)
def _score(demand: Demand, product: str | None, cpu: int | None, gpus: GPUs) -> float:
    level = _level(demand, product, cpu, gpus)
    return 0.0 if level is None else 0.5 + level / (HALF_WAY + abs(level)) / 2


def _level(demand: Demand, product: str | None, cpu: int | None, gpus: GPUs) -> int | None:
    """Give the gain of placing a pod on a node in whole levels, rounded down; None if it does not fit.

    A share takes the fullest GPU on which it fits. Where GPUs are only counted it takes an idle GPU, on which no
    requested size has a loss by the prices.
    """
    expected_demand = demand.expected_demand
    possible = placements(gpus, sum(amount for _, amount in demand.resources), demand.share_milli)
    if expected_demand is None or not possible:
        return None
    after = possible[0]
    left = None if cpu is None else cpu - demand.cpu_milli
    gain = wasted_milli(expected_demand, product, cpu, gpus) - wasted_milli(expected_demand, product, left, after)
    taken = sum(gpus) - sum(after)
    gain -= scarcity(expected_demand).get(product or "", 0.0) * taken
    if demand.share_milli and (priced := share_prices(expected_demand)) is not None:
        tightest = min(size for size in gpus if size >= demand.share_milli)
        gain -= PRICE * WHOLE_MILLI * priced.loss(tightest, demand.share_milli)
    return int(gain // LEVEL_MILLI)


@lru_cache(STATES_KEPT)
def _counts_gpus(demand: Demand) -> bool:
    """Tell whether the demand is for GPUs by resource, or for none; MIG slices and claims are not scored here."""
    return not any(profile_of(name) for name, _ in demand.resources) and bool(demand.resources or not demand.claims)
