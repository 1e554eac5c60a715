# SPDX-License-Identifier: Apache-2.0
"""The documentation has no idiom that a reader who knows Kubernetes has to read twice, and does not grow."""

import re
from pathlib import Path

import pytest

from tests.docstrings import ROOT

PAGES = (
    *(
        ROOT / name
        for name in (
            *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "DEPENDENCIES.md", "GOVERNANCE.md"),
            *("MAINTAINERS.md", "REVIEW.md", "ROADMAP.md", "deploy/README.md", "policies/README.md"),
        )
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
)
IDIOM = re.compile(
    r"\b(?:seats?|seated|lifts?|homeless|ailing|ghosts?|kin|told|tell apart|tells apart|amounts? to|the door|mends?|"
    r"mended|for ever|as ever|milder|graver|for nobody|lets? in|lays? over|let in|"
    r"goes (?:on|by|through|around|away)|go on|stands? (?:still|in|by|for|beside|twice)|give away|gives away|given out|"
    r"gives out|looks? on|heard|hears|told so)\b|\bwhom\b|\bto who\b|\bfor who\b|(?:^|[.;:,] )[Ww]ho (?!is\b|are\b)",
    re.MULTILINE,
)
"""Words of the review of 2026-11-25 for which Kubernetes, kube-scheduler and NVIDIA have others."""
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL)
"""Code, output of commands and addresses of links, which are not prose."""
QUOTED = "| instead of | write |"
"""The head of the table of CONTRIBUTING.md that shows idiom beside better words."""
MOST_WORDS = 38_000
"""Words of docs/, deploy/README.md and policies/README.md, as `wc -w` counts them."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_has_no_idiom(page: Path) -> None:
    text = CODE.sub("", page.read_text("utf-8").partition(QUOTED)[0])

    assert [match[0] for match in IDIOM.finditer(text)] == []


def test_documentation_does_not_grow() -> None:
    """A new fact replaces an old one, or says in a decision record why it needs the room."""
    texts = [path.read_text("utf-8") for path in PAGES[9:]]

    assert sum(len(text.split()) for text in texts) <= MOST_WORDS
