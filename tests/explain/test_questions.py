# SPDX-License-Identifier: Apache-2.0
"""Questions of an ML engineer are answered by one command each."""

import pytest

from tests.explain.questions import PAGE, Question, answer_lines, page, printed, questions


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.ask)
def test_question_is_answered_by_one_command(question: Question) -> None:
    """F83, F19."""
    output = printed(question)

    assert all(answer_lines(question, output)), output


def test_page_of_questions_is_as_they_are_answered() -> None:
    """F83: at least thirty of them."""
    assert len(questions()) >= 30
    assert page() == PAGE.read_text("utf-8")
