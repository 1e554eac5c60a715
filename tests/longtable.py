# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.longtable REPORT.xml` writes tests/results/test-long.md from what pytest kept of a whole run."""

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
OUTCOMES = ("failure", "error", "skipped")


@dataclass(frozen=True, slots=True)
class Seen:
    """One test. `outcome`: passed, failed or skipped; `why`: the skip's reason."""

    file: str
    name: str
    seconds: float
    outcome: str
    why: str


def read(report: Path) -> tuple[float, list[Seen]]:
    """Read JUnit's XML as pytest writes it: seconds of the whole run, and the tests."""
    (suite,) = ElementTree.parse(report).getroot()
    return float(suite.get("time", "0")), list(_tests(suite))


def _tests(suite: ElementTree.Element) -> Iterator[Seen]:
    for case in suite.iter("testcase"):
        told = [each for each in case if each.tag in OUTCOMES]
        tags = {each.tag for each in told}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if tags else "passed"
        why = next((each.get("message", "") for each in told if each.tag == "skipped"), "")
        seconds = float(case.get("time", "0"))
        yield Seen(case.get("classname", "").replace(".", "/"), case.get("name", ""), seconds, outcome, why)


def table(seconds: float, tests: list[Seen]) -> str:
    """Write the tables: by folder, and what took long."""
    outcomes = Counter(each.outcome for each in tests)
    folders: dict[str, list[Seen]] = {}
    for each in tests:
        parts = each.file.split("/")
        folders.setdefault("/".join(parts[:2]), []).append(each)
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
    for name, found in sorted(folders.items()):
        counted = Counter(each.outcome for each in found)
        numbers = " | ".join(f"{counted[outcome]:,}" for outcome in ("passed", "failed", "skipped"))
        lines.append(f"| {name} | {len(found):,} | {numbers} | {sum(each.seconds for each in found):,.0f} |")
    lines += ["", f"Slower than {SLOW_SECONDS:g} s, with their set-up:", "", "| test | seconds | |", "|---|---:|---|"]
    for each in sorted(tests, key=lambda seen: -seen.seconds):
        if each.seconds > SLOW_SECONDS:
            lines.append(f"| {each.file}: {each.name} | {each.seconds:,.0f} | {each.outcome} |")
    for each in tests:
        if each.outcome != "passed":
            lines += ["", f"{each.outcome}: {each.file}: {each.name}. {each.why}".rstrip()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    RESULTS.write_text(table(*read(Path(sys.argv[1]))), "utf-8")
    print(f"{RESULTS.relative_to(Path.cwd())} written")
