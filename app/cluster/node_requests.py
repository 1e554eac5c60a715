# SPDX-License-Identifier: Apache-2.0
"""The sum of the requests of bound pods on each node, CPU and memory among them. A part of State.

Explanations read it, and for nodes with GPUs the scorers read the unrequested CPU. An event of a pod costs the number
of its resources, in a fleet of any size.
"""

from collections.abc import Mapping

from app.kube.pod_requests import CORE_MILLI, CPU, PODS, Amounts, PodRequests, quantity_units
from app.nodes.model import Node

NOTHING: Mapping[str, int] = {}


class NodeRequests:
    """Requests by pod UID, and their sum by node. A node's sum is replaced, never changed, so readers may keep it."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRequests] = {}
        self.used: dict[str, Mapping[str, int]] = {}

    def put(self, uid: str, requests: PodRequests | None) -> set[str]:
        """Set what a pod requests, None for nothing; return the nodes whose sum changed."""
        before = self._pods.get(uid)
        if before == requests:
            return set()
        if before is not None:
            del self._pods[uid]
            self._add(before, -1)
        if requests is not None:
            self._pods[uid] = requests
            self._add(requests, 1)
        return {changed.node for changed in (before, requests) if changed is not None}

    def cpu_left(self, node: Node) -> int | None:
        """Return the milli-CPU of a node that no pod requests; None without GPUs or if the amount is unknown.

        It is rounded to whole cores, so that small pods seldom invalidate cached verdicts.
        """
        amount = node.allocatable.get(CPU)
        if amount is None or not node.has_gpus:
            return None
        left = quantity_units(CPU, str(amount)) - self.used.get(node.name, NOTHING).get(CPU, 0)
        return left // CORE_MILLI * CORE_MILLI

    def _add(self, requests: PodRequests, sign: int) -> None:
        used = {**self.used.get(requests.node, NOTHING)}
        amounts: Amounts = (*requests.amounts, (PODS, 1))
        for resource, amount in amounts:
            used[resource] = used.get(resource, 0) + sign * amount
        if used[PODS]:
            self.used[requests.node] = used
        else:
            del self.used[requests.node]
