# SPDX-License-Identifier: Apache-2.0
"""What is promised to users changes only with a line in the changelog (docs/reference/stability.md)."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.promised import CURRENT, FOLDER, interface

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"
CODE = re.compile(r"`([^`]+)`")


def unreleased(text: str) -> str:
    """Join all code of the section about what is not released."""
    section = re.split(r"^## ", text, flags=re.MULTILINE)[1]
    assert section.startswith("Unreleased")
    return "\n".join(CODE.findall(section))


def last_release() -> list[str]:
    """Read the lines of the last release."""
    versions = [path for path in FOLDER.glob("*.txt") if path != CURRENT]
    newest = max(versions, key=lambda path: [int(part) for part in path.stem.split(".")])
    return newest.read_text("utf-8").splitlines()


def names_of(line: str, changed: Iterable[str]) -> list[str]:
    """List the names of which the changelog must have one: its own, or that of what holds it and changed as well."""
    kind, _, rest = line.partition(" ")
    if kind in ("field", "json"):
        path, _, value = rest.partition(" = ")
        parts = path.split(".")
        holding = {f"{kind} {'.'.join(parts[:end])}": parts[end - 1] for end in range(2, len(parts) + 1)}
        own = [name for held, name in holding.items() if held in changed]
        return [*own, value or parts[-1]]
    if kind in ("metric", "annotation"):
        return [rest.partition("{")[0]]
    if kind in ("setting", "command", "exit"):
        words = rest.removeprefix("gpu-usher ").split(" 1: ")[0].split()
        command = " ".join(word for word in words if not word.startswith("-"))
        return [*(word for word in words if word.startswith("-")), command]
    return [rest.rpartition(" ")[2]]


def unexplained(before: Iterable[str], now: Iterable[str], changelog: str) -> list[str]:
    """List the lines that came or went without a word of the changelog."""
    changed = set(before) ^ set(now)
    return sorted(line for line in changed if not any(name in changelog for name in names_of(line, changed)))


def test_lines_of_this_tree_are_written_down() -> None:
    """F165: `python -m tests.promised` writes them."""
    assert CURRENT.read_text("utf-8").splitlines() == interface()


def test_every_change_since_the_last_release_has_a_line_in_the_changelog() -> None:
    """F165."""
    assert unexplained(last_release(), interface(), unreleased(CHANGELOG.read_text("utf-8"))) == []


CHANGES = {
    "a field": "field .spec.placement.cuda.minimum",
    "a value of a field": "field .spec.action = Audit",
    "an annotation": "annotation gpu-usher.io/products",
    "a reason": "reason DriverTooOld",
    "a metric": "metric gpu_usher_wakes{} counter",
    "a member of an answer": "json explain.total",
    "a setting": "setting gpu-usher serve --client-ca",
    "a command": "command gpu-usher doctor",
    "an exit code": "exit doctor 1: a finding is an error",
}


@pytest.mark.parametrize("line", CHANGES.values(), ids=CHANGES)
def test_change_without_a_line_is_found(line: str) -> None:
    """F165: whether it came or went."""
    assert unexplained([line], [], "`other`") == [line]
    assert unexplained([], [line], "`other`") == [line]


@pytest.mark.parametrize(
    "kind", ["annotation", "command", "exit", "field", "json", "metric", "reason", "setting", "version"]
)
def test_tree_has_lines_of_every_kind(kind: str) -> None:
    """F165."""
    assert [line for line in interface() if line.startswith(f"{kind} ")]


def test_field_that_came_with_its_block_is_explained_by_the_block() -> None:
    """F165."""
    came = ["field .spec.admission.perGPU", "field .spec.admission.perGPU.maxCPU"]

    assert unexplained([], came, "`admission.perGPU`".strip("`")) == []
    assert unexplained(came[:1], came, "admission.perGPU") == ["field .spec.admission.perGPU.maxCPU"]
