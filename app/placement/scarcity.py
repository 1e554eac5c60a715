# SPDX-License-Identifier: Apache-2.0
"""Scarcity: what a GPU of a product is worth to pods that can use no other (F51)."""

from collections.abc import Mapping
from functools import lru_cache

from app.placement.filters import allows
from app.policy.expected_demand import DemandClass, ExpectedDemand

RARE = 0.1
"""What a milli of the rarest product costs, in milli, before anybody asked for one: insurance against constraints that
nobody has shown yet. Of the published trace with constraints in its second half only it gives out 88.8 % with 0 and
96.1 with 0.1; 0 to 0.2 are alike elsewhere."""
OUTLOOKS_KEPT = 16


@lru_cache(OUTLOOKS_KEPT)
def scarcity(outlook: ExpectedDemand) -> Mapping[str, float]:
    """Give what a milli of each product costs, in milli of a GPU that anybody may use.

    By each set of products that pods ask for: its share of what is asked, over its share of what is free. Kept as
    it was when the outlook was made: a renewal every 1,000 arrivals gives out as much as one with each (95.4 % of the
    trace with constraints; never renewed: 95.1).
    """
    free = dict(outlook.free)
    most = max(free.values(), default=0)
    if not most:
        return {}
    found = {product: RARE * (1 - milli / most) for product, milli in free.items()}
    asked = sum(probability * ask.milli for ask, probability in outlook.asks)
    for ask, milli in _by_constraint(outlook).items():
        able = [product for product in free if allows(ask, product)]
        room = max(sum(free[product] for product in able), 1)
        for product in able:
            found[product] += milli / asked * sum(free.values()) / room
    return found


def _by_constraint(outlook: ExpectedDemand) -> Mapping[DemandClass, float]:
    """Sum up the milli that are asked under each constraint on the product."""
    found: dict[DemandClass, float] = {}
    for ask, probability in outlook.asks:
        if ask.constrained and ask.gpus:
            constraint = DemandClass(products=ask.products, denied_products=ask.denied_products)
            found[constraint] = found.get(constraint, 0.0) + probability * ask.milli
    return found
