# SPDX-License-Identifier: Apache-2.0
"""A client like Go's http.Transport: a pool of kept connections, new ones as needed, no retry; it counts failures."""

import asyncio
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from cryptography import x509

from tests.builders import pod, review

REQUEST_SECONDS = 10.0
"""Seconds after which a request has failed: the default timeoutSeconds of a webhook."""
AT_ONCE = 64
"""Most requests at once; where a busy machine cannot keep the rate, the rate falls."""
USES = 50
"""Requests on a connection before a new one is made, so that there are handshakes all the time."""
BODY = json.dumps(review(pod())).encode()
REQUEST = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


@dataclass(slots=True)
class Tally:
    """The outcomes of the requests so far."""

    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    last_answers: int = 0
    """Answers with Connection: close."""
    serials: Counter[int] = field(default_factory=Counter)
    """Connections, by the serial number of the certificate shown."""
    milliseconds: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Return a percentile of the times to answer, in ms."""
        return sorted(self.milliseconds)[int(len(self.milliseconds) * share)] if self.milliseconds else 0.0


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    port: int
    uses: int = 0


class Load:
    """Sends requests at a rate; `port` returns the port of the next one, `trust` the CAs' PEM for a new connection."""

    def __init__(self, rate: float, port: Callable[[], int], trust: Callable[[], str]) -> None:
        self.tally = Tally()
        self._rate, self._port, self._trust = rate, port, trust
        self._idle: list[_Connection] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._over = threading.Event()
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def run(self) -> None:
        """Send requests until `stop` is called, and wait for the answers that are due."""
        waiting: set[asyncio.Task[None]] = set()
        start, sent = time.monotonic(), 0
        while not self._over.is_set():
            if len(waiting) >= AT_ONCE:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(self._send(self._port()))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            sent += 1
            await asyncio.sleep(max(0.0, start + sent / self._rate - time.monotonic()))
        await asyncio.gather(*waiting)
        for connection in self._idle:
            connection.writer.transport.abort()
            self._leaving.add(asyncio.create_task(_gone(connection)))
        await asyncio.gather(*self._leaving)

    def stop(self) -> None:
        """Ask `run` to finish, from any thread."""
        self._over.set()

    async def _send(self, port: int) -> None:
        began, connection = time.monotonic(), None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                connection = self._take(port) or await self._connect(port)
                again = await self._ask(connection)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self.tally.failures[f"{type(error).__name__}: {error}"[:100]] += 1
            if connection is not None:
                self._leave(connection)
            return
        self.tally.answered += 1
        self.tally.milliseconds.append((time.monotonic() - began) * 1000)
        connection.uses += 1
        if again and connection.uses < USES:
            self._idle.append(connection)
        else:
            self._leave(connection)

    def _leave(self, connection: _Connection) -> None:
        connection.writer.close()
        task = asyncio.create_task(_gone(connection))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _take(self, port: int) -> _Connection | None:
        """Take an idle connection, unless the server has closed it, as the read loop of Go's transport would notice."""
        for connection in [idle for idle in reversed(self._idle) if idle.port == port]:
            self._idle.remove(connection)
            if not connection.reader.at_eof() and not connection.writer.transport.is_closing():
                return connection
            self._leave(connection)
        return None

    async def _connect(self, port: int) -> _Connection:
        bundle = self._trust()
        if bundle not in self._contexts:
            self._contexts[bundle] = ssl.create_default_context(cadata=bundle)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=self._contexts[bundle], server_hostname="localhost"
        )
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.tally.serials[x509.load_der_x509_certificate(shown).serial_number] += 1
        return _Connection(reader, writer, port)

    async def _ask(self, connection: _Connection) -> bool:
        """Send a request, and return whether the connection may be used again."""
        connection.writer.write(REQUEST)
        head = (await connection.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await connection.reader.readexactly(length)
        if not head.startswith(b"http/1.1 200") or b'"allowed":true' not in body:
            raise ValueError(f"answer {head[:12]!r} {body[:60]!r}")
        last = b"connection: close" in head
        self.tally.last_answers += last
        return not last


async def _gone(connection: _Connection) -> None:
    """Wait for the peer to close, within a bound, since a transport that is left open would fail a later test."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(REQUEST_SECONDS):
            await connection.writer.wait_closed()
    connection.writer.transport.abort()
    await asyncio.sleep(0)  # the loop closes the socket in its next turn


@contextmanager
def loading(load: Load) -> Iterator[Tally]:
    """Send requests from a thread for as long as the block lasts, and wait for the last answer."""
    thread = threading.Thread(target=lambda: asyncio.run(load.run()))
    thread.start()
    try:
        yield load.tally
    finally:
        load.stop()
        with suppress(RuntimeError):
            thread.join(REQUEST_SECONDS * 3)
    assert not thread.is_alive()
