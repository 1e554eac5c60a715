# SPDX-License-Identifier: Apache-2.0
"""JSON answers of the TLS listener: two ASGI messages, or one write where the server offers it.

A Response object of Starlette costs more than a small decision: it makes its headers, and uvicorn reads, checks and
joins them again and writes them apart from the body, which is a second TLS record (docs/benchmarks.md#http).
"""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Scope, Send

WRITE_ANSWER = "gpu-usher.write_answer"
"""Key of the ASGI scope for a WriteAnswer of the connection; absent without a server of ours."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A body of JSON. `close` ends the connection after it, because the rest of the request stays unread."""

    body: bytes
    status: int = 200
    close: bool = False


WriteAnswer = Callable[[Answer], bool]
"""Writes header and body at once. Returns False, and writes nothing, while the peer does not take earlier bytes."""


async def send_answer(answer: Answer, scope: Scope, send: Send) -> None:
    """Send an answer, in one write if the connection can take it."""
    write: WriteAnswer | None = scope.get(WRITE_ANSWER)
    if write is not None and write(answer):
        return
    headers = [(b"content-length", b"%d" % len(answer.body)), (b"content-type", b"application/json")]
    if answer.close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
