# SPDX-License-Identifier: Apache-2.0
"""Links in Markdown pages: the anchors that a page has, and the links of a page that lead nowhere."""

import re
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s]+)\)")
ID = re.compile(r'<a id="([\w-]+)">')


def slug(heading: str) -> str:
    """Write the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> frozenset[str]:
    """List what a link to a page can name: its headings, and the ids that it sets itself."""
    return frozenset((*map(slug, re.findall(r"^#+ (.*)$", text, re.MULTILINE)), *ID.findall(text)))


def leads_somewhere(target: Path, anchor: str | None) -> bool:
    """Tell whether a file is there and has the anchor, if one is named."""
    return target.exists() and (not anchor or anchor in anchors(target.read_text("utf-8")))


def broken_links(page: Path, text: str) -> list[str]:
    """List the links of a page to files that do not exist, and to headings that the file does not have."""
    links = [link for link in LINK.findall(text) if "://" not in link and not link.startswith("mailto:")]
    return [link for link in links if not _resolves(page, link)]


def _resolves(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    return leads_somewhere((page.parent / name) if name else page, anchor)
