# SPDX-License-Identifier: Apache-2.0
"""Why a node cannot serve a wish now: the units that bound pods hold, and the memory that they have declared."""

import re
from collections.abc import Sequence

from tests.placement import twin_node
from tests.placement.twin_world import RawNode, RawPod, Wish


def free_causes(wish: Wish, node: RawNode, pods: Sequence[RawPod]) -> set[str]:
    """Name every reason that an eviction could remove (docs/reference/reasons.md#free-reasons).

    A pod that declares no memory takes nothing off a budget, even one that is already exceeded
    (docs/reference/sharing-and-memory.md#memory-budgets).
    """
    reasons = set()
    living = [pod for pod in pods if not pod.done]
    for resource, amount in wish.asked.items():
        held = sum(units for pod in living for name, units in pod.holds if name == resource)
        if held + amount > node.offers(resource):
            reasons.add("InsufficientGPUs")
        promised = sum(declared(pod.memory) * units for pod in living for name, units in pod.holds if name == resource)
        budget = budget_of(resource, node)
        own = declared(wish.memory) * amount
        if budget is not None and own and promised + own > budget:
            reasons.add("GPUMemoryBudgetExceeded")
    return reasons


def declared(text: str | None) -> int:
    """Read the MiB that an annotation declares for each unit; 0 if it is absent or does not parse."""
    if text is None or not re.fullmatch(r"\d+(Gi|GB|Mi)", text):
        return 0
    return int(text[:-2]) * (1 if text.endswith("Mi") else 1024)


def budget_of(resource: str, node: RawNode) -> int | None:
    """Compute the MiB that shares may declare together (docs/reference/sharing-and-memory.md#memory-budgets).

    None means that the GPUs are not shared, that their memory is unknown, or that HAMi shares them, which limits memory
    itself.
    """
    if twin_node.unit_of(resource, node) not in ("share", "mps-share"):
        return None
    memory = None if node.hami else twin_node.unit_memory(resource, node)[0]
    return None if memory is None else memory * (node.offers(resource) // twin_node.replicas(resource, node))
