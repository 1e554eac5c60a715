# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.longtable REPORT.xml` writes tests/results/test-long.md from the report of a whole pytest run."""

import os
import platform
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "test-long.md"
SLOW_SECONDS = 20.0
"""Tests slower than this have a row of their own."""
WHY_CHARACTERS = 300
OUTCOMES = ("failure", "error", "skipped")


@dataclass(frozen=True, slots=True)
class Seen:
    """One test; `outcome` is passed, failed or skipped, `why` is the reason of a failure or a skip."""

    file: str
    name: str
    seconds: float
    outcome: str
    why: str


def read(report: Path) -> tuple[float, list[Seen]]:
    """Read JUnit XML as pytest writes it: the seconds of the whole run, and the tests."""
    (suite,) = ElementTree.parse(report).getroot()
    return float(suite.get("time", "0")), list(_tests(suite))


def _tests(suite: ElementTree.Element) -> Iterator[Seen]:
    for test in suite.iter("testcase"):
        outcomes = [child for child in test if child.tag in OUTCOMES]
        tags = {child.tag for child in outcomes}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if tags else "passed"
        why = " ".join(next((child.get("message", "") for child in outcomes), "").split())[:WHY_CHARACTERS]
        seconds = float(test.get("time", "0"))
        yield Seen(test.get("classname", "").replace(".", "/"), test.get("name", ""), seconds, outcome, why)


def table(seconds: float, tests: list[Seen]) -> str:
    """Write the tables of the folders and of the slow tests."""
    outcomes = Counter(test.outcome for test in tests)
    folders: dict[str, list[Seen]] = {}
    for test in tests:
        parts = test.file.split("/")
        folders.setdefault("/".join(parts[:2]), []).append(test)
    lines = [
        "# Every test, the long ones too",
        "",
        f"`make test-long` wrote this: {len(tests):,} tests, {outcomes['passed']:,} passed,"
        f" {outcomes['failed']} failed,"
        f" {outcomes['skipped']} skipped, in {seconds / 60:.0f} minutes by the clock.",
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}.",
        "",
        "| folder or file | tests | passed | failed | skipped | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, folder_tests in sorted(folders.items()):
        counted = Counter(test.outcome for test in folder_tests)
        numbers = " | ".join(f"{counted[outcome]:,}" for outcome in ("passed", "failed", "skipped"))
        folder_seconds = sum(test.seconds for test in folder_tests)
        lines.append(f"| {name} | {len(folder_tests):,} | {numbers} | {folder_seconds:,.0f} |")
    lines += ["", f"Slower than {SLOW_SECONDS:g} s, with their set-up:", "", "| test | seconds | |", "|---|---:|---|"]
    for test in sorted(tests, key=lambda seen: -seen.seconds):
        if test.seconds > SLOW_SECONDS:
            lines.append(f"| {test.file}: {test.name} | {test.seconds:,.0f} | {test.outcome} |")
    for test in tests:
        if test.outcome != "passed":
            lines += ["", f"{test.outcome}: {test.file}: {test.name}. {test.why}".rstrip()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    RESULTS.write_text(table(*read(Path(sys.argv[1]))), "utf-8")
    print(f"{RESULTS.relative_to(Path.cwd())} written")
