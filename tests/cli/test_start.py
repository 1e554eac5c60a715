# SPDX-License-Identifier: Apache-2.0
"""The CPU time that the command line needs to start: verbs are imported only when they are called."""

import resource
import subprocess
import sys

import pytest

from tests.bench.measure import reference

REFERENCE_MS = 2.0
"""Milliseconds of the reference loop of `make bench` on the machine for which the bounds hold; they scale with it."""
BOUNDS: dict[tuple[str, ...], float] = {("--version",): 0.25, ("policy", "lint"): 0.5}
"""Seconds of CPU for each command on that machine."""
ROUNDS = 10
"""Rounds at most: beside other work some take half as much again, as what is imported falls out of the cache."""
LIGHT = ("main", "help", "manual", "verbs")
HEAVY = ("fastapi", "pydantic", "kubernetes", "yaml", "cryptography", "uvicorn", "aiohttp", "httpx")


def cpu_seconds(words: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "app.cli.main", *words], check=True, capture_output=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", BOUNDS, ids=" ".join)
def test_command_starts_within_its_cpu_time(words: tuple[str, ...]) -> None:
    """The CPU time is compared with the reference loop in the same run, and one round within the bound is enough."""
    ratios = (cpu_seconds(words) / reference() for _ in range(ROUNDS))

    assert any(ratio <= BOUNDS[words] / REFERENCE_MS for ratio in ratios)


def test_version_imports_no_verb_and_nothing_heavy() -> None:
    code = (
        "import sys; from app.cli.verbs import app; import typer.main; typer.main.get_command(app); "
        "print(*(each for each in sys.modules if each.split('.')[0] in "
        f"{HEAVY!r} or each.startswith('app.cli.') and each.split('.')[2] not in {LIGHT!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)

    assert done.stdout.split() == []
