# SPDX-License-Identifier: Apache-2.0
"""A model of kube-scheduler around our answers: which nodes it examines, its own scores, and the node that it selects.

It follows v1.36: pkg/scheduler/schedule_one.go, framework/plugins/noderesources. Default plugins that score all nodes
of the trace alike (taints, affinity, spread, images) are left out, because a constant changes no choice.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from random import Random

LEAST_NODES = 100
"""minFeasibleNodesToFind: in a smaller cluster all nodes are examined."""
LEAST_PERCENT = 5
"""minFeasibleNodesPercentageToFind."""
POINT = 100
"""The weight of one of our points, of which a node gets 0 to 10, beside the in-tree scores: weight 10, as
scheduler-config writes it, times MaxNodeScore / MaxExtenderPriority = 100 / 10."""
MOST_IN_TREE = 200
"""The sum of the two plugins below, each of weight 1 and at most 100."""
DEFAULT_CPU_MILLI, DEFAULT_MEMORY_MIB = 100, 200
"""Milli and MiB that LeastAllocated assumes for a pod that requests none (util/pod_resources.go)."""


def nodes_to_find(nodes: int, percent: int = 0) -> int:
    """Return the number of feasible nodes that end the search (numFeasibleNodesToFind). `percent` 0 is the default."""
    if nodes < LEAST_NODES:
        return nodes
    if percent == 0:
        percent = max(LEAST_PERCENT, 50 - nodes // 125)
    return max(LEAST_NODES, nodes * min(percent, 100) // 100)


def find_feasible(feasible: Sequence[int], start: int, count: int) -> tuple[list[int], int]:
    """Return the next `count` feasible nodes from a start index on, and where the next search starts.

    `feasible` are the positions of all feasible nodes, ascending. The search is findNodesThatPassFilters with one
    worker: it ends at the first feasible node beyond the wanted number, which does not count as examined; after a whole
    round it starts at the same index again.
    """
    first = bisect_left(feasible, start)
    positions = [*feasible[first:], *feasible[:first]]
    return positions[:count], positions[count] if len(positions) > count else start


def least_allocated(requested: tuple[int, int], allocatable: tuple[int, int]) -> int:
    """Score a node by the CPU and memory left with the pod on it (least_allocated.go, equal weights)."""
    score = 0
    for used, most in zip(requested, allocatable, strict=True):
        score += (most - used) * 100 // most if 0 < most >= used else 0
    return score // 2


def balanced_allocation(requested: tuple[int, int], allocatable: tuple[int, int]) -> int:
    """Score a node by how evenly CPU and memory are used with the pod on it (balanced_allocation.go)."""
    cpu, memory = (min(1.0, used / most) for used, most in zip(requested, allocatable, strict=True))
    return int((1.0 - abs(cpu - memory) / 2) * 100)


def select(points: Sequence[int], in_tree: Callable[[int], int], rng: Random) -> int:
    """Return the position with the highest sum of our points and in-tree score, a random one of equals (selectHost).

    The in-tree score is computed only for positions that can still win.
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
