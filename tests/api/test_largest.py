# SPDX-License-Identifier: Apache-2.0
"""The largest inputs hold the event loop for less than 50 ms at a time, and refusals say why.

CPU time is measured as a multiple of a fixed loop that takes 2 ms where the 50 ms hold, and the least of several rounds
counts.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.largest import Input, largest
from tests.stepping import MOST_REFERENCES, longest, steps_of, taken

ALIKE = ("validate", "dry-run")
"""Routes that read a pod as /mutate does."""


def listed(inputs: Iterable[Input]) -> list[Any]:
    """List inputs with an id of route and name, and each pod by one of the routes that read it alike."""
    return [
        pytest.param(item, id=f"{item.route} {item.name}")
        for item in inputs
        if item.route not in ALIKE or not item.name.startswith("pod: ")
    ]


@pytest.mark.parametrize("large", listed(largest()))
def test_no_step_of_an_answer_takes_longer_than_the_loop_may_wait(large: Input) -> None:
    assert longest(large.route, large.body) < MOST_REFERENCES


@pytest.mark.parametrize("large", listed(item for item in largest() if item.refusal))
def test_what_is_too_large_is_refused_in_words(large: Input) -> None:
    _, answer = taken(steps_of(large.route, large.body))

    assert large.refusal in answer
