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
"""A function that gives a node, by name, as it would be without the pods of these UIDs; None for an unknown node."""


def helpful_candidates(
    demand: Demand, candidates: Mapping[str, Victims], uids: Mapping[str, Collection[str]], without: Without
) -> dict[str, Victims]:
    """Keep the candidate nodes on which evicting the given victims helps, each with its victims as given.

    `uids` are the UIDs of the victims on each candidate. Candidates without victims and unknown nodes are dropped,
    since it is not known that they would help.
    """
    return {
        name: victims
        for name, victims in candidates.items()
        if uids[name] and (node := without(name, uids[name])) is not None and eviction_helps(demand, node)
    }


def eviction_helps(demand: Demand, node: Node) -> bool:
    """Tell whether the pod fits on a node without the victims, except for what kube-scheduler counts itself."""
    return judge(demand, node, recount=False) is None
