# SPDX-License-Identifier: Apache-2.0
"""What the tests of an installation and of an upgrade on real nodes measured, in tests/results where the run asks."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.former_release import TAG

FILE, UPGRADE_FILE = (Path(__file__).parents[1] / "results" / f"{name}.md" for name in ("installed", "upgrade"))
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


UPGRADE_HEAD = f"""\
# Upgrade from {TAG} and back

A run of `tests/realnodes/test_upgrade.py` with `{ASKED}=1` wrote this: three kubelets, the images of both
releases from their own Dockerfiles, and both releases' `deploy/overlays/production-self-signed` by the commands of
[deploy/README.md](../../deploy/README.md#upgrade-roll-back-uninstall). Meanwhile two callers create GPU pods with
requests only as dry runs without a pause, and a user creates pods and workloads and edits policies, with the failure
policies as shipped. Failed are creations that the API server refused, or let pass without a decision of ours. A GPU pod
waits longest while another replica of the second scheduler becomes leader, by its Lease of 15 s.
"""


@dataclass
class InstalledResults:
    """The sections of the file, by their titles; `head` comes before them."""

    head: str = HEAD
    sections: dict[str, str] = field(default_factory=dict)

    def add_steps(self, title: str, rows: list[str]) -> None:
        """Add the steps that were taken while pods were created."""
        self.sections[title] = STEPS + "\n".join(rows) + "\n"

    def add_lines(self, title: str, text: str) -> None:
        """Add a section of Markdown."""
        self.sections[title] = text

    def add_usage(self, title: str, rows: list[str]) -> None:
        """Add what the containers used meanwhile."""
        self.sections[title] = USAGE + "\n".join(rows) + "\n"


def _text(results: InstalledResults) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}.\n"
    return "\n".join([results.head + machine, *(f"## {title}\n\n{text}" for title, text in results.sections.items())])


@contextmanager
def kept_results(file: Path = FILE, head: str = HEAD) -> Iterator[InstalledResults]:
    """Collect what tests measured that succeeded, and write the file at the end if the run was asked to."""
    results = InstalledResults(head)
    yield results
    if os.environ.get(ASKED) and results.sections:
        file.write_text(_text(results), "utf-8")
