# SPDX-License-Identifier: Apache-2.0
"""What a stranger's requests may cost: the memory of bodies and of what is kept of them, and the time of /metrics."""

import asyncio
import json
import tracemalloc
from itertools import count

import pytest
from starlette.types import Message, Receive, Scope

from app.admission.review import MOST_ACTIONS
from app.api.bodies import EXTENDER_LIMIT, LARGE_BYTES_AT_ONCE, BodyReader
from app.api.decision_line import Decision, RecentDecisions
from app.api.operations_routes import BURST, MetricsText
from app.kube.pod_limits import LONGEST_NAME
from app.values.errors import WireError
from tests.api.client import post
from tests.builders import pod, review

MIB = 1 << 20
SIZE = 48 * MIB


def sent(size: int) -> tuple[Scope, Receive]:
    """Make a scope and a receive function whose body comes in pieces of 1 MiB, each made when it is read."""
    left = iter(range(size // MIB, 0, -1))

    async def receive() -> Message:
        number = next(left)
        return {"type": "http.request", "body": bytes([number % 256]) * MIB, "more_body": number > 1}

    return {"type": "http", "headers": []}, receive


def test_large_body_is_held_once() -> None:
    """Fault 50: the pieces and the joined body must not be held together, or two of the largest bodies fill 512 MiB."""

    async def read() -> tuple[int, int]:
        tracemalloc.start()
        try:
            async with BodyReader().read(*sent(SIZE), lambda: EXTENDER_LIMIT) as body:
                return len(body), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    size, peak = asyncio.run(read())

    assert size == SIZE
    assert peak < 1.4 * SIZE


@pytest.mark.parametrize("pieces", [1, 2, 3, 9])
def test_body_is_read_in_the_order_of_its_pieces(pieces: int) -> None:
    async def read() -> bytes:
        async with BodyReader().read(*sent(pieces * MIB), lambda: EXTENDER_LIMIT) as body:
            return body

    assert asyncio.run(read()) == b"".join(bytes([number]) * MIB for number in range(pieces, 0, -1))


def test_large_bodies_are_bounded_in_all_and_give_their_bytes_back() -> None:
    """Fault 50: the second of the largest bodies is refused, and after the first there is room again."""
    first = LARGE_BYTES_AT_ONCE // MIB * 3 // 4 * MIB

    async def read() -> tuple[int, int]:
        bodies = BodyReader()
        async with bodies.read(*sent(first), lambda: EXTENDER_LIMIT):
            with pytest.raises(WireError) as caught:
                async with bodies.read(*sent(first), lambda: EXTENDER_LIMIT):
                    pass
        async with bodies.read(*sent(first), lambda: EXTENDER_LIMIT) as body:
            return caught.value.status, len(body)

    assert asyncio.run(read()) == (503, first)


def test_scrapes_beyond_any_prometheus_get_the_last_text() -> None:
    """Each text takes some milliseconds, and anybody may ask for one."""
    texts, clock = count(), [0.0]
    scrapes = MetricsText(lambda: b"%d" % next(texts), lambda: clock[0])

    flood = [scrapes.latest() for _ in range(1_000)]
    clock[0] += 0.05
    later = scrapes.latest()

    assert flood[: int(BURST)] == [b"%d" % number for number in range(int(BURST))]
    assert set(flood[int(BURST) :]) == {flood[int(BURST) - 1]}
    assert later == b"%d" % BURST


def test_names_of_a_review_that_are_longer_than_any_are_refused() -> None:
    """F103: the last decisions and the log keep these names."""
    for key in ("uid", "namespace", "name"):
        response = post("/mutate", json.dumps(review(pod(), **{key: "x" * (LONGEST_NAME + 1)})).encode())

        assert response.status_code == 400
        assert f"request.{key}: got 254 characters, wants at most 253" in response.json()["message"]


def test_last_decisions_keep_a_part_of_a_long_record() -> None:
    """F103: 512 actions of each pod would make the 500 kept decisions take 75 MB."""
    tail = RecentDecisions()

    tail.note("mutate", Decision("patched", actions=tuple(map(str, range(512)))), 0)

    assert tail.kept()[0].decision.actions == (*map(str, range(MOST_ACTIONS - 1)), "and 481 more")
