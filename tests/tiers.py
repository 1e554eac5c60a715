# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.tiers TIER…`: run the tests of one or more tiers, and print how long each took.

`test` needs only Python. `e2e` runs real components: the control plane, Prometheus, HAProxy, helm. `browser` runs
Chromium. `nodes` runs kubelets, containers and NVIDIA's components in a sandbox. `thorough` generates inputs by the
hundred thousand. `kubernetes` is the part of `e2e` that starts Kubernetes' own programs, which `make e2e-versions` runs
on every supported version. Tests marked `long` run only in `make test-long`.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Mapping

from tests.realnodes.sandbox import missing

KUBERNETES = (
    "tests/e2e/",
    "tests/corpus/test_corpus_e2e.py",
    "tests/deploy/test_chart.py",
    "tests/deploy/test_digests.py",
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
        "tests/telemetry/test_dashboard.py::test_prometheus",
        "tests/telemetry/test_metrics.py::test_metrics_are_named",
        "tests/telemetry/test_metrics.py::test_the_linter",
        "tests/telemetry/test_rules.py",
        "tests/telemetry/test_stack.py",
    ),
    "browser": ("tests/browser/",),
    "nodes": ("tests/realnodes/",),
    "thorough": (
        "tests/admission/test_affinity_necessary.py",
        "tests/admission/test_hundred_thousand.py",
        "tests/fuzz/",
        "tests/placement/test_twin.py",
    ),
}
"""Mark → the first characters of the names of the tests that tests/conftest.py gives it."""
TIERS: Mapping[str, str] = {
    "test": "not (components or browser or nodes or thorough or long)",
    "e2e": "components and not long",
    "kubernetes": "kubernetes and not long",
    "browser": "browser and not long",
    "nodes": "nodes and not long",
    "thorough": "thorough and not long",
}
"""Tier → the marks by which pytest selects its tests."""
SANDBOX = (sys.executable, "-m", "tests.realnodes.sandbox")
SHARED = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
"""Options for two processes that share the tests file by file, in the order of tests/conftest.py."""


def run(tier: str) -> int:
    """Run a tier, and return pytest's exit code."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    pytest = (sys.executable, "-m", "pytest")
    command = (
        (*SANDBOX, *pytest, "-m", TIERS[tier])
        if tier == "nodes" and not missing()
        else (*pytest, *SHARED, "-m", TIERS[tier])
    )
    code = subprocess.run(command, check=False).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{tier}: {time.monotonic() - began:.0f} s, {spent:.0f} s of CPU", flush=True)
    return code


def main(tiers: list[str]) -> int:
    """Run tiers one after another, also after one that failed, and return the first exit code that is not 0."""
    return next((code for code in [run(tier) for tier in tiers] if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
