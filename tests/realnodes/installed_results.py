# SPDX-License-Identifier: Apache-2.0
"""tests/results/installed.md: what the tests of an installation on real nodes measured, where the run is to keep it."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).parents[1] / "results" / "installed.md"
ASKED = "GPU_USHER_INSTALLED_RESULTS"
"""A run with this variable set writes the file anew; any other leaves it, so that a table is of one quiet machine."""
HEAD = f"""\
# Installed on real nodes

A run of `tests/realnodes` with `{ASKED}=1` wrote this: three kubelets, our image from the Dockerfile,
`deploy/overlays/production-self-signed`, and the chart with the same values. GPU pods with requests only
are created as dry runs by two callers without a pause, through kube-apiserver and the real Service, with the failure
policies as shipped. Failed are those that the API server refused, or let pass without a decision of ours.
"""
STEPS = "| at | step | admitted so far | failed so far |\n|---|---|---|---|\n"
USAGE = (
    "Peak is the kernel's own highest memory of one container, page cache included; anonymous is without it. CPU is\n"
    "the most that one container used within a second, and what all of its name used together.\n\n"
    "| container | memory request / limit | peak | anonymous | CPU request / limit, cores | most cores | CPU time |"
    " throttled |\n|---|---|---|---|---|---|---|---|\n"
)


@dataclass
class InstalledResults:
    """The sections of the file, by their titles."""

    sections: dict[str, str] = field(default_factory=dict)

    def add_steps(self, title: str, rows: list[str]) -> None:
        """Add the steps that were taken while pods were created."""
        self.sections[title] = STEPS + "\n".join(rows) + "\n"

    def add_usage(self, title: str, rows: list[str]) -> None:
        """Add what the containers used meanwhile."""
        self.sections[title] = USAGE + "\n".join(rows) + "\n"


def _text(results: InstalledResults) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}.\n"
    return "\n".join([HEAD + machine, *(f"## {title}\n\n{text}" for title, text in results.sections.items())])


@contextmanager
def kept_results() -> Iterator[InstalledResults]:
    """Collect what tests measured that succeeded, and write the file at the end if the run was asked to."""
    results = InstalledResults()
    yield results
    if os.environ.get(ASKED) and results.sections:
        FILE.write_text(_text(results), "utf-8")
