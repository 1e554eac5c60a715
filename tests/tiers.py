# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.tiers TIER…`: run the tests of one or more tiers, and print how long each took.

`test` needs only Python. `e2e` runs real components: the control plane, Prometheus, HAProxy, helm. `browser` runs
Chromium. `nodes` runs kubelets, containers and NVIDIA's components in a sandbox. `thorough` generates inputs by the
hundred thousand. `kubernetes` is the part of `e2e` that starts Kubernetes' own programs, which `make e2e-versions` runs
on every supported version. Tests marked `long` run only in `make test-long`.

The last lines name all tests that failed, whichever tier they are of.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from tests.junit_report import read
from tests.realnodes.sandbox import missing

KUBERNETES = (
    "tests/e2e/",
    "tests/corpus/test_corpus_e2e.py",
    "tests/deploy/test_chart.py",
    "tests/deploy/test_digests.py",
    "tests/deploy/test_doctor.py",
    "tests/deploy/test_identities.py",
    "tests/deploy/test_network_policy.py",
)
MARKS: Mapping[str, tuple[str, ...]] = {
    "kubernetes": KUBERNETES,
    "components": (
        *KUBERNETES,
        "tests/neighbours/",
        "tests/api/test_rolling.py",
        "tests/chaos/test_replicas.py",
        "tests/cluster/test_prometheus.py",
        "tests/deploy/test_image.py::test_buildkit",
        "tests/dra/test_selectors_go.py",
        "tests/telemetry/test_dashboard.py::test_prometheus",
        "tests/telemetry/test_metrics.py::test_metrics_are_named",
        "tests/telemetry/test_metrics.py::test_the_linter",
        "tests/telemetry/test_rules.py",
        "tests/telemetry/test_stack.py",
        "tests/usage/test_prometheus_day.py",
    ),
    "browser": ("tests/browser/",),
    "nodes": ("tests/realnodes/",),
    "thorough": (
        "tests/admission/test_affinity_necessary.py",
        "tests/admission/test_hundred_thousand.py",
        "tests/fuzz/",
        "tests/placement/test_twin.py",
        "tests/release/test_release.py",
    ),
}
"""Mark → the first characters of the names of the tests that tests/conftest.py gives it."""
TIERS: Mapping[str, str] = {
    "e2e": "components",
    "kubernetes": "kubernetes",
    "browser": "browser",
    "nodes": "nodes",
    "thorough": "thorough",
}
"""Tier → the mark of its tests; `test` are those without any."""
SANDBOX = (sys.executable, "-m", "tests.realnodes.sandbox")
SHARED = ("--dist", "loadfile", "--no-loadscope-reorder", "-n")
"""Options for processes that share the tests file by file, in the order of tests/conftest.py; their number follows."""
PROCESSES: Mapping[str, str] = {"test": "3", "e2e": "3"}
"""Tier → how many processes share it, or else 2: on two cores `test` took 272 s instead of 280 s, and `e2e` beside
`test` 2,195 s instead of 2,253 s beside `nodes`, one run each; a third of its time e2e waits."""
BESIDE = "nodes"
"""The tier that runs beside the others: one process in a sandbox of its own, which waits for kubelets half of its
time."""


def selection(tier: str) -> tuple[str, ...]:
    """Write the arguments that select the tests of a tier, from their files alone, as each process reads them all."""
    if tier == "test":
        others = dict.fromkeys(f"--ignore={name}" for names in MARKS.values() for name in names if "::" not in name)
        return "-m", f"not ({' or '.join((*MARKS, 'long'))})", *others
    mark = TIERS[tier]
    return "-m", f"{mark} and not long", *dict.fromkeys(name.partition("::")[0] for name in MARKS[mark])


def run(tier: str, reports: Path, output: IO[bytes] | None = None) -> int:
    """Run a tier, which writes to `output`, or else as this process does; return pytest's exit code.

    Prints how long it took, and the CPU time of it and its children. Leaves a report in the folder `reports`.
    """
    pytest = (sys.executable, "-m", "pytest", "--junitxml", str(reports / f"{tier}.xml"))
    command = (
        (*SANDBOX, *pytest, *selection(tier))
        if tier == "nodes" and not missing()
        else (*pytest, *SHARED, PROCESSES.get(tier, "2"), *selection(tier))
    )
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT if output else None, env=environment())
    _, status, spent = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    figures = f"{tier}: {time.monotonic() - began:.0f} s, {spent.ru_utime + spent.ru_stime:.0f} s of CPU\n"
    (output or sys.stdout.buffer).write(figures.encode())
    sys.stdout.flush()
    return process.returncode


def environment() -> dict[str, str]:
    """Return the environment of the tests, in which compiled modules are kept: hundreds of them start Python anew."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def main(tiers: list[str]) -> int:
    """Run tiers, also after one that failed, say which tests failed, and return the first exit code that is not 0."""
    with tempfile.TemporaryDirectory() as folder:
        code = run_all(tiers, Path(folder))
        for line in failures(Path(folder)):
            print(line)
    return code


def run_all(tiers: list[str], reports: Path) -> int:
    """Run tiers one after another, and `nodes` beside them, since it is one process that often waits.

    The output of `nodes` follows that of the others.
    """
    if tiers == [BESIDE] or BESIDE not in tiers:
        return first_failure(run(tier, reports) for tier in tiers)
    with tempfile.TemporaryFile() as output, ThreadPoolExecutor(1) as beside:
        nodes = beside.submit(run, BESIDE, reports, output)
        codes = [run(tier, reports) for tier in tiers if tier != BESIDE]
        codes.append(nodes.result())
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout.buffer)
    return first_failure(codes)


def failures(reports: Path) -> Iterator[str]:
    """Name the tests that failed, and say why: the start of what pytest says of each."""
    for report in sorted(reports.glob("*.xml")):
        for test in read(report)[1]:
            if test.outcome == "failed":
                yield f"{report.stem}: {test.file}.py::{test.name} failed: {test.why}"


def first_failure(codes: Iterable[int]) -> int:
    """Return the first exit code that is not 0, of all codes."""
    return next((code for code in [*codes] if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
