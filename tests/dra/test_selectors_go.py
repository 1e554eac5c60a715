# SPDX-License-Identifier: Apache-2.0
"""Selectors mean what kube-scheduler's own code makes of them, over thousands of selectors and devices (F135)."""

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.dra.oracle import Question, ask, build, kubernetes_says, we_say
from tests.dra.questions import given_questions, random_questions

COST_LIMIT = 1_000_000
"""Units of Kubernetes (resource/v1 types.go, CELSelectorExpressionMaxCost)."""
LISTS_ONLY = ("dyn(true)", "device.attributes['gpu.nvidia.com'].type.all(x, true)")
"""Written selectors that compile only with the feature gate DRAListTypeAttributes."""


@pytest.fixture(scope="module")
def program() -> Path:
    """The oracle."""
    built = build()
    if isinstance(built, str):
        pytest.skip(built)
    return built


def compare(program: Path, questions: list[Question], lists: bool) -> Counter[str]:
    """Compare all answers, and count ours; those that are not judged say what for."""
    counts: Counter[str] = Counter()
    for question, answer in zip(questions, ask(program, questions, lists), strict=True):
        ours = we_say(question)
        counts[ours] += 1
        if not ours.startswith("not judged"):
            assert ours == kubernetes_says(answer), (question.expression, question.device, answer)
            assert answer["cost"] < COST_LIMIT
    print(dict(counts))
    return counts


def unjudged(counts: Counter[str]) -> int:
    """Count what is not judged."""
    return sum(count for said, count in counts.items() if said.startswith("not judged"))


@pytest.mark.parametrize("seed", [1, 2])
def test_random_selectors(program: Path, seed: int) -> None:
    counts = compare(program, random_questions(random.Random(seed), 8_000), lists=False)
    assert min(counts[said] for said in ("true", "false", "error", "compile error")) > 500
    assert unjudged(counts) < 4_000


def test_random_selectors_of_lists(program: Path) -> None:
    counts = compare(program, random_questions(random.Random(3), 6_000, lists=True), lists=True)
    assert unjudged(counts) < 3_600


@pytest.mark.parametrize("lists", [False, True])
def test_published_selectors_and_those_written_by_hand(program: Path, lists: bool) -> None:
    asked: Iterable[Question] = given_questions(random.Random(4))
    counts = compare(program, [question for question in asked if lists or question.expression not in LISTS_ONLY], lists)
    assert counts["true"] > 400
