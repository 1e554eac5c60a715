# SPDX-License-Identifier: Apache-2.0
"""The API server's timeout: an answer after the deadline is a 503 that says so (ADM-27)."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.app import RESERVE_SECONDS, create_tls_app, seconds_to_answer
from app.server.service import Service
from app.telemetry.metrics import Metrics
from tests.builders import make_service, pod, review
from tests.running import running

BODY = json.dumps(review(pod())).encode()
Clock = Callable[[], float]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10s", 9.8),
        ("2s", 1.8),
        ("1s", 0.8),
        ("30s", 29.8),
        ("1m30s", 89.8),
        ("1h0m0s", 3599.8),
        ("1.5s", 1.3),
        ("1.s", 0.8),
        ("500ms", 0.3),
        ("1500ms", 1.3),
        ("2000000us", 1.8),
        ("2000000µs", 1.8),
        ("2000000000ns", 1.8),
        ("1s500ms", 1.3),
    ],
)
def test_patience_is_the_time_out_less_what_the_way_back_takes(text: str, expected: float) -> None:
    assert seconds_to_answer(text) == pytest.approx(expected)


@pytest.mark.parametrize(("text", "expected"), [("300ms", 0.15), ("0.1s", 0.05), ("0s", 0.0), ("1ns", 0.5e-9)])
def test_patience_is_at_least_half_of_a_short_time_out(text: str, expected: float) -> None:
    assert seconds_to_answer(text) == pytest.approx(expected)


WORDS = ["", "s", "10", "-1s", "+1s", "1 s", " 1s", "1s ", "1s\n", "1S", "1d", "1e3s", "inf", "nan", "NaNs", "1,5s"]
SIGNS = ["0x1s", "1ss", "s1", "1_0s", "٣s", "１s", "1²s", "9" * 41 + "s", "1s" * 21, "1s&timeout=2s", "\x00", "1s\x00"]


@pytest.mark.parametrize("text", [None, *WORDS, *SIGNS])
def test_text_that_is_no_duration_of_go_gives_no_deadline(text: str | None) -> None:
    assert seconds_to_answer(text) is None


@given(st.text(max_size=60) | st.from_regex(r"[0-9.]{1,30}(ns|us|ms|s|m|h){1,3}", fullmatch=True))
def test_no_text_gives_a_negative_or_endless_deadline(text: str) -> None:
    seconds = seconds_to_answer(text)

    assert seconds is None or 0 <= seconds < 1e45


@given(st.integers(1, 10**6))
def test_patience_grows_with_the_time_out_and_never_exceeds_it(milliseconds: int) -> None:
    seconds = seconds_to_answer(f"{milliseconds}ms")
    more = seconds_to_answer(f"{milliseconds + 1}ms")

    assert seconds is not None
    assert more is not None
    assert 0 < seconds < more
    assert milliseconds / 1000 - RESERVE_SECONDS - 1e-9 <= seconds < milliseconds / 1000


def ticking_clock(step: float) -> Clock:
    """Make a clock that advances by a step each time it is read."""
    ticks = count()
    return lambda: next(ticks) * step


def ask(
    service: Service, clock: Clock, path: str, body: bytes | AsyncIterable[bytes] = BODY, then: str | None = None
) -> tuple[httpx.Response, httpx.Response | None, Metrics]:
    """Post to an application with this clock, then a good body to another path; return the answers and the metrics."""
    metrics = Metrics()

    async def exchange() -> tuple[httpx.Response, httpx.Response | None]:
        app = create_tls_app(service, metrics, clock=clock)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
            first = await client.post(path, content=body)
            return first, await client.post(then, content=BODY) if then else None

    return (*asyncio.run(exchange()), metrics)


def late_answers(metrics: Metrics) -> float | None:
    """Read gpu_usher_internal_errors_total{where="deadline"}."""
    errors: float | None = metrics.registry.get_sample_value("gpu_usher_internal_errors_total", {"where": "deadline"})
    return errors


@pytest.mark.parametrize("verb", ["mutate", "validate"])
def test_answer_that_is_late_is_503_with_a_status_and_counted(service: Service, verb: str) -> None:
    """P27."""
    answer, _, metrics = ask(service, ticking_clock(1.81), f"/{verb}?timeout=2s")

    assert answer.status_code == 503
    assert {"kind": "Status", "code": 503, "reason": "ServiceUnavailable"}.items() <= answer.json().items()
    assert f"{verb} was too late" in answer.json()["message"]
    assert late_answers(metrics) == 1.0
    outcome = {"verb": verb, "outcome": "http_503"}
    assert metrics.registry.get_sample_value("gpu_usher_requests_total", outcome) == 1.0


@pytest.mark.parametrize("query", ["", "?timeout=", "?timeout=2s", "?timeout=soon", "?timeout=-1s", "?other=1s"])
def test_answer_in_time_or_without_a_time_out_is_an_answer(service: Service, query: str) -> None:
    step = 1.79 if query == "?timeout=2s" else 1e6

    answer, _, metrics = ask(service, ticking_clock(step), f"/mutate{query}")

    assert answer.status_code == 200
    assert answer.json()["response"]["allowed"]
    assert not late_answers(metrics)


@pytest.mark.parametrize("text", ["9" * 38 + "h", "1s" * 20, "2s&timeout=3s", "%00", "%C2%B5s", "5m"])
def test_odd_time_out_is_never_a_bug(service: Service, text: str) -> None:
    answer, _, _ = ask(service, ticking_clock(0.0), f"/mutate?timeout={text}")

    assert answer.status_code == 200


def test_bad_body_is_400_though_it_came_late(service: Service) -> None:
    """A mistake of the caller is reported, since it would be the same at the next try."""
    answer, _, metrics = ask(service, ticking_clock(10.0), "/mutate?timeout=2s", b"{")

    assert answer.status_code == 400
    assert not late_answers(metrics)


async def stalling(after: bytes) -> AsyncIterator[bytes]:
    """Yield some bytes, and then wait for ever."""
    yield after
    await asyncio.Event().wait()


@pytest.mark.parametrize("sent", [b"", BODY[:10], BODY], ids=["nothing", "some", "all but the end"])
def test_body_that_stalls_is_503_and_the_next_request_is_served(service: Service, sent: bytes) -> None:
    first, second, metrics = ask(
        service, ticking_clock(0.0), "/mutate?timeout=100ms", stalling(sent), "/mutate?timeout=9s"
    )

    assert (first.status_code, first.json()["kind"]) == (503, "Status")
    assert late_answers(metrics) == 1.0
    assert second is not None
    assert second.status_code == 200


def test_stalled_large_bodies_give_their_places_back(service: Service) -> None:
    """Two large bodies are held at once (docs/reference/listeners.md#body-limits); a third one is read after them."""
    metrics = Metrics()
    good = json.dumps({"Pod": pod(), "NodeNames": ["h200-0"]}).encode().ljust(9 << 20)

    async def exchange() -> tuple[list[int], int]:
        app = create_tls_app(service, metrics)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
            path = "/scheduler/filter?timeout=400ms"
            late = await asyncio.gather(*(client.post(path, content=stalling(b" " * (9 << 20))) for _ in range(2)))
            after = await client.post("/scheduler/filter", content=good)
        return [response.status_code for response in late], after.status_code

    assert asyncio.run(exchange()) == ([503, 503], 200)


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, httpx.Client]]:
    """Run the demo service; yield its CA and a client of the TLS listener."""
    folder = tmp_path_factory.mktemp("certs")
    with running(make_service(folder)) as clients:
        yield folder / "ca.crt", clients.tls


def stalled(trust: Path, client: httpx.Client, head: str, body: bytes) -> bytes:
    """Send a request that never ends, and return what the server answers."""
    context = ssl.create_default_context(cafile=str(trust))
    with (
        socket.create_connection(("127.0.0.1", client.base_url.port or 0), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(head.encode() + body)
        answer = b""
        while b"}" not in answer and (part := secure.recv(65536)):
            answer += part
    return answer


@pytest.mark.parametrize(
    "framing", [f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked"], ids=["announced", "chunked"]
)
def test_client_that_stalls_on_the_wire_is_answered_and_others_are_served(
    listening: tuple[Path, httpx.Client], framing: str
) -> None:
    trust, client = listening
    head = (
        f"POST /mutate?timeout=100ms HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    )

    answer = stalled(trust, client, head, b"5\r\n     \r\n" if "chunked" in framing else BODY[:20])

    status: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert answer.startswith(b"HTTP/1.1 503")
    assert status["kind"] == "Status"
    assert client.post("/mutate?timeout=9s", content=BODY).status_code == 200
