# SPDX-License-Identifier: Apache-2.0
"""Ranking: the order of nodes by their totals, the scores from 0 to 10 that keep it, and the shortlist.

The scores are integers, as kube-scheduler wants them (docs/reference/scores.md#scores-on-the-wire). The shortlist is
the best node of each kind, among which kube-scheduler chooses by its own scores (docs/reference/scores.md#shortlist).
"""

import zlib
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from functools import lru_cache

from app.nodes.model import Node
from app.placement import engine
from app.placement.engine import LESSER_SHARE
from app.policy.demand import Demand

HIGHEST = 10
"""The highest score on the wire: MaxExtenderPriority (k8s.io/kube-scheduler extender/v1 types.go)."""
RUNNER_UP = 9
"""The highest score of a node that is worse than the best one, so that the scores keep the choice of the best node
(docs/reference/scores.md#scores-on-the-wire)."""
NO_GPUS_NEEDED = 7
"""The highest score of a node with GPUs for a pod without. With weight 10 the 3 points to HIGHEST are 300, what
kube-scheduler gives for a node without a taint PreferNoSchedule (plugin TaintToleration, weight 3): more than its
spreading or its balance alone."""
TIE_BREAKS_KEPT = 1 << 14
"""Node names in the cache of tie breaks, three times the largest cluster of the budgets; about 2 MB."""
LONGEST_KEPT = 253
"""Characters of a cached name; node names are not longer (DNS subdomain), but names in requests may be."""
SPANS_KEPT = 64
"""Pairs of lowest and highest total in the cache of scores, as many as demands are cached."""
TOTALS_KEPT = 4096
"""Totals in the cache of one such pair; a cluster has some dozens at a time."""
ROUNDING = 1e-9
"""The distance from an integer beyond which the errors of double precision, of about 1e-15, cannot change the floor."""


def ranking_key(value: float, name: str) -> tuple[float, tuple[int, str]]:
    """Give the sort key of a node: highest total, then lowest CRC-32 of the name, then the name.

    See docs/reference/scores.md#ties.
    """
    return (-value, tie_break(name))


def place_on_best(demand: Demand, nodes: dict[str, Node], fits: Callable[[Node], bool]) -> bool:
    """Take the units of a demand from the best of the nodes that fit, in place; return False where none fits."""
    fitting = filter(fits, nodes.values())
    best = min(fitting, key=lambda node: ranking_key(engine.total(demand, node), node.name), default=None)
    if best is None:
        return False
    free = best.free.with_units(demand.resources, demand.declared_mib, -1)
    nodes[best.name] = best.with_free(free, best.free_cpu_milli)
    return True


@lru_cache(TIE_BREAKS_KEPT)
def tie_break(name: str) -> tuple[int, str]:
    """Give the part of the sort key that decides between nodes of equal totals; cached by name."""
    return (zlib.crc32(name.encode()), name)


def best_position(names: Sequence[str], totals: Sequence[float]) -> int:
    """Find the position of the best node; ties are broken only between nodes with the highest total."""
    return _best_of_tied(names, totals, max(totals))


def _best_of_tied(names: Sequence[str], totals: Sequence[float], highest: float) -> int:
    """Find the first position of the best node. All nodes may be tied, so the loops over them run in C."""
    tied = [position for position, total in enumerate(totals) if total == highest]
    if len(tied) == 1:
        return tied[0]
    tied_names = list(map(names.__getitem__, tied))
    breaks = tie_break if max(map(len, tied_names)) <= LONGEST_KEPT else tie_break.__wrapped__
    keys = list(map(breaks, tied_names))
    return tied[keys.index(min(keys))]


def demand_scores(demand: Demand, names: Sequence[str], totals: Sequence[float], one_best: bool = False) -> list[int]:
    """Turn the totals of nodes for a demand into the integers that prioritize answers."""
    if not demand.requests_gpus:
        return scores_without_gpus(totals)
    return wire_scores(names, totals, demand.ranked, one_best)


def wire_scores(names: Sequence[str], totals: Sequence[float], ranked: bool, one_best: bool = False) -> list[int]:
    """Turn totals into integers from 0 to 10, one for each node; equal totals get equal integers.

    Let x be a total scaled from lowest to highest to [0, 1]. If `ranked`, the best nodes get 10 and the others
    floor(9x). Otherwise each gets round(10x), and all get 10 if all are equal. With `one_best`, the first of the best
    nodes in the order of ties gets 10 and each other node at most 9, so that the choice is known.
    """
    low, high = min(totals), max(totals)
    scores = [HIGHEST] * len(totals) if high == low else _spans(low, high, ranked).steps(totals)
    if one_best:
        scores = [min(score, RUNNER_UP) for score in scores]
        scores[_best_of_tied(names, totals, high)] = HIGHEST
    return scores


def scores_without_gpus(totals: Sequence[float]) -> list[int]:
    """Turn the totals of a pod that requests no GPUs into integers, by a fixed scale: equally good nodes are alike.

    A node without GPUs gets 10, one with GPUs at most 7, and a point less for each tenth of the total that it lacks to
    0.5, where nothing is wasted; a whole GPU lost costs 2 to 3 points.
    """
    return [HIGHEST if total == 1.0 else min(NO_GPUS_NEEDED, round(2 + 10 * total)) for total in totals]


class _Span:
    """The scores of totals between a lowest and a highest total, cached because the same few totals recur."""

    def __init__(self, low: float, high: float, ranked: bool) -> None:
        self._low, self._high = low, high
        self._count, self._half = (RUNNER_UP, Fraction(0)) if ranked else (HIGHEST, Fraction(1, 2))
        self._known = {low: 0, high: HIGHEST}

    def steps(self, totals: Sequence[float]) -> list[int]:
        """Give the score of each total."""
        try:
            return list(map(self._known.__getitem__, totals))
        except KeyError:
            if len(self._known) > TOTALS_KEPT:
                self._known = {self._low: 0, self._high: HIGHEST}
            self._known.update((total, self._step(total)) for total in set(totals) - self._known.keys())
            return list(map(self._known.__getitem__, totals))

    def _step(self, value: float) -> int:
        """Compute floor(count x (value - low) / (high - low) + half), with fractions where rounding could change it."""
        quotient = self._count * (value - self._low) / (self._high - self._low) + float(self._half)
        if abs(quotient - round(quotient)) > ROUNDING:
            return int(quotient)
        span = Fraction(self._high) - Fraction(self._low)
        return int(self._count * (Fraction(value) - Fraction(self._low)) / span + self._half)


_spans = lru_cache(SPANS_KEPT)(_Span)


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
