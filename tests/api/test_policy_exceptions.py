# SPDX-License-Identifier: Apache-2.0
"""Reviews of policies with dates and exceptions, and the last good set in spite of a bad exception (F131)."""

import asyncio
from pathlib import Path

import pytest

from app.server.service import Service
from tests.api.policy_reviews import GPUPOLICIES, denial_message, gpu_policy
from tests.builders import make_service

BROKEN = {"match": {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "owner": "o", "reason": "r"}
EXCEPTION = {"exceptions": [BROKEN | {"expires": "2027-01-01"}]}


def test_selector_of_an_exception_is_checked_like_any_other(service: Service) -> None:
    assert "exceptions" in denial_message(service, gpu_policy(EXCEPTION), GPUPOLICIES)


def test_selector_of_an_exception_that_slipped_in_leaves_the_last_good_set_in_force(tmp_path: Path) -> None:
    book = make_service(tmp_path).book
    book.put_source("gpupolicy mine", gpu_policy(EXCEPTION))

    taken = book.load()

    assert taken.error is not None


@pytest.mark.parametrize("field", ["enforceFrom", "expires"])
def test_day_in_digits_of_another_script_is_refused(service: Service, field: str) -> None:
    day = "\u0662\u0660\u0662\u0667-01-01"
    match = {"podSelector": {"matchLabels": {"a": "b"}}}
    until = {"exceptions": [{"match": match, "owner": "o", "reason": "r", "expires": day}]}

    assert "day" in denial_message(service, gpu_policy(until if field == "expires" else {field: day}), GPUPOLICIES)


def test_service_outlives_a_policy_whose_exception_cannot_be_read(tmp_path: Path) -> None:
    """A bad edit never changes the readiness (docs/reference/listeners.md#probes)."""
    book = make_service(tmp_path).book

    async def follow() -> bool:
        heard = asyncio.Event()
        following = asyncio.create_task(book.follow(lambda _: heard.set()))
        book.put_source("gpupolicy mine", gpu_policy(EXCEPTION))
        hearing = asyncio.create_task(heard.wait())
        await asyncio.wait({following, hearing}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        survived = not following.done()
        for task in (following, hearing):
            task.cancel()
        await asyncio.gather(following, hearing, return_exceptions=True)
        return survived

    assert asyncio.run(follow())
