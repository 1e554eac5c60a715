# SPDX-License-Identifier: Apache-2.0
"""The Fragmentation scorer: how much GPU capacity a placement wastes for expected pods.

It adds three losses in thousandths of a GPU: waste (waste_score.py), share prices (share_prices.py), and scarcity
(scarcity.py).
"""

from collections.abc import Callable
from functools import lru_cache

from app.knowledge.mig_profiles import profile_of
from app.nodes.model import WHOLE_MILLI, Node
from app.placement.packing import packing
from app.placement.scarcity import scarcity
from app.placement.share_prices import share_prices
from app.placement.unusable_capacity import STATES_KEPT, GPUs, free_gpus, placements
from app.placement.waste_score import WasteByCPU
from app.policy.demand import Demand
from app.policy.expected_demand import ExpectedDemand

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
BESIDE_FREE = 0.1
"""The part of a free GPU that a pod without GPUs costs beside it. Such pods are spread over nodes that score alike, and
without this each idle node gets one, so that pods that need most of a node's CPU find none. On the synthetic trace (60
nodes, six seeds) 0 costs 0.2 percentage points of allocated GPUs, 0.3 with gpuspec33 and 3 with cpu250; values from 0.1
to 0.4 differ by 0.2 at most with a shortlist."""
NOTHING_WASTED = 0.5
"""The score of a placement that neither wastes nor saves GPU capacity."""
SCORES_KEPT = 1 << 13
"""Combinations of a demand, a product and free GPUs in the cache; one takes some 1.5 kB, and 64 demands on the fleet of
`make bench` have 4,600."""

ScoreByCPU = Callable[[int | None], float]
"""The score of a node by its free CPU in thousandths of a core, None if that is not known."""


def fragmentation(demand: Demand, node: Node) -> float:
    """Prefer the node where the pod wastes the least GPU capacity for expected pods, or uses what they cannot use.

    It scores as Packing before any pod was seen, and for MIG slices, whose layout it does not know. For a pod without
    GPUs a node without GPUs is best; before any GPU pod was seen, all nodes with GPUs are alike to it.
    """
    return fragmentation_by_cpu(demand, node)(node.free_cpu_milli)


def fragmentation_by_cpu(demand: Demand, node: Node) -> ScoreByCPU:
    """Give the score of nodes that differ from a node at most in their free CPU."""
    if not demand.requests_gpus and not node.has_gpus:
        same = 1.0
    elif demand.expected_demand is None or not _counts_gpus(demand):
        same = packing(demand, node) if demand.requests_gpus else NOTHING_WASTED
    else:
        return _score_by_cpu(demand, demand.expected_demand, node.node_class.product, free_gpus(node.free))
    return lambda _cpu: same


@lru_cache(SCORES_KEPT)
def _score_by_cpu(demand: Demand, expected_demand: ExpectedDemand, product: str | None, gpus: GPUs) -> ScoreByCPU:
    """Give the score by the gain of placing a pod on a node in whole levels, rounded down; 0 if it does not fit.

    A share takes the fullest GPU on which it fits. Where GPUs are only counted it takes an idle GPU, on which no
    requested size has a loss by the prices.
    """
    possible = placements(gpus, sum(amount for _, amount in demand.resources), demand.share_milli)
    if not possible:
        return lambda _cpu: 0.0
    after = possible[0]
    now, then = WasteByCPU(expected_demand, product, gpus), WasteByCPU(expected_demand, product, after)
    scarce = scarcity(expected_demand).get(product or "", 0.0) * (sum(gpus) - sum(after))
    price = _price(demand, expected_demand, gpus)

    def score(cpu: int | None) -> float:
        left = None if cpu is None else cpu - demand.cpu_milli
        gain = now.wasted_milli(cpu) - then.wasted_milli(left) - scarce - price
        level = int(gain // LEVEL_MILLI)
        return NOTHING_WASTED + level / (HALF_WAY + abs(level)) / 2

    return score


def _price(demand: Demand, expected_demand: ExpectedDemand, gpus: GPUs) -> float:
    """Give the loss by the prices of a share on the fullest GPU on which it fits; 0 for whole GPUs.

    A pod without GPUs pays for each free GPU of the node (BESIDE_FREE).
    """
    if not demand.requests_gpus:
        return BESIDE_FREE * sum(gpus)
    priced = share_prices(expected_demand) if demand.share_milli else None
    if priced is None:
        return 0.0
    tightest = min(size for size in gpus if size >= demand.share_milli)
    return PRICE * WHOLE_MILLI * priced.loss(tightest, demand.share_milli)


@lru_cache(STATES_KEPT)
def _counts_gpus(demand: Demand) -> bool:
    """Tell whether the demand is for GPUs by resource, or for none; MIG slices and claims are not scored here."""
    return not any(profile_of(name) for name, _ in demand.resources) and bool(demand.resources or not demand.claims)
