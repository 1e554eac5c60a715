# SPDX-License-Identifier: Apache-2.0
"""Every code that refuses nodes has a row in the table of docs/reference/woken.md, or a word on how a refusal ends."""

from pathlib import Path

from app.values.reasons import Code, ReasonKind
from tests.e2e.refusals import NOT_STAGED, POLICIES, REFUSALS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "woken.md"
AT_ADMISSION_TOO = {"InvalidAnnotation"}
"""Refuses nodes as well, for a pod that was created while the webhook was away (docs/reference/reasons.md)."""


def test_every_code_that_refuses_nodes_is_staged_or_named_with_how_it_ends() -> None:
    """F140."""
    refuse_nodes = {code.name for code in Code if code.kind is not ReasonKind.ADMISSION} | AT_ADMISSION_TOO
    staged = [row.code for row in REFUSALS]

    assert sorted([*staged, *NOT_STAGED]) == sorted(refuse_nodes)
    assert POLICIES.keys() <= set(staged)


def test_page_names_every_refusal() -> None:
    """F140: the codes that are staged stand in the table, the rest in the list below it."""
    table, _, rest = PAGE.read_text("utf-8").partition("## By code")[2].partition("The codes without a row:")

    assert [row.code for row in REFUSALS if row.code not in table] == []
    assert [code for code in NOT_STAGED if code not in rest] == []
