# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.kubernetes_versions [MINOR…]`: build each version of Kubernetes, and play the scenarios on it.

It runs the tests that start Kubernetes' programs (tests/tiers.py, tier `kubernetes`) on every version that
tests/controlplane pins, or on those that are named, and writes tests/results/kubernetes-versions.md. Reports of earlier
runs are kept in .pytest_cache, so that one version can be run again by itself.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.module_files import CHOICE, default_minor, kubernetes_version, minors
from tests.junit_report import Seen, read
from tests.tiers import SHARED, selection

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / ".pytest_cache" / "kubernetes"
RESULTS = Path(__file__).parent / "results" / "kubernetes-versions.md"
OFFER = "offer "
"""How the names of the properties begin by which test_kubernetes_version.py records what an API server offers."""
HEAD = """\
# Kubernetes' versions

`make e2e-versions` wrote this: on each version of the control plane it runs the tests that start Kubernetes' programs.
What the API servers offer is what they said themselves, by discovery and by dry runs. The scenarios run with the
features of dynamic resource allocation switched on where a version has them (`tests/controlplane/gates.py`).
"""


@dataclass(frozen=True, slots=True)
class VersionReport:
    """The run of the tests on one version: the seconds, the tests, and what the API server offers."""

    version: str
    seconds: float
    tests: tuple[Seen, ...]
    offers: Mapping[str, str]

    def count(self, outcome: str) -> int:
        """Count the tests that passed, failed or were skipped."""
        return Counter(test.outcome for test in self.tests)[outcome]


def run(minor: str) -> int:
    """Build a version and run the tests on it; return the first exit code that is not 0."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, CHOICE: minor}
    built = subprocess.run([sys.executable, "-m", "tests.controlplane.binaries"], env=env, check=False).returncode
    if built:
        return built
    pytest = [sys.executable, "-m", "pytest", *SHARED, *selection("kubernetes")]
    report = f"--junitxml={REPORTS / minor}.xml"
    return subprocess.run([*pytest, report], env=env, check=False).returncode


def read_report(minor: str) -> VersionReport | None:
    """Read the report of a version; None if it was not run here."""
    path = REPORTS / f"{minor}.xml"
    if not path.is_file():
        return None
    seconds, tests = read(path)
    properties = {entry.get("name", ""): entry.get("value", "") for entry in ElementTree.parse(path).iter("property")}
    offers = {name.removeprefix(OFFER): value for name, value in properties.items() if name.startswith(OFFER)}
    return VersionReport(properties.get("version", kubernetes_version(minor)), seconds, tuple(tests), offers)


def page(reports: Sequence[VersionReport]) -> str:
    """Write the tables of the runs and of what the API servers offer, and each test that did not pass."""
    rows = [
        f"| {report.version} | {len(report.tests)} | {report.count('passed')} | {report.count('failed')}"
        f" | {report.count('skipped')} | {report.seconds / 60:.0f} |"
        for report in reports
    ]
    parts = [HEAD, "| version | tests | passed | failed | skipped | minutes |", "|---|---:|---:|---:|---:|---:|", *rows]
    parts += [
        "",
        "## What they offer",
        "",
        *_offers(reports),
        "",
        "## Tests that did not pass",
        "",
        *_not_passed(reports),
    ]
    return "\n".join(parts) + "\n"


def _offers(reports: Sequence[VersionReport]) -> Iterator[str]:
    yield "| | " + " | ".join(report.version for report in reports) + " |"
    yield "|---|" + "---|" * len(reports)
    for name in dict.fromkeys(name for report in reports for name in report.offers):
        yield f"| {name} | " + " | ".join(report.offers.get(name, "–") for report in reports) + " |"


def _not_passed(reports: Sequence[VersionReport]) -> list[str]:
    lines = [
        f"- {report.version}, {test.outcome}: {test.file}: {test.name}. {test.why}".rstrip()
        for report in reports
        for test in report.tests
        if test.outcome != "passed"
    ]
    return lines or ["None."]


def main(chosen: list[str]) -> int:
    """Run the versions that are named, or all; the default last, whose build the other tests use."""
    if unknown := set(chosen) - set(minors()):
        raise SystemExit(f"got {', '.join(sorted(unknown))}, wants some of {', '.join(minors())}")
    order = sorted(chosen or minors(), key=lambda minor: minor == default_minor())
    codes = [run(minor) for minor in order]
    RESULTS.write_text(page([report for minor in minors() if (report := read_report(minor))]), "utf-8")
    print(f"{RESULTS.relative_to(ROOT)} written")
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
