# SPDX-License-Identifier: Apache-2.0
"""Bookings: the sum of what bound pods request of each node's resources, CPU and memory among them. A part of State.

Explaining reads it, and of nodes with GPUs the scorers see the CPU that is left. A pod's event costs what the pod has
of resources, whatever the fleet's size; pods that ask the same share one tuple.
"""

from collections.abc import Mapping

from app.kube.pod_requests import CORE_MILLI, CPU, PODS, Amounts, PodRequests, quantity_units
from app.nodes.model import Node

NOTHING: Mapping[str, int] = {}


class NodeRequests:
    """Requests by pod UID, and their sum by node. A node's sum is replaced, never changed: readers may keep it."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRequests] = {}
        self._same: dict[PodRequests, PodRequests] = {}
        self.used: dict[str, Mapping[str, int]] = {}

    def take(self, uid: str, booking: PodRequests | None) -> set[str]:
        """Take in what a pod has booked; None: nothing, or no more. Names the nodes of which the sum is another now."""
        known = self._pods.get(uid)
        if known == booking:
            return set()
        if known is not None:
            del self._pods[uid]
            self._add(known, -1)
        if booking is not None:
            self._pods[uid] = self._shared(booking)
            self._add(booking, 1)
        return {each.node for each in (known, booking) if each is not None}

    def cpu_left(self, node: Node) -> int | None:
        """Say how much CPU of a node no pod has requested, in milli; None where there are no GPUs, or nothing is known.

        In whole cores: a pod of a tenth of one mostly changes nothing that a verdict was remembered for.
        """
        amount = node.allocatable.get(CPU)
        if amount is None or not node.has_gpus:
            return None
        left = quantity_units(CPU, str(amount)) - self.used.get(node.name, NOTHING).get(CPU, 0)
        return left // CORE_MILLI * CORE_MILLI

    def _shared(self, booking: PodRequests) -> PodRequests:
        """Give the one object for all equal ones; what stood only for pods that are gone is let go now and then."""
        if len(self._same) > 2 * len(self._pods) + SPARE:
            self._same = {each: each for each in self._pods.values()}
        return self._same.setdefault(booking, booking)

    def _add(self, booking: PodRequests, sign: int) -> None:
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
