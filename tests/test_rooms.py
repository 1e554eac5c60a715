# SPDX-License-Identifier: Apache-2.0
"""Each room of app/ keeps to its ceiling of lines, and a public class name has one meaning."""

import ast
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMITS = tomllib.loads(Path(__file__).with_name("rooms.toml").read_text("utf-8"))
MODULES = [path for path in (ROOT / "app").rglob("*.py") if path.name != "__init__.py"]
SHORT_LINES = 40


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_every_room_has_a_ceiling() -> None:
    rooms = {path.relative_to(ROOT / "app").parts[0] for path in MODULES if path.parent != ROOT / "app"}

    assert rooms == set(LIMITS["lines"])


@pytest.mark.parametrize(("room", "ceiling"), LIMITS["lines"].items())
def test_room_keeps_to_its_ceiling(room: str, ceiling: int) -> None:
    assert sum(lines_of(path) for path in (ROOT / "app" / room).rglob("*.py")) <= ceiling


def test_app_has_few_modules_and_few_short_ones() -> None:
    short = [path for path in MODULES if lines_of(path) < SHORT_LINES]

    assert (len(MODULES) <= LIMITS["app"]["modules"], len(short) <= LIMITS["app"]["shorter"]) == (True, True)


def test_public_class_has_a_name_of_its_own() -> None:
    classes = (node for path in MODULES for node in ast.parse(path.read_text("utf-8")).body)
    names = Counter(node.name for node in classes if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))

    assert [name for name, count in names.items() if count > 1] == []
