# SPDX-License-Identifier: Apache-2.0
"""The citations in the tree: rows by id, documents by path and heading, fact tables by key; and whether each exists."""

import re
from collections.abc import Iterator
from functools import cache

import yaml

from tests.chaos.faults import FAULTS, numbers
from tests.docstrings import ROOT
from tests.markdown_links import broken_links, leads_somewhere

TREES = ("app", "tests", "deploy", "policies", "docs", ".ci")
TEXTS = {".md", ".py", ".yaml", ".yml", ".sh", ""}
RECORDED = ("tests/contract/", "tests/corpus/", "tests/reports/", "tests/results/reports.md")
"""Folders of generated files, and of files of other projects."""
READERS = {
    "tests/citations.py", "tests/test_citations.py", "tests/chaos/test_table.py", "tests/test_decisions.py",
}  # fmt: skip
"""Files with ids and links that lead nowhere, which test their reading."""
TEMPLATE = "tests/policy/page.md"
"""Part of policies/README.md, from which its links are relative; that page is checked itself."""
KNOWLEDGE = "app/knowledge/"
"""Folder of the fact tables, whose sources are documents of other projects, so that only our reference is checked."""

TABLES = ("docs/features.md", "docs/reference/requirements.md", "tests/results/pains.md")
"""Pages with a row for each feature, requirement and complaint."""
FIRST_CELL = re.compile(r"^\| ([A-Z]+-?\d+) \|", re.MULTILINE)
ROW = re.compile(r"(?<![\w.#/-])[FSP][1-9]\d{0,2}(?![\w-])")
NO_ROWS = {"P100", "P256"}
"""Names of a GPU and of an elliptic curve, which look like rows."""
REQUIREMENT = re.compile(r"\b(?:ADM|EXT|TLS|RBAC|NET|PSS|HA|CACHE|MET|LOG|AUD|CFG|SUP)-\d\d\b")
DOCUMENT = re.compile(r"(?<![\w./-])((?:(?:docs|tests|deploy|policies)/[\w./-]*|[A-Z]+)\.md)(?:#([\w-]+))?")
TABLE = re.compile(r"\bapp/knowledge/(\w+\.yaml)(?:(?:, | \()([a-z]+_[a-z_]+|[a-z]+)\b)?")
OUTSIDE = re.compile(
    r"\b(?:INTERFACES|OPERATIONS|CONTROL_PLANE|REAL_NODE)\b"
    r"|\b(?:ANCHORS|DECISIONS|DESIGN|FEATURES|PAINS|PLACEMENT|STYLE)(?: §| [FPS]?\d|\.md §)"
    r"|(?<!RFC \d{4} )(?<!WHATWG HTML )§"
    r"|\b(?:gfd_labels|k8s_rules|k8s rules)\b|\b[Ff]acts?: \w+\.yaml"
)
"""Names of papers that are not in the repository, and sections of documents that are not standards."""


def texts() -> Iterator[tuple[str, str]]:
    """Read every text file that people write: its path from the root, and its text."""
    files = [path for tree in TREES for path in sorted((ROOT / tree).rglob("*"))]
    for path in (*sorted(ROOT.iterdir()), *files):
        name = str(path.relative_to(ROOT))
        if path.is_file() and path.suffix in TEXTS and not name.startswith((*RECORDED, ".git")) and name not in READERS:
            yield name, path.read_text("utf-8", errors="replace")


def places(pattern: re.Pattern[str], name: str, text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Find a pattern in a text; yields the place to show, with path, line and words, and the match."""
    for match in pattern.finditer(text):
        yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}", match


@cache
def known() -> frozenset[str]:
    """List the ids that have a row."""
    return frozenset(row for page in TABLES for row in FIRST_CELL.findall((ROOT / page).read_text("utf-8"))) | NO_ROWS


def lost(name: str, text: str) -> Iterator[str]:
    """List the citations of a text that lead nowhere."""
    for pattern in (ROW, REQUIREMENT):
        yield from (place for place, match in places(pattern, name, text) if match[0] not in known())
    faults = {fault.number for fault in FAULTS}
    yield from (f"{name}: fault {number}" for number in sorted(numbers(text) - faults))
    for place, match in places(DOCUMENT, name, text):
        ours = match[1].startswith("docs/reference/") or not name.startswith(KNOWLEDGE)
        if ours and not leads_somewhere(ROOT / match[1], match[2]):
            yield place
    yield from (place for place, match in places(TABLE, name, text) if not _in_table(match[1], match[2]))
    if name.endswith(".md") and name != TEMPLATE:
        yield from (f"{name}: {link}" for link in broken_links(ROOT / name, text))


def _in_table(table: str, key: str | None) -> bool:
    """Tell whether a fact table is there and has the key, if one is named."""
    return (ROOT / KNOWLEDGE / table).exists() and (key is None or key in _keys(table))


@cache
def _keys(table: str) -> frozenset[str]:
    """List the keys of a fact table."""
    return frozenset(yaml.load((ROOT / KNOWLEDGE / table).read_text("utf-8"), yaml.CSafeLoader))
