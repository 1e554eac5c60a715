# SPDX-License-Identifier: Apache-2.0
"""Which of the nodes that fit filter names: all, the best one, or the shortlist (`serve --filter-answer`)."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

from app.api.backend import Backend
from app.intree.soft_constraints import SoftConstraints
from app.kube.pods import Pod
from app.nodes.model import Node
from app.placement.ranking import best_in_turn, best_of_each, best_position
from app.policy.demand import Demand


@dataclass(frozen=True, slots=True)
class FittingNodes:
    """The nodes that fit, at least one: their names, their totals in the same order, and how to find one by name."""

    names: Sequence[str]
    totals: Sequence[float]
    node: Callable[[str], Node]

    def without(self, excluded: frozenset[str]) -> "FittingNodes":
        """Return the nodes without these; all of them if none would be left."""
        left = [name not in excluded for name in self.names]
        names = list(compress(self.names, left))
        return FittingNodes(names, list(compress(self.totals, left)), self.node) if names else self


def chosen(pod: Pod, soft: SoftConstraints, demand: Demand, fitting: FittingNodes, backend: Backend) -> list[str]:
    """Return the names of the nodes to name, at least one, best first."""
    if backend.filter_answer == "best":
        return [fitting.names[best_position(fitting.names, fitting.totals)]]
    if offered := backend.offered_nodes.of(pod.uid):
        fitting = fitting.without(offered)
    places = 1 if backend.remembers(pod, demand) else backend.shortlist
    positions = _shortlist(soft, demand, fitting, zlib.crc32(pod.uid.encode()), places)
    names = [fitting.names[position] for position in positions]
    if (nominated := pod.nominated_node_name) and nominated in fitting.names:
        names = [nominated, *(name for name in names if name != nominated)][:places]
    names = _served_once(names, fitting) if demand.requests_gpus else names
    backend.offered_nodes.note(pod.uid, names)
    return names


def _served_once(names: list[str], fitting: FittingNodes) -> list[str]:
    """Name a node that is served twice alone, so that its promise counts for the next pod, or not at all."""
    if fitting.node(names[0]).free.twice is not None:
        return names[:1]
    return [name for name in names if fitting.node(name).free.twice is None]


def _shortlist(soft: SoftConstraints, demand: Demand, fitting: FittingNodes, turn: int, most: int) -> list[int]:
    names, totals = fitting.names, fitting.totals
    best = best_in_turn(totals, turn)
    if soft.wants_something or soft.soft_taints(fitting.node(names[best])):
        traits = soft.traits([fitting.node(name) for name in names])
        return best_of_each(totals, traits, turn, most, not demand.ranked)
    return [best] if demand.ranked else best_of_each(totals, (), turn, most, wide=True)
