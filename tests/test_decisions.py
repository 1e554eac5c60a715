# SPDX-License-Identifier: Apache-2.0
"""The decision records in docs/decisions are complete, listed in their index, and name files that exist."""

import re
from pathlib import Path

import pytest

from tests.markdown_links import broken_links

REPOSITORY = Path(__file__).parent.parent
FOLDER = REPOSITORY / "docs" / "decisions"
INDEX = FOLDER / "README.md"
RECORDS = tuple(sorted(path for path in FOLDER.glob("*.md") if path != INDEX))
HEADINGS = ["Context", "Decision", "Consequences"]
REPLACED = {5, 7}
"""Records that were merged into those that replace them."""
MOST_WORDS = 250
"""A record is its context, the choice and the consequences, in a few lines each."""

_DATE = re.compile(r"^Date: (\d{4}-\d\d-\d\d(?:, extended \d{4}-\d\d-\d\d)?)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?")
_DOMAIN = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+/")
"""The start of a qualified name of Kubernetes, such as `nvidia.com/gpu`, which is no path."""


def paths_named(text: str) -> list[str]:
    """List the paths within the repository that a text names in backticks, recognised by a slash."""
    return [code for code in _CODE.findall(text) if _PATH.fullmatch(code) and not _DOMAIN.match(code)]


def _title(text: str) -> tuple[str, str]:
    """Split the first line of a record into its number and its title."""
    number, title = re.fullmatch(r"# (\d+)\. (.+)", text.partition("\n")[0]).groups()  # type: ignore[union-attr]
    return number, title


def test_number_of_a_replaced_record_is_not_given_again() -> None:
    numbers = [int(path.name[:4]) for path in RECORDS]

    assert len(numbers) == len(set(numbers))
    assert not REPLACED & set(numbers)


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem[:4])
def test_record_has_a_number_a_title_a_date_and_the_three_headings(record: Path) -> None:
    text = record.read_text("utf-8")
    number, title = _title(text)

    assert record.stem == f"{int(number):04}-{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')}"
    assert len(_DATE.findall(text)) == 1
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[-3:] == HEADINGS
    assert all(part.strip() for part in re.split(r"^## .+$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem[:4])
def test_record_is_short(record: Path) -> None:
    assert len(record.read_text("utf-8").split()) <= MOST_WORDS


@pytest.mark.parametrize("page", [INDEX, *RECORDS], ids=lambda path: path.stem[:6])
def test_links_and_paths_of_a_page_lead_to_files_of_the_repository(page: Path) -> None:
    text = page.read_text("utf-8")

    assert broken_links(page, text) == []
    assert [path for path in paths_named(text) if not (REPOSITORY / path).exists()] == []


def test_index_lists_each_record_once_with_its_number() -> None:
    entries = re.findall(r"^- \[(\d+)\. [^\]]+\]\(([^)]+)\)$", INDEX.read_text("utf-8"), re.MULTILINE)

    assert sorted(name for _, name in entries) == [path.name for path in RECORDS]
    assert [(number, name) for number, name in entries if int(number) != int(name[:4])] == []


def test_a_path_a_name_and_a_route_in_backticks_are_told_apart() -> None:
    text = "`app/cli`, `.ci/run`, `nvidia.com/gpu`, `/mutate`, `mig-*.count`, `make lock`, `docs/none.md`"

    assert paths_named(text) == ["app/cli", ".ci/run", "docs/none.md"]


def test_broken_links_are_found() -> None:
    text = "[a](0001-none.md) [b](README.md#no-such-heading) [c](README.md#decisions) [d](https://example.com/none)"

    assert broken_links(INDEX, text) == ["0001-none.md", "README.md#no-such-heading"]
