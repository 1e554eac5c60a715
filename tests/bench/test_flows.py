# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md describes the three flows through the files that are really called."""

import re
from operator import gt
from pathlib import Path

from tests.bench.flows import MOST_FILES, MOST_STAYS, Flow, flows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
SECTIONS = {
    "POST /mutate": "An AdmissionReview",
    "POST /scheduler/filter": "A filter call",
    "node event": "A node event",
}
OUTSIDE = ("server/protocol.py", "server/limits.py", "api/direct_routes.py", "cluster/reflector.py", "cluster/live.py",
           "cluster/watched_kinds.py", "placement/scorers.py", "placement/ranking.py",
           "policy/demand.py")  # fmt: skip
"""Files that the page names and a warm flow does not enter: those of the way from the socket, and the record Demand."""

MOST_DRAWN = 10
"""Rooms that a newcomer needs for a change to a filter or a mutator; the others are wings."""


def flow_files(section: str) -> list[str]:
    text = PAGE.split(f"### {section}\n")[1].split("\n###")[0]
    return [path for path in re.findall(r"`([a-z_/]+\.py)`", text) if path not in OUTSIDE]


def test_page_names_files_that_the_flows_enter() -> None:
    played: dict[str, Flow] = flows()
    for name, section in SECTIONS.items():
        assert set(flow_files(section)) <= set(played[name].files), name


def test_every_file_and_room_that_the_page_names_is_there() -> None:
    rooms = {folder.name for folder in (ROOT / "app").iterdir() if (folder / "__init__.py").exists()}
    section = PAGE.split("## Directories\n")[1].split("\n## ")[0]
    drawn = set(re.findall(r"\b([a-z]+)\[", section))
    wings = {
        room for row in re.findall(r"^\| .* \|$", section, re.MULTILINE) for room in re.findall(r"`([a-z]+)`", row)
    }

    assert len(drawn) <= MOST_DRAWN
    assert drawn | wings == rooms
    assert [
        path for path in re.findall(r"`([a-z_/]+/[a-z_]+\.py)`", PAGE + GLOSSARY) if not (ROOT / "app" / path).exists()
    ] == []


def test_warm_flow_keeps_to_its_budget_of_files_and_stays() -> None:
    """F83."""
    played = {name: (len(flow.files), flow.stays) for name, flow in flows().items()}
    most = {name: (MOST_FILES[name], MOST_STAYS[name]) for name in played}

    assert {name: (had, most[name]) for name, had in played.items() if any(map(gt, had, most[name]))} == {}
