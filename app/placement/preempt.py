# SPDX-License-Identifier: Apache-2.0
"""The preempt verb: only nodes on which the evictions would let the pod run (INTERFACES §6).

kube-scheduler never asks filter about preemption: a pod that filter refuses everywhere evicted ten pods on
five nodes (CONTROL_PLANE §5, traps). Dropping such nodes here is what keeps running pods alive.
"""

from collections.abc import Mapping
from typing import TypeVar

from app.nodeclass import Node
from app.placement.engine import judge_class, judge_free
from app.policy.demand import Demand

Victims = TypeVar("Victims")


def spare(
    demand: Demand, candidates: Mapping[str, Victims], nodes: Mapping[str, Node], empty: set[str]
) -> dict[str, Victims]:
    """Keep the candidates where the given victims help, each with its victims as given.

    `empty`: names of candidates without victims. A node we do not know is dropped: nothing says it would help.
    """
    return {
        name: victims
        for name, victims in candidates.items()
        if name not in empty and (node := nodes.get(name)) is not None and eviction_helps(demand, node)
    }


def eviction_helps(demand: Demand, node: Node) -> bool:
    """Tell whether the pod could run there with victims gone; what kube-scheduler counts itself is left to it."""
    if not demand.judged:
        return True
    return judge_class(demand, node.node_class) is None and judge_free(demand, node.free, recount=False) is None
