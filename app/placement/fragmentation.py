# SPDX-License-Identifier: Apache-2.0
"""The Fragmentation scorer: how much of the GPUs a placement spoils for the pods that are expected (F51, F52, F61).

Three losses, in milli of a GPU: waste (waste.py), share prices (prices.py) and scarcity (scarcity.py).
"""

from functools import lru_cache

from app.knowledge.mig_profiles import profile_of
from app.nodes.model import Node
from app.placement.packing import WHOLE_MILLI, packing
from app.placement.scarcity import scarcity
from app.placement.share_prices import prices
from app.placement.stranded import STATES_KEPT, GPUs, free_gpus, placements
from app.placement.waste_score import waste
from app.policy.demand import Demand

LEVEL_MILLI = 40.0
"""Nodes within one level are equals, so that the order of names fills them one after another: the step of the published
scheduler plugin, int(100 x sigmoid(x / 1000)), at 0. From 10 to 200 the figures are alike within 0.1 points."""
PRICE = 20.0
"""What one GPU lost in worth counts beside one GPU of waste: the price decides first. 5 to 40 are alike; 0 costs 0.35
points of the published trace, and 1.3 of the one of shares alone."""
HALF_WAY = 25.0
"""Levels (a GPU) at which the score is half-way from the middle to its end: beside other scorers a GPU counts as much
as a quarter of their range (a guess)."""


def fragmentation(demand: Demand, node: Node) -> float:
    """Prefer the node where the pod spoils the least GPU for pods to come, or uses what is of no use to them.

    Before any pod was seen, and for slices, whose layout it does not know, as Packing. A pod without GPU spoils least
    where there is none.
    """
    if demand.outlook is None or not _in_gpus(demand):
        return packing(demand, node)
    if not demand.resources and not node.node_class.offered and not node.free.gpus:
        return 1.0
    return _score(demand, node.node_class.product, node.free.cpu_milli, free_gpus(node.free))


@lru_cache(STATES_KEPT)
def _score(demand: Demand, product: str | None, cpu: int | None, gpus: GPUs) -> float:
    found = _level(demand, product, cpu, gpus)
    return 0.0 if found is None else 0.5 + found / (HALF_WAY + abs(found)) / 2


def _level(demand: Demand, product: str | None, cpu: int | None, gpus: GPUs) -> int | None:
    """Give the gain of placing a pod in whole levels, rounded down; None where it has no room.

    A share takes the fullest GPU that has room. Where GPUs are only counted it takes an idle one, of which the prices
    say nothing: no size that is asked loses on an idle GPU.
    """
    outlook = demand.outlook
    ways = placements(gpus, sum(amount for _, amount in demand.resources), demand.share_milli)
    if outlook is None or not ways:
        return None
    after = ways[0]
    left = None if cpu is None else cpu - demand.cpu_milli
    gain = waste(outlook, product, cpu, gpus) - waste(outlook, product, left, after)
    taken = sum(gpus) - sum(after)
    gain -= scarcity(outlook).get(product or "", 0.0) * taken
    if demand.share_milli and (known := prices(outlook)) is not None:
        tightest = min(size for size in gpus if size >= demand.share_milli)
        gain -= PRICE * WHOLE_MILLI * known.loss(tightest, demand.share_milli)
    return int(gain // LEVEL_MILLI)


@lru_cache(STATES_KEPT)
def _in_gpus(demand: Demand) -> bool:
    """Tell whether what is asked are GPUs that are told apart, or none: no slices, and no claims on unnamed devices."""
    return not any(profile_of(name) for name, _ in demand.resources) and bool(demand.resources or not demand.claims)
