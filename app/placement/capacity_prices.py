# SPDX-License-Identifier: Apache-2.0
"""Prices of GPU capacity for scorers: of shares of a GPU by size, and of the GPUs of a scarce product.

They are no money; prices in a currency are in usage/units.py.

Prices of shares are the dual of the cutting-stock linear program (Gilmore and Gomory, Operations Research 9, 1961): the
highest prices at which no way to fill one GPU costs more than 1. A share that fills a GPU well pays for the capacity it
takes, and one that leaves an unusable rest does not; the difference is its loss. The ways to fill a GPU are too many to
list, so that the program is solved by column generation: each round adds the most valuable filling, which a knapsack
over 100 cells finds.

Scarcity is the price of the GPUs of each product, by the demand of pods that can use only some products.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from app.nodes.model import WHOLE_MILLI
from app.placement.filters import allows_product
from app.placement.unusable_capacity import EXPECTED_DEMANDS_KEPT
from app.policy.demand import DemandClass, ExpectedDemand

CELL_MILLI = 10
"""Thousandths of a GPU to which sizes are rounded up, so that a GPU has 100 cells; sizes in the traces are whole
percents."""
CELLS = WHOLE_MILLI // CELL_MILLI
"""Cells of a whole GPU."""
SIZES_KEPT = 32
"""Sizes that are priced, the most frequent ones, to bound the cost for any workload; the published traces have 20."""
MOST_ROUNDS = 300
MOST_PIVOTS = 5_000
"""Bounds against endless cycling; the published traces need about 30 rounds of about 20 pivots."""
EPSILON = 1e-9
"""Differences below this count as rounding errors."""
PRICES_KEPT = 16
"""Results in the cache, one for each expected demand; few exist at a time."""


@dataclass(frozen=True, slots=True)
class SharePrices:
    """Prices relative to a whole GPU.

    `price[n]` is the price of a share of n cells, and `worth[n]` the value of n free cells of one GPU in the most
    valuable filling.
    """

    price: tuple[float, ...]
    worth: tuple[float, ...]

    def loss(self, free_milli: int, share_milli: int) -> float:
        """Give the worth that a GPU loses beyond the price of the share, in GPUs. The share must fit."""
        cells = -(-share_milli // CELL_MILLI)
        free = free_milli // CELL_MILLI
        return max(0.0, self.worth[free] - self.worth[max(0, free - cells)] - self.price[cells])


@lru_cache(PRICES_KEPT)
def share_prices(expected_demand: ExpectedDemand) -> SharePrices | None:
    """Compute the prices for the expected shares; None if no shares are expected."""
    counts: dict[int, float] = {}
    for demand_class, probability in expected_demand.classes:
        if demand_class.share_milli:
            cells = -(-demand_class.share_milli // CELL_MILLI)
            counts[cells] = counts.get(cells, 0.0) + probability
    popular = sorted(counts, key=lambda cells: (-counts[cells], cells))[:SIZES_KEPT]
    return solve_prices({cells: counts[cells] for cells in sorted(popular)}) if counts else None


def solve_prices(counts: Mapping[int, float]) -> SharePrices:
    """Compute the prices of sizes in cells, given the frequency of each.

    The price of a size that is not requested is the worth that it takes from an empty GPU.
    """
    sizes = tuple(counts)
    total = sum(counts.values())
    frequencies = [count / total for count in counts.values()]
    rows = [[float(CELLS // size) if row == column else 0.0 for column in range(len(sizes))]
            for row, size in enumerate(sizes)]  # fmt: skip
    for _ in range(MOST_ROUNDS):
        prices = _maximize(frequencies, rows)
        worth, pattern = _most_valuable_filling(sizes, prices)
        if worth[CELLS] <= 1.0 + EPSILON:
            break
        rows.append(pattern)
    price_by_size = dict(zip(sizes, prices, strict=True))
    price = [price_by_size.get(cells, worth[CELLS] - worth[CELLS - cells]) for cells in range(CELLS + 1)]
    return SharePrices(tuple(price), tuple(worth))


def _most_valuable_filling(sizes: Sequence[int], price: Sequence[float]) -> tuple[list[float], list[float]]:
    """Find the most valuable fillings: the worth of 0 to 100 free cells, and the number of each size in a whole GPU."""
    worth, last = [0.0] * (CELLS + 1), [-1] * (CELLS + 1)
    for cells in range(1, CELLS + 1):
        best, chosen = worth[cells - 1], -1
        for place, size in enumerate(sizes):
            if size <= cells and worth[cells - size] + price[place] > best + EPSILON / 1000:
                best, chosen = worth[cells - size] + price[place], place
        worth[cells], last[cells] = best, chosen
    pattern = [0.0] * len(sizes)
    left = CELLS
    while left > 0:
        if last[left] < 0:
            left -= 1
        else:
            pattern[last[left]] += 1
            left -= sizes[last[left]]
    return worth, pattern


class _Pivot(NamedTuple):
    row: int
    column: int


def _maximize(gain: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    """Maximize gain · x subject to rows · x ≤ 1 and x ≥ 0, by the simplex method from the slack basis."""
    width, height = len(gain), len(rows)
    table = [[*row, *(float(place == number) for place in range(height)), 1.0] for number, row in enumerate(rows)]
    table.append([*(-value for value in gain), *(0.0,) * (height + 1)])
    basis = list(range(width, width + height))
    for _ in range(MOST_PIVOTS):
        pivot = _pivot(table, basis)
        if pivot is None:
            break
        _apply_pivot(table, pivot)
        basis[pivot.row] = pivot.column
    solution = [0.0] * width
    for row, column in enumerate(basis):
        if column < width:
            solution[column] = table[row][-1]
    return solution


def _pivot(table: Sequence[Sequence[float]], basis: Sequence[int]) -> _Pivot | None:
    """Choose the steepest column and the tightest row; None if no column improves the solution."""
    last = table[-1]
    column = min(range(len(last) - 1), key=last.__getitem__)
    if last[column] >= -EPSILON:
        return None
    tight = [(row[-1] / row[column], basis[number], number) for number, row in enumerate(table[:-1])
             if row[column] > EPSILON]  # fmt: skip
    return _Pivot(min(tight)[2], column) if tight else None


def _apply_pivot(table: list[list[float]], pivot: _Pivot) -> None:
    chosen = table[pivot.row]
    divisor = chosen[pivot.column]
    chosen = table[pivot.row] = [value / divisor for value in chosen]
    for number, row in enumerate(table):
        factor = row[pivot.column]
        if number != pivot.row and abs(factor) > EPSILON / 1000:
            table[number] = [value - factor * other for value, other in zip(row, chosen, strict=True)]


RARE_PRICE = 0.1
"""The price of the rarest product before any pod has requested it, relative to a GPU that all pods can use, as a
reserve for constraints that have not occurred yet. On the published trace with constraints only in its second half,
96.1 % of the GPUs are given out with 0.1, and 88.8 % with 0; values from 0 to 0.2 are alike elsewhere."""
UNSEEN_MILLI = 8_000
"""The GPU capacity in thousandths of the pod that counts as having requested each product alone before any pod was
seen: a node of eight GPUs. Without it no pod seems to need a product until the first pod has asked for it, and it is
filled first: on one seed of the published trace with constraints 92.99 % of the GPUs were given out instead of 95.28 %
(docs/placement.md#what-is-learnt)."""


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
