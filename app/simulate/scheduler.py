# SPDX-License-Identifier: Apache-2.0
"""A model of kube-scheduler around our answers: which nodes it looks at, its own scores, and whom it takes.

After v1.36: pkg/scheduler/schedule_one.go, framework/plugins/noderesources. Default plugins that give every node of
the trace the same (taints, affinity, spread, images) are left out: a constant moves no choice.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from random import Random

LEAST_NODES = 100
"""minFeasibleNodesToFind: a smaller cluster is looked at as a whole."""
LEAST_PERCENT = 5
"""minFeasibleNodesPercentageToFind."""
POINT = 100
"""What one of our points counts beside the in-tree scores: weight 10, as scheduler-config writes it, times
MaxNodeScore / MaxExtenderPriority = 100 / 10."""
MOST_IN_TREE = 200
"""Of the two plugins below, each of weight 1 and 100 at most."""
CPU_NOT_ASKED, MEMORY_NOT_ASKED = 100, 200
"""Milli and MiB that LeastAllocated assumes where a pod asks for none (util/pod_resources.go)."""


def nodes_to_find(nodes: int, percent: int = 0) -> int:
    """Say after how many feasible nodes the search ends (numFeasibleNodesToFind). `percent`: 0 is the default."""
    if nodes < LEAST_NODES:
        return nodes
    if percent == 0:
        percent = max(LEAST_PERCENT, 50 - nodes // 125)
    return max(LEAST_NODES, nodes * min(percent, 100) // 100)


def look(feasible: Sequence[int], start: int, wanted: int) -> tuple[list[int], int]:
    """Look for feasible nodes from a start index on; gives them, and where the next search starts.

    `feasible`: the positions of all that there are, ascending. As findNodesThatPassFilters does with one worker: the
    search ends at the first feasible node beyond those wanted, and that one does not count as looked at; after a whole
    turn it starts where it did.
    """
    first = bisect_left(feasible, start)
    found = [*feasible[first:], *feasible[:first]]
    return found[:wanted], found[wanted] if len(found) > wanted else start


def least_allocated(requested: tuple[int, int], allocatable: tuple[int, int]) -> int:
    """Score a node by what is left of CPU and memory with the pod there (least_allocated.go, equal weights)."""
    score = 0
    for used, most in zip(requested, allocatable, strict=True):
        score += (most - used) * 100 // most if 0 < most >= used else 0
    return score // 2


def balanced_allocation(requested: tuple[int, int], allocatable: tuple[int, int]) -> int:
    """Score a node by how alike CPU and memory are used with the pod there (balanced_allocation.go)."""
    cpu, memory = (min(1.0, used / most) for used, most in zip(requested, allocatable, strict=True))
    return int((1.0 - abs(cpu - memory) / 2) * 100)


def select(points: Sequence[int], in_tree: Callable[[int], int], rng: Random) -> int:
    """Pick the position with the highest sum of our points and the in-tree score, at random among equals (selectHost).

    The in-tree score is asked only of those that could still win.
    """
    best, tied = -1, list[int]()
    for position in sorted(range(len(points)), key=points.__getitem__, reverse=True):
        if points[position] * POINT + MOST_IN_TREE < best:
            break
        score = points[position] * POINT + in_tree(position)
        if score > best:
            best, tied = score, [position]
        elif score == best:
            tied.append(position)
    return tied[0] if len(tied) == 1 else rng.choice(sorted(tied))
