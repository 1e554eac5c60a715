# SPDX-License-Identifier: Apache-2.0
"""The shortlist: the best node of each kind, among which kube-scheduler chooses by its own scores.

See docs/reference/scores.md#shortlist.
"""

from collections.abc import Hashable, Sequence

from app.placement.engine import LESSER_SHARE


def best_in_turn(totals: Sequence[float], turn: int) -> int:
    """Return the position of a node with the highest total: the next one from `turn` modulo the number of nodes on."""
    highest = max(totals)
    try:
        return totals.index(highest, turn % len(totals))
    except ValueError:
        return totals.index(highest)


def best_of_each(
    totals: Sequence[float], traits: Sequence[Sequence[Hashable]], turn: int, most: int, wide: bool = False
) -> list[int]:
    """Return the positions of the best nodes of each combination of traits, at most `most` of them, best first.

    Each trait is a column with a value for each node. Of each combination the best node is named, of equal ones the
    next from `turn` on. A trait of more than `most` values, such as the host name, tells nearly all nodes apart: it is
    left out, and the combinations of the others share the whole list, as they do with `wide`. Nodes with at most
    LESSER_SHARE of the highest total are not named, so that no preference brings a pod to a node that is in doubt.
    """
    coarse = [column for column in traits if len(set(column)) <= most]
    kinds = list(zip(*coarse, strict=True)) or [()] * len(totals)
    groups: dict[tuple[Hashable, ...], list[int]] = {}
    for position in _in_order(totals, turn):
        groups.setdefault(kinds[position], []).append(position)
    per_group = most // len(groups) if wide or len(coarse) < len(traits) else 1
    chosen = [position for members in groups.values() for position in members[: max(1, per_group)]]
    return sorted(chosen[:most], key=totals.__getitem__, reverse=True)


def _in_order(totals: Sequence[float], turn: int) -> list[int]:
    """Return the positions of the nodes that are not in doubt beside the best one: best first, equal ones in turn."""
    highest, start = max(totals), turn % len(totals)
    positions = (*range(start, len(totals)), *range(start))
    least = LESSER_SHARE * highest
    good = [position for position in positions if totals[position] > least or totals[position] == highest]
    return sorted(good, key=totals.__getitem__, reverse=True)
