# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.upstream [LEG…]`: run the suite without and with gpu-usher, and write what differs.

Two clusters run side by side. The table of differences goes to tests/results/upstream.md, and must be empty: the exit
code is 1 where it is not. `UPSTREAM_FOCUS` is another choice of tests, as ginkgo's --focus takes it.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

from tests.controlplane.module_files import kubernetes_version
from tests.docstrings import TESTS
from tests.realnodes.sandbox import missing
from tests.upstream import programs
from tests.upstream.leg import LEGS

RESULTS = TESTS / "results" / "upstream.md"
FOCUS = (
    r"\[sig-scheduling\]|\[sig-apps\] (ReplicaSet|ReplicationController|Deployment|DaemonSet|Daemon set|Job"
    r"|DisruptionController)|AdmissionWebhook|ResourceQuota"
    r"|\[sig-node\] (Pods Extended|Pods should|Pod InPlace Resize Container \((limit|resource|scheduler))"
    r"|\[DRA\] control plane"
)
"""Scheduling, preemption, workloads, webhooks, quotas, pods, resize and claims."""
Outcomes = Mapping[str, str]
"""Test → passed, failed or skipped."""


def main(legs: tuple[str, ...]) -> int:
    """Run the legs, two at a time, and compare each with the first."""
    if why := missing():
        print(f"upstream: skipped: {why}")
        return 0
    programs.build()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-usher-upstream-") as folder, ThreadPoolExecutor(2) as pool:
        outcomes = dict(zip(legs, pool.map(lambda leg: _run(leg, Path(folder, leg)), legs), strict=True))
    page = write(outcomes, time.monotonic() - began, _focus())
    RESULTS.write_text(page, "utf-8")
    print(page)
    return int(any(differences(outcomes[legs[0]], outcomes[leg]) for leg in legs[1:]) or not outcomes[legs[0]])


def _focus() -> str:
    return os.environ.get("UPSTREAM_FOCUS", FOCUS)


def _run(leg: str, folder: Path) -> Outcomes:
    sandbox = [sys.executable, "-m", "tests.realnodes.sandbox", sys.executable, "-m", "tests.upstream.leg"]
    done = subprocess.run([*sandbox, leg, _focus(), str(folder)], capture_output=True, text=True, check=False)
    report = folder / "report.xml"
    if not report.is_file():
        log = (folder / "log").read_text("utf-8", errors="replace")[-2000:] if (folder / "log").is_file() else ""
        raise SystemExit(f"upstream: {leg} ended with {done.returncode} and no report\n{done.stderr[-2000:]}\n{log}")
    return read(report.read_text("utf-8"))


def read(report: str) -> Outcomes:
    """Read a JUnit report of ginkgo; tests that the focus leaves out are not in the outcomes."""
    cases = ElementTree.fromstring(report).iter("testcase")  # written by the runner that we started
    named = {case.get("name", ""): case for case in cases if (case.get("name") or "").startswith("[It]")}
    return {name.removeprefix("[It] "): _outcome(case) for name, case in named.items() if not _left_out(case)}


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def _left_out(case: ElementTree.Element) -> bool:
    """Tell whether a test was not chosen: one that skips itself says why, and one that was not chosen does not."""
    skipped = case.find("skipped")
    return skipped is not None and skipped.get("message", "skipped") == "skipped"


def differences(one: Outcomes, other: Outcomes) -> list[tuple[str, str, str]]:
    """List the tests that ended otherwise in the second: their names, and how they ended in each."""
    names = sorted({*one, *other})
    return [
        (name, one.get(name, "not run"), other.get(name, "not run"))
        for name in names
        if one.get(name) != other.get(name)
    ]


def write(outcomes: Mapping[str, Outcomes], seconds: float, focus: str) -> str:
    """Write the page: which tests were run, how many tests ended how in each leg, and what differs from the first."""
    first = next(iter(outcomes))
    lines = [
        "# Kubernetes' own end-to-end suite, without and with gpu-usher",
        "",
        f"`make e2e-upstream` wrote this, with Kubernetes {kubernetes_version()} on three real nodes,"
        f" in {seconds / 60:.0f} minutes. The tests are those that ginkgo's `--focus={focus}` chooses.",
        "",
        "| leg | passed | failed | skipped by itself |",
        "|---|---|---|---|",
    ]
    for leg, ended in outcomes.items():
        counts = [sum(outcome == name for outcome in ended.values()) for name in ("passed", "failed", "skipped")]
        lines.append(f"| {leg} | {' | '.join(map(str, counts))} |")
    lines += [
        "",
        f"## Tests that end otherwise than in `{first}`",
        "",
        f"| leg | test | {first} | with gpu-usher |",
        "|---|---|---|---|",
    ]
    for leg in list(outcomes)[1:]:
        lines += [
            f"| {leg} | {name} | {one} | {other} |" for name, one, other in differences(outcomes[first], outcomes[leg])
        ]
    failed = [name for name, outcome in outcomes[first].items() if outcome == "failed"]
    lines += ["", f"## Tests that fail in `{first}` as well", "", *(f"- {name}" for name in sorted(failed))]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or LEGS))
