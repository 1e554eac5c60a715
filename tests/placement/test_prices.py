# SPDX-License-Identifier: Apache-2.0
"""Prices of GPU shares against every corner of the linear program, and the loss that a placement causes."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.placement.capacity_prices import CELLS, SIZES_KEPT, share_prices, solve_prices
from app.policy.demand import DemandClass
from tests.placement.expected_demands import expected_from_classes

COUNTS = st.dictionaries(st.integers(15, 99), st.integers(1, 9), min_size=1, max_size=3).map(
    lambda counts: {size: float(counts[size]) for size in sorted(counts)}
)


def patterns(sizes: Sequence[int], room: int = CELLS) -> list[tuple[int, ...]]:
    """List every way to fill a GPU with shares of these sizes, as amounts by size."""
    amounts = [range(room // size + 1) for size in sizes]
    return [
        filling
        for filling in product(*amounts)
        if sum(n * size for n, size in zip(filling, sizes, strict=True)) <= room
    ]


def corners(sizes: Sequence[int]) -> Iterator[tuple[Fraction, ...]]:
    """Yield every point where as many bounds meet as there are sizes, and which violates no bound."""
    count = len(sizes)
    bounds = [([Fraction(n) for n in filling], Fraction(1)) for filling in patterns(sizes) if any(filling)]
    bounds += [([Fraction(place == other) for other in range(count)], Fraction(0)) for place in range(count)]
    for chosen in combinations(bounds, count):
        point = meet([list(row) for row, _ in chosen], [limit for _, limit in chosen])
        if point is not None and min(point) >= 0 and all(worth(row, point) <= limit for row, limit in bounds if limit):
            yield point


def meet(rows: list[list[Fraction]], limits: list[Fraction]) -> tuple[Fraction, ...] | None:
    """Solve the linear equations; None if they are not independent."""
    count = len(rows)
    table = [[*row, limit] for row, limit in zip(rows, limits, strict=True)]
    for place in range(count):
        pivot = next((row for row in range(place, count) if table[row][place]), None)
        if pivot is None:
            return None
        table[place], table[pivot] = table[pivot], table[place]
        table[place] = [cell / table[place][place] for cell in table[place]]
        for row in range(count):
            if row != place:
                factor = table[row][place]
                table[row] = [cell - factor * other for cell, other in zip(table[row], table[place], strict=True)]
    return tuple(row[-1] for row in table)


def worth(row: Sequence[float | Fraction], point: Sequence[float | Fraction]) -> float | Fraction:
    return sum((n * value for n, value in zip(row, point, strict=True)), Fraction(0))


@settings(max_examples=10)
@given(COUNTS)
def test_prices_are_the_best_corner_of_the_linear_program(counts: dict[int, float]) -> None:
    """F52: no filling of a GPU costs more than 1, and no other prices earn more."""
    sizes = list(counts)

    solved = solve_prices(counts)

    size_prices = [solved.price[size] for size in sizes]
    assert all(worth(pattern, size_prices) <= 1 + 1e-6 for pattern in patterns(sizes))
    best = max(worth(list(counts.values()), point) for point in corners(sizes))
    assert worth(list(counts.values()), size_prices) == pytest.approx(float(best))


@settings(max_examples=10)
@given(COUNTS, st.integers(0, CELLS))
def test_worth_is_that_of_the_dearest_filling(counts: dict[int, float], room: int) -> None:
    """F52."""
    solved = solve_prices(counts)

    size_prices = [solved.price[size] for size in counts]
    assert solved.worth[room] == pytest.approx(
        float(max(worth(pattern, size_prices) for pattern in patterns(list(counts), room)))
    )


def test_share_that_leaves_an_odd_rest_loses_what_the_room_was_worth() -> None:
    """F52: half a GPU takes the room of a share of 600 thousandths, which fits nowhere else."""
    prices = share_prices(
        expected_from_classes([DemandClass(gpus=1, share_milli=500), DemandClass(gpus=1, share_milli=600)])
    )

    assert prices is not None
    assert (prices.price[50], prices.price[60]) == pytest.approx((0.5, 1.0))
    assert prices.loss(600, 500) == pytest.approx(0.5)
    assert prices.loss(500, 500) == pytest.approx(0.0)
    assert share_prices(expected_from_classes([DemandClass(gpus=1)])) is None


@settings(max_examples=10)
@given(COUNTS)
def test_no_size_that_is_asked_loses_on_an_idle_gpu(counts: dict[int, float]) -> None:
    """F52, F55: so prices add nothing on nodes whose GPUs are only counted."""
    prices = solve_prices(counts)

    assert [prices.loss(1000, 10 * size) for size in counts] == pytest.approx([0.0] * len(counts), abs=1e-6)


def test_workload_of_odd_sizes_is_priced_by_its_most_popular_ones() -> None:
    """F52, F125."""
    prices = share_prices(
        expected_from_classes(
            [DemandClass(gpus=1, share_milli=10 * size) for size in range(1, 100) for _ in range(1 + size % 3)]
        )
    )

    assert prices is not None
    assert len(prices.price) == len(prices.worth) == CELLS + 1
    assert prices.worth[CELLS] == pytest.approx(1.0)
    assert SIZES_KEPT < 99
