# SPDX-License-Identifier: Apache-2.0
"""What gpu-usher does, row by row, with the tests that prove it.

Tests name rows in their docstrings ("F31", "F33-F38", "F27 to F46"); `python -m tests.features` writes
docs/features.md from there and from `feature_rows.py`.
"""

import re
from collections import Counter
from collections.abc import Mapping

from tests import docstrings
from tests.feature_rows import GROUPS, MISSING

RESULTS = docstrings.ROOT / "docs" / "features.md"
NAMED = re.compile(r"\b([FS])([1-9]\d{0,2})(?:(?:-| to )\1([1-9]\d{0,2}))?\b")
ROWS = tuple(row for group in GROUPS.values() for row in group)

HEAD = """\
# Features

`python -m tests.features` wrote this, from the docstrings of the tests.

Each row is a feature, by the number that tests and code name. The last column lists the files of the tests that prove
it, with the number of tests in each: search a file for the row's number to find them.
"""


def rows(docstring: str) -> frozenset[str]:
    """Read the rows that a docstring names; a range stands for the rows between its ends that exist."""
    rows_named: set[str] = set()
    for letter, first, last in NAMED.findall(docstring):
        named = {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
        rows_named |= {row for row in named if row in ROWS} if last else named
    return frozenset(rows_named)


def proofs() -> Mapping[str, frozenset[str]]:
    """Map each test that proves features to their rows."""
    return docstrings.proofs(NAMED, rows)


def table() -> str:
    """Write the page, with one table per group and one row per feature."""
    proven = proofs()
    parts = [HEAD]
    for title, group in GROUPS.items():
        lines = [f'| <a id="{row}"></a>{row} | {text} | {_cell(row, proven)} |' for row, text in group.items()]
        parts.append(f"## {title}\n\n| row | feature | tests |\n|---|---|---|\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _cell(row: str, proven: Mapping[str, frozenset[str]]) -> str:
    """Link the files with tests of a row, and say what is missing."""
    files = Counter(name.partition("::")[0] for name, proven_rows in proven.items() if row in proven_rows)
    links = [f"[{path.removeprefix('tests/')}](../{path}) {count}" for path, count in files.items()]
    return "<br>".join([*links, *([MISSING[row]] if row in MISSING else [])])


if __name__ == "__main__":
    RESULTS.write_text(table(), "utf-8")
