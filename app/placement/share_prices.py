# SPDX-License-Identifier: Apache-2.0
"""Prices of shares of a GPU: what each size is worth where the sizes that are asked must be cut from whole GPUs (F52).

The dual of the cutting-stock linear program (Gilmore and Gomory, Operations Research 9, 1961): the highest prices at
which no way to fill one GPU costs more than 1. A share that fills a GPU well pays for the room it takes, one that
leaves an odd rest does not, and the loss says how much. Found by column generation: the ways to fill a GPU are too many
to list, so each round adds the dearest one, which a knapsack over 100 cells finds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from app.placement.packing import WHOLE_MILLI
from app.policy.expected_demand import ExpectedDemand

CELL_MILLI = 10
"""Sizes are rounded up to these: 100 cells a GPU; the traces' sizes are whole percents."""
CELLS = WHOLE_MILLI // CELL_MILLI
SIZES_KEPT = 32
"""Most popular sizes that are priced, so that a workload of odd sizes costs no more; the published traces have 20."""
MOST_ROUNDS = 300
MOST_PIVOTS = 5_000
"""Guards against cycling; the published traces need some 30 rounds of some 20 pivots."""
EPSILON = 1e-9
PRICES_KEPT = 16


@dataclass(frozen=True, slots=True)
class SharePrices:
    """`price`: of a share of so many cells; `worth`: of so many free cells of one GPU, filled the dearest way; 0..1."""

    price: tuple[float, ...]
    worth: tuple[float, ...]

    def loss(self, free_milli: int, share_milli: int) -> float:
        """Say what a GPU loses in worth beyond the price of the share that it takes, in GPUs. The share fits."""
        cells = -(-share_milli // CELL_MILLI)
        free = free_milli // CELL_MILLI
        return max(0.0, self.worth[free] - self.worth[max(0, free - cells)] - self.price[cells])


@lru_cache(PRICES_KEPT)
def prices(outlook: ExpectedDemand) -> SharePrices | None:
    """Price the shares that are expected; None where none are."""
    counts: dict[int, float] = {}
    for ask, probability in outlook.asks:
        if ask.share_milli:
            cells = -(-ask.share_milli // CELL_MILLI)
            counts[cells] = counts.get(cells, 0.0) + probability
    popular = sorted(counts, key=lambda cells: (-counts[cells], cells))[:SIZES_KEPT]
    return solve({cells: counts[cells] for cells in sorted(popular)}) if counts else None


def solve(counts: Mapping[int, float]) -> SharePrices:
    """Find the prices of sizes, in cells, that are asked so often; those that are not asked cost what they take from
    an empty GPU.
    """
    sizes = tuple(counts)
    asked = sum(counts.values())
    often = [count / asked for count in counts.values()]
    rows = [[float(CELLS // size) if row == column else 0.0 for column in range(len(sizes))]
            for row, size in enumerate(sizes)]  # fmt: skip
    for _ in range(MOST_ROUNDS):
        found = _maximum(often, rows)
        worth, pattern = _dearest(sizes, found)
        if worth[CELLS] <= 1.0 + EPSILON:
            break
        rows.append(pattern)
    known = dict(zip(sizes, found, strict=True))
    price = [known.get(cells, worth[CELLS] - worth[CELLS - cells]) for cells in range(CELLS + 1)]
    return SharePrices(tuple(price), tuple(worth))


def _dearest(sizes: Sequence[int], price: Sequence[float]) -> tuple[list[float], list[float]]:
    """Fill a GPU the dearest way: the worth of 0 to 100 free cells, and how many of each size are in a whole GPU."""
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


def _maximum(gain: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    """Maximise gain · x where rows · x ≤ 1 and x ≥ 0, by the simplex method from the slack basis."""
    width, height = len(gain), len(rows)
    table = [[*row, *(float(place == number) for place in range(height)), 1.0] for number, row in enumerate(rows)]
    table.append([*(-each for each in gain), *(0.0,) * (height + 1)])
    basis = list(range(width, width + height))
    for _ in range(MOST_PIVOTS):
        pivot = _pivot(table, basis)
        if pivot is None:
            break
        _turn(table, pivot)
        basis[pivot.row] = pivot.column
    found = [0.0] * width
    for row, column in enumerate(basis):
        if column < width:
            found[column] = table[row][-1]
    return found


def _pivot(table: Sequence[Sequence[float]], basis: Sequence[int]) -> _Pivot | None:
    """Choose by the steepest column and the tightest row; None where nothing gains."""
    last = table[-1]
    column = min(range(len(last) - 1), key=last.__getitem__)
    if last[column] >= -EPSILON:
        return None
    tight = [(row[-1] / row[column], basis[number], number) for number, row in enumerate(table[:-1])
             if row[column] > EPSILON]  # fmt: skip
    return _Pivot(min(tight)[2], column) if tight else None


def _turn(table: list[list[float]], pivot: _Pivot) -> None:
    chosen = table[pivot.row]
    divisor = chosen[pivot.column]
    chosen = table[pivot.row] = [each / divisor for each in chosen]
    for number, row in enumerate(table):
        factor = row[pivot.column]
        if number != pivot.row and abs(factor) > EPSILON / 1000:
            table[number] = [each - factor * other for each, other in zip(row, chosen, strict=True)]
