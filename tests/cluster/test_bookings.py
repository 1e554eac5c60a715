# SPDX-License-Identifier: Apache-2.0
"""Bookings: the sums by node, after any order of events, equal a count from scratch (F83)."""

from collections import Counter
from random import Random

from app.cluster.bookings import SPARE, Bookings
from app.ordinary import Booking


def drawn(random: Random) -> Booking | None:
    if random.random() < 0.2:
        return None
    return Booking(random.choice("abc"), (("cpu", random.choice([100, 250])), ("memory", random.choice([1, 2]))))


def test_any_order_of_events_equals_a_count_from_scratch() -> None:
    """F83: pods that come, change, move and go."""
    random, bookings, alive = Random(4), Bookings(), {}
    for _ in range(5000):
        uid, booking = str(random.randrange(40)), drawn(random)
        alive[uid] = booking
        bookings.take(uid, booking)
    expected: dict[str, Counter[str]] = {}
    for each in filter(None, alive.values()):
        expected.setdefault(each.node, Counter()).update({**dict(each.amounts), "pods": 1})

    assert {node: dict(used) for node, used in bookings.used.items()} == {
        node: dict(used) for node, used in expected.items()
    }


def test_sum_that_somebody_has_taken_does_not_change() -> None:
    """INTERFACES §10, State: a view is a shallow copy."""
    bookings = Bookings()
    bookings.take("p", Booking("n", (("cpu", 1),)))
    taken = bookings.used["n"]

    bookings.take("q", Booking("n", (("cpu", 1),)))

    assert taken == {"cpu": 1, "pods": 1}


def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    bookings = Bookings()
    for number in range(3 * SPARE):
        bookings.take(str(number), Booking(f"n{number}", (("cpu", number),)))
        bookings.take(str(number), None)

    assert bookings.used == {}
    assert len(bookings._same) <= SPARE + 1
