# SPDX-License-Identifier: Apache-2.0
"""Scarcity: the price of the GPUs of each product, by the demand of pods that can use only some products (F51)."""

from collections.abc import Mapping
from functools import lru_cache

from app.placement.filters import allows_product
from app.policy.expected_demand import DemandClass, ExpectedDemand

RARE_PRICE = 0.1
"""The price of the rarest product before any pod has requested it, relative to a GPU that all pods can use, as a
reserve for constraints that have not occurred yet. On the published trace with constraints only in its second half,
96.1 % of the GPUs are given out with 0.1, and 88.8 % with 0; values from 0 to 0.2 are alike elsewhere."""
UNSEEN_MILLI = 8_000
"""The GPU capacity in thousandths of the pod that is taken to have requested each product alone before any pod was seen:
a whole node of eight GPUs. Without it the first 700 pods of one seed of ten filled a product of which only large pods,
one in 300, can use nothing else, and of the published trace with constraints 2.3 % fewer GPUs were given out."""
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
    requested_milli = sum(probability * demand_class.milli for demand_class, probability in expected_demand.classes)
    unseen = UNSEEN_MILLI / (expected_demand.seen_milli + UNSEEN_MILLI * len(free))
    known = 1 - unseen * len(free)
    for demand_class, milli in _by_constraint(expected_demand).items():
        usable = [product for product in free if allows_product(demand_class, product)]
        room = max(sum(free[product] for product in usable), 1)
        for product in usable:
            prices[product] += known * milli / requested_milli * sum(free.values()) / room
    return {product: price + unseen * sum(free.values()) / max(free[product], 1) for product, price in prices.items()}


def _by_constraint(expected_demand: ExpectedDemand) -> Mapping[DemandClass, float]:
    """Sum up the requested thousandths of a GPU by constraint on the product."""
    requested: dict[DemandClass, float] = {}
    for demand_class, probability in expected_demand.classes:
        if demand_class.constrained and demand_class.gpus:
            constraint = DemandClass(products=demand_class.products, denied_products=demand_class.denied_products)
            requested[constraint] = requested.get(constraint, 0.0) + probability * demand_class.milli
    return requested
