# SPDX-License-Identifier: Apache-2.0
"""Scarcity: the price of the GPUs of each product, by the demand of pods that can use only some products."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from app.placement.filters import allows_product
from app.policy.expected_demand import DemandClass, ExpectedDemand

RARE_PRICE = 0.1
"""The price of the rarest product before any pod has requested it, relative to a GPU that all pods can use, as a
reserve for constraints that have not occurred yet. On the published trace with constraints only in its second half,
96.1 % of the GPUs are given out with 0.1, and 88.8 % with 0; values from 0 to 0.2 are alike elsewhere."""
UNSEEN_MILLI = 8_000
"""The GPU capacity in thousandths of the pod that counts as having requested each product alone before any pod was
seen: a node of eight GPUs. Without it no pod seems to need a product until the first pod has asked for it, and it is
filled first: on one seed of the published trace with constraints 92.99 % of the GPUs were given out instead of 95.28 %
(docs/placement.md#what-is-learnt)."""
EXPECTED_DEMANDS_KEPT = 16
"""Expected demands in the cache; few exist at a time."""


@lru_cache(EXPECTED_DEMANDS_KEPT)
def scarcity(expected_demand: ExpectedDemand) -> Mapping[str, float]:
    """Give the price of each product, relative to a GPU that all pods can use.

    Each set of products that pods request adds its share of the requested GPUs over its share of the free GPUs, and so
    does each product alone, as if one pod had requested it (UNSEEN_MILLI): what few pods have shown is a guess. The
    prices stay as they are until the expected demand is computed anew. Doing that every 1,000 arrivals gives out as
    much as doing it at each arrival (95.4 % on the trace with constraints, and 95.1 % without any renewal).
    """
    free = dict(expected_demand.free)
    most = max(free.values(), default=0)
    if not most:
        return {}
    prices = {product: RARE_PRICE * (1 - milli / most) for product, milli in free.items()}
    unseen = UNSEEN_MILLI / (expected_demand.seen_milli + UNSEEN_MILLI * len(free))
    known = 1 - unseen * len(free)
    for limit, share in _limits(expected_demand):
        usable = [product for product in free if allows_product(limit, product)]
        room = max(sum(free[product] for product in usable), 1)
        for product in usable:
            prices[product] += known * share * sum(free.values()) / room
    return {product: price + unseen * sum(free.values()) / max(free[product], 1) for product, price in prices.items()}


def _limits(expected_demand: ExpectedDemand) -> Iterable[tuple[DemandClass, float]]:
    """List the limits to some products, each with its share of the requested GPU capacity."""
    if expected_demand.limits is not None:
        return expected_demand.limits
    requested: dict[DemandClass, float] = {}
    total = sum(probability * demand_class.milli for demand_class, probability in expected_demand.classes)
    for demand_class, probability in expected_demand.classes:
        if demand_class.constrained and demand_class.gpus:
            requested[demand_class.limit] = (
                requested.get(demand_class.limit, 0.0) + probability * demand_class.milli / total
            )
    return requested.items()
