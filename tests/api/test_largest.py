# SPDX-License-Identifier: Apache-2.0
"""What anybody may send costs the event loop less than 50 ms at a time, and what is refused says why.

Costs are CPU time as a multiple of a fixed loop that takes 2 ms where 50 ms were wanted, the least of some rounds.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.largest import Input, largest
from tests.stepping import MOST_REFERENCES, longest, steps_of, taken


def listed(inputs: Iterable[Input]) -> list[Any]:
    """Name inputs by route and name."""
    return [pytest.param(item, id=f"{item.route} {item.name}") for item in inputs]


@pytest.mark.parametrize("asked", listed(largest()))
def test_no_step_of_an_answer_takes_longer_than_the_loop_may_wait(asked: Input) -> None:
    assert longest(asked.route, asked.body) < MOST_REFERENCES


@pytest.mark.parametrize("asked", listed(item for item in largest() if item.refusal))
def test_what_is_too_large_is_refused_in_words(asked: Input) -> None:
    _, answer = taken(steps_of(asked.route, asked.body))

    assert asked.refusal in answer
