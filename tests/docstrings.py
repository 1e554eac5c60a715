# SPDX-License-Identifier: Apache-2.0
"""Read what tests say that they prove: a test's docstring names rows of tables, such as P12, F31 or fault 24."""

import ast
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

TESTS = Path(__file__).parent
ROOT = TESTS.parent

Row = TypeVar("Row", bound=Hashable)


def proofs(named: re.Pattern[str], read: Callable[[str], frozenset[Row]]) -> Mapping[str, frozenset[Row]]:
    """Map each test that names a row, by its pytest id without parameters, to the rows that its docstring names.

    `named`: a pattern that every file with such a test contains, because parsing all files would take seconds.
    """
    return {test: rows for path in sorted(TESTS.rglob("test_*.py")) for test, rows in _of(path, named, read)}


def _of(
    path: Path, named: re.Pattern[str], read: Callable[[str], frozenset[Row]]
) -> Iterator[tuple[str, frozenset[Row]]]:
    text = path.read_text("utf-8")
    if named.search(text) is None:
        return
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            rows = read(ast.get_docstring(node) or "")
            if rows:
                yield f"{path.relative_to(ROOT)}::{node.name}", rows


def shown(test: str) -> str:
    """Write a pytest id as tables show it: without `tests/`, with a space before the function's name."""
    return test.removeprefix("tests/").replace("::", " ")
