# SPDX-License-Identifier: Apache-2.0
"""Bookings: the sum of what bound pods request of each node's resources, CPU and memory among them. A part of State.

Only explaining reads it. A pod's event costs what the pod has of resources, whatever the fleet's size; pods that ask
the same share one tuple.
"""

from collections.abc import Mapping

from app.ordinary import PODS, Amounts, Booking

NOTHING: Mapping[str, int] = {}


class Bookings:
    """Requests by pod UID, and their sum by node. A node's sum is replaced, never changed: readers may keep it."""

    def __init__(self) -> None:
        self._pods: dict[str, Booking] = {}
        self._same: dict[Booking, Booking] = {}
        self.used: dict[str, Mapping[str, int]] = {}

    def take(self, uid: str, booking: Booking | None) -> None:
        """Take in what a pod has booked; None: nothing, or no more."""
        known = self._pods.get(uid)
        if known == booking:
            return
        if known is not None:
            del self._pods[uid]
            self._add(known, -1)
        if booking is not None:
            self._pods[uid] = self._shared(booking)
            self._add(booking, 1)

    def _shared(self, booking: Booking) -> Booking:
        """Give the one object for all equal ones; what stood only for pods that are gone is let go now and then."""
        if len(self._same) > 2 * len(self._pods) + SPARE:
            self._same = {each: each for each in self._pods.values()}
        return self._same.setdefault(booking, booking)

    def _add(self, booking: Booking, sign: int) -> None:
        used = {**self.used.get(booking.node, NOTHING)}
        amounts: Amounts = (*booking.amounts, (PODS, 1))
        for resource, amount in amounts:
            used[resource] = used.get(resource, 0) + sign * amount
        if used[PODS]:
            self.used[booking.node] = used
        else:
            del self.used[booking.node]


SPARE = 1024
"""Bookings kept beyond two a pod before those of no pod are let go (a guess; one is some 200 bytes)."""
