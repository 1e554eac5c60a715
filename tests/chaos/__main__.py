# SPDX-License-Identifier: Apache-2.0
"""`make chaos`: run every test that proves a fault, and write what was expected and seen to tests/results/chaos.md.

The exit code is 1 where a fault is not proven: by no test, by one that failed, or by one that could not run here.
"""

import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from tests.chaos.faults import FAULTS, Fault, on_a_real_cluster, proofs
from tests.docstrings import TESTS, shown

RESULTS = TESTS / "results" / "chaos.md"
SEEN = "as expected"


@dataclass
class Seen:
    """The outcomes of the runs of one test."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Watcher:
    """A plugin of pytest that records the outcome of each test, for all values of its parameters together."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcome of the call, and failures of its set-up and tear-down."""
        seen = self.seen.setdefault(report.nodeid.partition("[")[0], Seen())
        seen.seconds += report.duration
        if report.when == "call" or report.outcome != "passed":
            seen.outcomes[report.outcome] += 1


def verdict(runs: Iterable[Seen]) -> str:
    """Return the verdict on a fault from the runs of its tests."""
    outcomes = sum((run.outcomes for run in runs), Counter[str]())
    if outcomes["failed"]:
        return f"FAILED: {outcomes['failed']} of {outcomes.total()}"
    if outcomes["skipped"]:
        return f"NOT RUN: {outcomes['skipped']} of {outcomes.total()} skipped"
    return SEEN if outcomes["passed"] else "NOT PROVEN"


def row(fault: Fault, names: list[str], seen: Mapping[str, Seen]) -> tuple[str, str]:
    """Write the row of a fault, and return it with the verdict."""
    runs = [seen.get(name, Seen()) for name in names]
    outcome = verdict(runs) if names else "on a real cluster"
    cells = (
        str(fault.number),
        fault.what,
        fault.expected,
        outcome + (", the rest on a real cluster" if names and fault.cluster else ""),
        str(sum(run.outcomes.total() for run in runs)),
        f"{sum(run.seconds for run in runs):.1f}",
        "<br>".join(map(shown, names)),
    )
    return f"| {' | '.join(cells)} |", outcome


def main(words: list[str]) -> int:
    """Run the tests, print the table without its last column, and write it; `words` are more arguments of pytest."""
    proven, watcher, began = proofs(), Watcher(), time.monotonic()
    code = pytest.main(["-p", "no:cacheprovider", *words, *proven], plugins=[watcher])
    elsewhere = on_a_real_cluster()
    rows, wrong = [], 0
    for fault in FAULTS:
        names = [name for name, numbers in proven.items() if fault.number in numbers]
        line, outcome = row(fault, names, watcher.seen)
        rows.append(line)
        wrong += outcome != SEEN and not (not names and fault.number in elsewhere)
        print(line.rpartition(" | ")[0] + " |")
    tests = sum(run.outcomes.total() for run in watcher.seen.values())
    text = (
        "# Faults\n\nWhat can go wrong around gpu-usher, by number, and what it does then.\n\n"
        f"`make chaos` wrote this: {tests} tests in {time.monotonic() - began:.0f} s, {platform.machine()}, Python"
        f" {platform.python_version()}. A test may prove several faults."
        " Seconds are of all runs of a fault's tests.\n\n"
        "| # | fault | expected | seen | runs | seconds | tests |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )
    RESULTS.write_text(text, "utf-8")
    print(f"{len(FAULTS)} faults, {wrong} not proven; {RESULTS.relative_to(TESTS.parent)}")
    return int(bool(wrong) or code != pytest.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
