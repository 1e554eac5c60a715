# SPDX-License-Identifier: Apache-2.0
"""app/ and tests/ keep to one ceiling each, and a public class name has one meaning."""

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent
APP = TESTS.parent / "app"
MODULES = [path for path in APP.rglob("*.py") if path.name != "__init__.py"]
MOST_LINES = 60_024
"""The sizes of today; they only go down from here."""
MOST_MODULES = 286
MOST_LINES_OF_TESTS = 99_139
SHORT_LINES = 40


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_code_keeps_to_its_ceilings() -> None:
    assert sum(map(lines_of, APP.rglob("*.py"))) <= MOST_LINES
    assert sum(map(lines_of, TESTS.rglob("*.py"))) <= MOST_LINES_OF_TESTS
    assert len(MODULES) <= MOST_MODULES
    assert [str(path) for path in MODULES if lines_of(path) < SHORT_LINES] == []


def test_public_class_has_a_name_of_its_own() -> None:
    classes = (node for path in MODULES for node in ast.parse(path.read_text("utf-8")).body)
    names = Counter(node.name for node in classes if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))

    assert [name for name, count in names.items() if count > 1] == []
