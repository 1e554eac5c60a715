# SPDX-License-Identifier: Apache-2.0
"""Every citation in the tree resolves inside the repository, and no paper outside it is named."""

import pytest

from tests.citations import FIRST_CELL, OUTSIDE, TABLES, lost, places, texts
from tests.docstrings import ROOT

FILES = dict(texts())


def test_every_citation_leads_somewhere() -> None:
    assert [place for name, text in FILES.items() for place in lost(name, text)] == []


def test_every_id_has_one_row() -> None:
    ids = [row for page in TABLES for row in FIRST_CELL.findall((ROOT / page).read_text("utf-8"))]

    assert len(ids) > 200
    assert len(ids) == len(set(ids))


def test_every_feature_names_a_test_or_how_it_is_tried() -> None:
    rows = [line for line in (ROOT / TABLES[0]).read_text("utf-8").splitlines() if FIRST_CELL.match(line)]

    assert [row for row in rows if "](../tests/" not in row and "by hand: " not in row] == []


def test_no_paper_outside_the_repository_is_named() -> None:
    assert [place for name, text in FILES.items() for place, _ in places(OUTSIDE, name, text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "see F999",
        "HA-99",
        "fault 65",
        "docs/reference/policy.md#no-such-heading",
        "docs/decisions/9999-never.md",
        "app/knowledge/cuda_driver.yaml, no_such_key",
        "app/knowledge/no_such_table.yaml, rules",
        "[x](nowhere.md)",
    ],
)
def test_citation_that_leads_nowhere_is_found(text: str) -> None:
    assert len(list(lost("docs/page.md", text))) == 1


@pytest.mark.parametrize(
    "text", ["INTERFACES §4", "OPERATIONS fault 24", "DESIGN §2", "STYLE 13", "PAINS P1", "§4.5", "Facts: dcgm.yaml"]
)
def test_paper_outside_the_repository_is_found(text: str) -> None:
    assert list(places(OUTSIDE, "app/one.py", text))


@pytest.mark.parametrize(
    "text",
    [
        "F12, HA-04, P7 and fault 24",
        "docs/reference/policy.md#merge",
        "docs/features.md#admission",
        "CONTRIBUTING.md#style",
        "app/knowledge/cuda_driver.yaml, decision_procedure",
        "[listeners](reference/listeners.md#routes)",
        "RFC 6901 §4, WHATWG HTML §9.2",
        "P100",
    ],
)
def test_citation_that_resolves_is_none_of_either(text: str) -> None:
    assert list(lost("docs/page.md", text)) == []
    assert list(places(OUTSIDE, "docs/page.md", text)) == []
