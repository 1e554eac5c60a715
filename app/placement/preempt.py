# SPDX-License-Identifier: Apache-2.0
"""The preempt verb: only nodes on which the evictions would let the pod run (docs/reference/scores.md#preemption).

kube-scheduler never asks filter about preemption: a pod that filter refuses everywhere evicted ten pods on five nodes
(docs/reference/control-plane.md#preemption-of-the-scheduler). Dropping such nodes here is what keeps running pods
alive.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from app.nodes.model import Node
from app.placement.engine import judge
from app.policy.demand import Demand

Victims = TypeVar("Victims")


Without = Callable[[str, Collection[str]], Node | None]
"""Gives a node as it would be with the pods of these UIDs gone; None for one that is not known."""


def spare(
    demand: Demand, candidates: Mapping[str, Victims], uids: Mapping[str, Collection[str]], without: Without
) -> dict[str, Victims]:
    """Keep the candidates where the given victims help, each with its victims as given.

    `uids`: of each candidate's victims. A candidate without victims is dropped, and so is a node that we do not know:
    nothing says that it would help.
    """
    return {
        name: victims
        for name, victims in candidates.items()
        if uids[name] and (node := without(name, uids[name])) is not None and eviction_helps(demand, node)
    }


def eviction_helps(demand: Demand, node: Node) -> bool:
    """Tell whether the pod could run on a node whose victims are gone; what kube-scheduler counts is left to it."""
    return judge(demand, node, recount=False) is None
