# SPDX-License-Identifier: Apache-2.0
"""Reading of the reported situations, and the page of tests/results that lists them.

A situation is a folder beside this file: `case.yaml`, and the files that its commands read (`pod.yaml`, `nodes.yaml`).
Names of clusters, nodes and people are neutral; what decides is as in the report. `python -m tests.reports` writes the
page.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.docstrings import ROOT

FOLDER = Path(__file__).parent
PAGE = ROOT / "tests" / "results" / "reports.md"

KINDS = {
    "creation": "Pods that the API server itself refuses",
    "absent": "GPU nodes that offer no GPU",
    "counts": "Counts that contradict each other",
    "shared": "Several units of a shared GPU",
    "health": "Nodes that report a fault of their GPUs",
    "vendor": "GPUs of AMD, Intel and others",
    "runtime": "Runtime classes and handlers",
    "mig": "MIG layouts",
    "images": "CPU architecture and CUDA of images",
    "names": "Resources by other names",
    "changes": "The smallest change",
    "taints": "Taints that pass, or that nobody may tolerate",
    "start": "Containers that do not start",
    "containers": "Which container asks",
    "products": "Variants of a product",
    "claims": "Claims of devices",
    "scheduler": "Schedulers and the extender",
}
"""Kind of a situation → its heading on the page, in this order."""
SOURCE = re.compile(r"([\w.-]+/[\w.-]+)(?:#\d+| \S.*)")
"""A source: OWNER/REPOSITORY#NUMBER for an issue or pull request, or OWNER/REPOSITORY and a path in it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One command, with the exit code and the texts that its output has, and has not."""

    words: tuple[str, ...]
    exit_code: int
    has: tuple[str, ...]
    lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """One reported situation.

    `right` is the right answer with its reason. `before` is what gpu-usher answered on commit ff396fc, in one line.
    The first text of the first run's `has` is what the page shows as the answer.
    """

    name: str
    kind: str
    title: str
    sources: tuple[str, ...]
    situation: str
    right: str
    before: str
    runs: tuple[Run, ...]

    @property
    def folder(self) -> Path:
        """The folder with its files."""
        return FOLDER / self.name

    @property
    def says(self) -> str:
        """The answer that the page shows."""
        return self.runs[0].has[0]


def situations() -> tuple[Situation, ...]:
    """Read every situation, by name."""
    return tuple(_read(path) for path in sorted(FOLDER.glob("*/case.yaml")))


def _read(path: Path) -> Situation:
    case: dict[str, Any] = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
    return Situation(
        path.parent.name,
        case["kind"],
        case["title"],
        tuple(case["sources"]),
        case["situation"],
        case["right"],
        case["before"],
        tuple(_run(run, path.parent) for run in case["runs"]),
    )


def _run(run: dict[str, Any], folder: Path) -> Run:
    """Read a command; words that name files of the folder become their paths."""
    words = tuple(str(folder / word) if (folder / word).exists() else word for word in shlex.split(run["run"]))
    return Run(words, run["exit"], tuple(run.get("has", ())), tuple(run.get("lacks", ())))


def projects(reported: tuple[Situation, ...]) -> frozenset[str]:
    """Give the repositories of all sources."""
    return frozenset(match[1] for each in reported for source in each.sources if (match := SOURCE.fullmatch(source)))


def page() -> str:
    """Write the page: a table for each kind."""
    reported = situations()
    return "\n".join(
        [
            f"""\
# What people reported

`python -m tests.reports` wrote this, from the folders of `tests/reports`.

{len(reported)} situations from the issues and sources of {len(projects(reported))} projects, rebuilt with neutral
names. Each is a test whose folder has the files, the right answer and its reason.
""",
            *_tables(reported),
        ]
    )


def _tables(reported: tuple[Situation, ...]) -> Iterator[str]:
    for kind, heading in KINDS.items():
        rows = [each for each in reported if each.kind == kind]
        if rows:
            yield f"## {heading}\n\n| situation | reported in | gpu-usher says |\n|---|---|---|"
            yield from (
                f"| [{_cell(each.title)}](../reports/{each.name}) | {', '.join(each.sources)} | {_cell(each.says)} |"
                for each in rows
            )
            yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
