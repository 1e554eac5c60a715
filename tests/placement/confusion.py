# SPDX-License-Identifier: Apache-2.0
"""Compare the filters with their twin on random pairs, and show where each reason was right.

`python -m tests.placement.confusion [--pairs N] [--seed S]`; exit 1 on any difference.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass

from tests.placement import twin_draw
from tests.placement.twin import RawNode, RawPod, Wish, class_causes, free_causes
from tests.placement.twin_app import compiled, nodes_of, refusal

FITS = "fits"
FREE = {"InsufficientGPUs", "GPUMemoryBudgetExceeded", "LayoutDoesNotFit"}
"""Reasons that an eviction can mend (docs/reference/reasons.md#free-reasons)."""
WISHES, NODES, LOADS = 110, 250, 4
"""A round: wishes, kinds of node, and how differently each kind is occupied. Every wish meets every node."""
SEED = 20261121
SHOWN = 3
"""Differences of one kind that are kept to be read."""
Answer = tuple[str, bool] | None
"""Our first code, and whether an eviction could mend it; None: it fits."""
Pair = tuple[Wish, RawNode, tuple[RawPod, ...]]
KINDS = ("agreed", "no cause", "accepted", "other cause", "eviction")
"""How an answer compares: right; refused and the twin sees no cause (a false refusal); accepted in spite of one (a
wrong placement); a reason that is not true here; preemption is hoped for where it cannot help, or the reverse."""


@dataclass
class Table:
    """Counts by (our first code, kind), the twin's other causes by code, and examples of differences."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    others: dict[str, Counter[str]] = field(default_factory=dict)
    examples: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """Count all pairs."""
        return self.counts.total()

    @property
    def different(self) -> int:
        """Count the pairs that differ."""
        return sum(count for (_, kind), count in self.counts.items() if kind != "agreed")

    def reached(self, code: str) -> int:
        """Count the pairs of which we say a code, or that they fit."""
        return sum(count for (said, _), count in self.counts.items() if said == code)

    def take(self, said: Answer, causes: set[str], pair: Pair) -> None:
        """Count a pair."""
        code, kind = said[0] if said else FITS, compare(said, causes)
        self.counts[code, kind] += 1
        self.others.setdefault(code, Counter()).update(causes - {code})
        kept = self.examples.setdefault((code, kind), []) if kind != "agreed" else None
        if kept is not None and len(kept) < SHOWN and not any(shown(pair[0]) in each for each in kept):
            kept.append("\n  ".join((f"{code}, {kind}; the twin says {sorted(causes)}", *map(shown, pair))))


def shown(value: object) -> str:
    """Write a value with only those fields that say something."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    if not is_dataclass(value):
        return repr(value)
    plain = {field.name: field.default for field in fields(value)}
    said = {name: getattr(value, name) for name in plain}
    told = (f"{name}={shown(field)}" for name, field in said.items() if field != plain[name] and field != {})
    return f"{type(value).__name__}({', '.join(told)})"


def compare(said: Answer, causes: set[str]) -> str:
    """Say how our answer compares with the twin's causes."""
    if said is None:
        return "accepted" if causes else "agreed"
    code, preemptible = said
    if not causes:
        return "no cause"
    if code not in causes:
        return "other cause"
    return "agreed" if preemptible == (code in FREE) == causes.issubset(FREE) else "eviction"


def compared(pairs: int, seed: int) -> Table:
    """Compare at least that many pairs."""
    draw, table = random.Random(seed), Table()
    while table.pairs < pairs:
        for said, causes, pair in one_round(draw):
            table.take(said, causes, pair)
    return table


def one_round(
    draw: random.Random,
) -> Iterator[tuple[Answer, set[str], Pair]]:
    """Draw wishes and nodes, and judge each pair on both sides.

    What no eviction mends is asked of the twin once a kind of node.
    """
    kinds = [twin_draw.node(draw) for _ in range(NODES)]
    loads = [(kind, twin_draw.pods(draw, kind)) for kind in kinds for _ in range(LOADS)]
    nodes = nodes_of(loads)
    for _ in range(WISHES):
        wish = twin_draw.wish(draw)
        asked = compiled(wish)
        lasting: set[str] = set()
        for index, ((kind, bound), node) in enumerate(zip(loads, nodes, strict=True)):
            if index % LOADS == 0:
                lasting = class_causes(wish, kind)
            yield refusal(asked, node), lasting or free_causes(wish, kind, bound), (wish, kind, bound)


def lines(table: Table) -> Iterator[str]:
    """Write the table out: a row a code, most frequent first."""
    head = ("we say first", *KINDS, "also true, most often")
    yield f"{head[0]:30}" + "".join(f"{each:>13}" for each in head[1:-1]) + f"  {head[-1]}"
    codes = sorted({code for code, _ in table.counts}, key=lambda code: (code != FITS, -table.reached(code), code))
    for code in codes:
        figures = "".join(f"{table.counts[code, kind]:>13,}" for kind in KINDS)
        also = ", ".join(f"{each} {count:,}" for each, count in table.others[code].most_common(3))
        yield f"{code:30}{figures}  {also}"
    yield f"{table.pairs:,} pairs, {table.different:,} different"
    for found in table.examples.values():
        yield from found


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=SEED)
    chosen = parser.parse_args()
    table = compared(chosen.pairs, chosen.seed)
    print("\n".join(lines(table)))
    return 1 if table.different else 0


if __name__ == "__main__":
    sys.exit(main())
