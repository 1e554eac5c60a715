# SPDX-License-Identifier: Apache-2.0
"""Every reported situation is answered rightly, by the commands that a user would type (F83)."""

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from tests.reports.situations import KINDS, PAGE, SOURCE, Situation, page, situations

REPORTED = situations()
RUN = CliRunner()


@pytest.mark.parametrize("reported", REPORTED, ids=[each.name for each in REPORTED])
def test_reported_situation_is_answered_rightly(reported: Situation) -> None:
    """F83: exit codes and words of every command; texts are compared with runs of white space as one space."""
    for run in reported.runs:
        result = RUN.invoke(app, list(run.words), env={"COLUMNS": "400"})
        said = " ".join(result.output.split())

        assert result.exit_code == run.exit_code, result.output
        assert [text for text in run.has if " ".join(text.split()) not in said] == [], result.output
        assert [text for text in run.lacks if " ".join(text.split()) in said] == [], result.output


@pytest.mark.parametrize("reported", REPORTED, ids=[each.name for each in REPORTED])
def test_situation_has_a_source_a_kind_and_an_answer(reported: Situation) -> None:
    """F83."""
    assert reported.kind in KINDS
    assert reported.sources
    assert all(map(SOURCE.fullmatch, reported.sources))
    assert all((reported.title, reported.situation, reported.right, reported.before, reported.says))


def test_page_lists_every_situation() -> None:
    """F83."""
    assert PAGE.read_text("utf-8") == page(), "run: make generated"
