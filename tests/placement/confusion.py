# SPDX-License-Identifier: Apache-2.0
"""Compare the filters with their twin on random pairs, and show where each reason was right.

`python -m tests.placement.confusion [--pairs N] [--seed S]` exits with 1 on any difference.
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
"""The reasons that an eviction can remove (docs/reference/reasons.md#free-reasons)."""
WISHES, NODES, LOADS = 110, 250, 4
"""One round draws this many wishes, this many kinds of node, and this many loads for each kind. Every wish meets every
node."""
SEED = 20261121
SHOWN = 3
"""At most this many differences of one kind are kept as examples."""
Answer = tuple[str, bool] | None
"""The app's first reason code and whether an eviction could remove it; None means that the pod fits."""
Pair = tuple[Wish, RawNode, tuple[RawPod, ...]]
KINDS = ("agreed", "no cause", "accepted", "other cause", "eviction")
"""How the app's answer compares with the twin's. `agreed` is a right answer, and `no cause` a refusal for which the
twin sees no reason. `accepted` is a wrong placement, and `other cause` a reason that is not true of this pair.
`eviction` means that preemption is expected where it cannot help, or not expected where it can."""


@dataclass
class Table:
    """Counts by the app's first code and kind, counts of the twin's other causes by code, and examples of
    differences."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    others: dict[str, Counter[str]] = field(default_factory=dict)
    examples: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """Count all pairs."""
        return self.counts.total()

    @property
    def different(self) -> int:
        """Count the pairs on which the app and the twin differ."""
        return sum(count for (_, kind), count in self.counts.items() if kind != "agreed")

    def reached(self, code: str) -> int:
        """Count the pairs for which the app gives this code first, or `fits`."""
        return sum(count for (first_code, _), count in self.counts.items() if first_code == code)

    def take(self, answer: Answer, causes: set[str], pair: Pair) -> None:
        """Count one pair, and keep it as an example if it differs."""
        code, kind = answer[0] if answer else FITS, compare(answer, causes)
        self.counts[code, kind] += 1
        self.others.setdefault(code, Counter()).update(causes - {code})
        examples = self.examples.setdefault((code, kind), []) if kind != "agreed" else None
        if (
            examples is not None
            and len(examples) < SHOWN
            and not any(shown(pair[0]) in example for example in examples)
        ):
            examples.append("\n  ".join((f"{code}, {kind}; the twin says {sorted(causes)}", *map(shown, pair))))


def shown(value: object) -> str:
    """Write a value with only those fields that differ from their defaults."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    if not is_dataclass(value):
        return repr(value)
    plain = {field.name: field.default for field in fields(value)}
    values = {name: getattr(value, name) for name in plain}
    written = (f"{name}={shown(field)}" for name, field in values.items() if field != plain[name] and field != {})
    return f"{type(value).__name__}({', '.join(written)})"


def compare(answer: Answer, causes: set[str]) -> str:
    """Name the kind of a comparison between the app's answer and the twin's causes."""
    if answer is None:
        return "accepted" if causes else "agreed"
    code, preemptible = answer
    if not causes:
        return "no cause"
    if code not in causes:
        return "other cause"
    return "agreed" if preemptible == (code in FREE) == causes.issubset(FREE) else "eviction"


def compared(pairs: int, seed: int) -> Table:
    """Compare at least this many pairs."""
    draw, table = random.Random(seed), Table()
    while table.pairs < pairs:
        for answer, causes, pair in one_round(draw):
            table.take(answer, causes, pair)
    return table


def one_round(draw: random.Random) -> Iterator[tuple[Answer, set[str], Pair]]:
    """Draw wishes and nodes, and judge each pair with the app and with the twin.

    The twin computes the reasons that no eviction removes once for each kind of node.
    """
    kinds = [twin_draw.node(draw) for _ in range(NODES)]
    loads = [(kind, twin_draw.pods(draw, kind)) for kind in kinds for _ in range(LOADS)]
    nodes = nodes_of(loads)
    for _ in range(WISHES):
        wish = twin_draw.wish(draw)
        pod_demand = compiled(wish)
        lasting: set[str] = set()
        for index, ((kind, bound), node) in enumerate(zip(loads, nodes, strict=True)):
            if index % LOADS == 0:
                lasting = class_causes(wish, kind)
            yield refusal(pod_demand, node), lasting or free_causes(wish, kind, bound), (wish, kind, bound)


def lines(table: Table) -> Iterator[str]:
    """Write the table with one row for each code, the most frequent code first."""
    head = ("we say first", *KINDS, "also true, most often")
    yield f"{head[0]:30}" + "".join(f"{heading:>13}" for heading in head[1:-1]) + f"  {head[-1]}"
    codes = sorted({code for code, _ in table.counts}, key=lambda code: (code != FITS, -table.reached(code), code))
    for code in codes:
        figures = "".join(f"{table.counts[code, kind]:>13,}" for kind in KINDS)
        also = ", ".join(f"{other_code} {count:,}" for other_code, count in table.others[code].most_common(3))
        yield f"{code:30}{figures}  {also}"
    yield f"{table.pairs:,} pairs, {table.different:,} different"
    for examples in table.examples.values():
        yield from examples


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
