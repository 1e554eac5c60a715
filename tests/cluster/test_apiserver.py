# SPDX-License-Identifier: Apache-2.0
"""The client of the API server: no connection outlives its request, whatever the other side does."""

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
from kubernetes.client import Configuration

from app.cluster.apiserver import ApiServer
from tests.authorities import make_authority, write_leaf

LINE = b'{"type":"BOOKMARK"}\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
SECONDS = 20
Request = Callable[[ApiServer, asyncio.Event], Coroutine[None, None, None]]
"""Sends a request, and sets the event when its answer has begun."""


@contextlib.contextmanager
def silent_server(folder: Path, sent: bytes) -> Iterator[str]:
    """Answer a request with some bytes over TLS, then neither read nor close, like a network that drops all packets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)

        def serve() -> None:
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as sock:
                sock.recv(65_536)
                sock.sendall(sent)
                over.wait(SECONDS)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            thread.join(SECONDS)


async def watch(server: ApiServer, came: asyncio.Event) -> None:
    async with server.watch("/api/v1/pods", {}, SECONDS) as batches:
        async for _lines in batches:
            came.set()


async def read_list(server: ApiServer, came: asyncio.Event) -> None:
    asyncio.get_running_loop().call_later(0.5, came.set)
    await server.get("/api/v1/pods", {})


@pytest.mark.parametrize(
    ("request_of", "sent"),
    [
        pytest.param(watch, HEAD + f"{len(LINE):x}\r\n".encode() + LINE + b"\r\n", id="watch"),
        pytest.param(read_list, HEAD + b"ff\r\n{", id="list, half"),
        pytest.param(read_list, HEAD[:9], id="list, before its head"),
    ],
)
def test_request_that_is_cancelled_leaves_no_connection_behind(
    tmp_path: Path, request_of: Request, sent: bytes
) -> None:
    """CACHE-02: TLS would wait half a minute for the close_notify of a peer that is gone."""
    authority = make_authority("api")
    write_leaf(authority, tmp_path)
    (tmp_path / "ca.crt").write_text(authority.pem, "ascii")

    async def follow(url: str) -> None:
        configuration = Configuration()
        configuration.host, configuration.ssl_ca_cert = url, str(tmp_path / "ca.crt")
        server, came = ApiServer(lambda: configuration), asyncio.Event()
        task = asyncio.create_task(request_of(server, came))
        await asyncio.wait_for(came.wait(), SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.close()

    with silent_server(tmp_path, sent) as url, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asyncio.run(follow(url))
        gc.collect()

    assert [str(warning.message) for warning in seen if warning.category is ResourceWarning] == []
