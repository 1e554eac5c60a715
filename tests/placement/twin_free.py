# SPDX-License-Identifier: Apache-2.0
"""Why a node cannot serve a wish now: units that bound pods hold, and the memory that shares have promised."""

import re
from collections.abc import Sequence

from tests.placement import twin_node as said
from tests.placement.twin_world import RawNode, RawPod, Wish


def free_causes(wish: Wish, node: RawNode, pods: Sequence[RawPod]) -> set[str]:
    """Name every reason that an eviction could mend (docs/reference/reasons.md#free-reasons).

    A pod that declares nothing takes nothing off a budget, be it overrun already
    (docs/reference/sharing-and-memory.md#memory-budgets).
    """
    found = set()
    living = [pod for pod in pods if not pod.done]
    for resource, amount in wish.asked.items():
        held = sum(units for pod in living for name, units in pod.holds if name == resource)
        if held + amount > node.offers(resource):
            found.add("InsufficientGPUs")
        promised = sum(declared(pod.memory) * units for pod in living for name, units in pod.holds if name == resource)
        budget = budget_of(resource, node)
        own = declared(wish.memory) * amount
        if budget is not None and own and promised + own > budget:
            found.add("GPUMemoryBudgetExceeded")
    return found


def declared(text: str | None) -> int:
    """Read what an annotation declares per unit, in MiB; nothing, or what cannot be read, counts 0."""
    if text is None or not re.fullmatch(r"\d+(Gi|GB|Mi)", text):
        return 0
    return int(text[:-2]) * (1 if text.endswith("Mi") else 1024)


def budget_of(resource: str, node: RawNode) -> int | None:
    """Compute the MiB that shares may promise together (docs/reference/sharing-and-memory.md#memory-budgets).

    None: not shared, memory unknown, or shared by HAMi, which gives memory out itself.
    """
    if said.unit_of(resource, node) not in ("share", "mps-share"):
        return None
    memory = None if node.hami else said.unit_memory(resource, node)[0]
    return None if memory is None else memory * (node.offers(resource) // said.replicas(resource, node))
