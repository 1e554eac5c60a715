# SPDX-License-Identifier: Apache-2.0
"""The client of the API server: its verbs and errors, and no connection that outlives its request."""

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
from aiohttp import web
from kubernetes.client import Configuration

from app.cluster.apiserver import MERGE, OBJECT_SECONDS, STRATEGIC, ApiServer
from app.events.lease import DURATION_SECONDS
from app.values.errors import ApiError
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


PATH = "/api/v1/namespaces/team/secrets/s"
THING = {"metadata": {"name": "s"}}
VERBS: dict[str, tuple[Callable[[ApiServer], Coroutine[None, None, object]], str, str, object]] = {
    "read": (lambda server: server.read(PATH), "GET", "application/octet-stream", None),
    "create": (lambda server: server.create(PATH, THING), "POST", "application/json", THING),
    "replace": (lambda server: server.replace(PATH, THING), "PUT", "application/json", THING),
    "patch": (lambda server: server.patch(PATH, THING), "PATCH", STRATEGIC, THING),
    "merge": (lambda server: server.patch(PATH, THING, MERGE), "PATCH", MERGE, THING),
}


def asked(verb: str, answer: Callable[[web.Request], web.Response]) -> tuple[object, list[tuple[str, str, object]]]:
    """Send one request to a server that answers so; return what the client returns, and the requests as they came."""
    came: list[tuple[str, str, object]] = []

    async def handle(request: web.Request) -> web.Response:
        came.append((request.method, request.content_type, await request.json() if request.can_read_body else None))
        return answer(request)

    async def go() -> object:
        app = web.Application()
        app.router.add_route("*", PATH, handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with ApiServer(lambda: Configuration(host=url)) as server:
                return await VERBS[verb][0](server)
        finally:
            await runner.cleanup()

    return asyncio.run(go()), came


@pytest.mark.parametrize("verb", VERBS)
def test_object_is_sent_as_its_verb_wants_and_read_from_the_answer(verb: str) -> None:
    _, method, kind, document = VERBS[verb]

    answer, came = asked(verb, lambda _request: web.json_response({"kind": "Secret"}, status=201))

    assert answer == {"kind": "Secret"}
    assert came == [(method, kind, document)]


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        pytest.param(
            web.json_response({"message": "secrets is forbidden"}, status=403), 403, "403: secrets is", id="Status"
        ),
        pytest.param(web.Response(text="<html>", status=502), 502, "502", id="page of a proxy"),
        pytest.param(web.Response(text="ok"), 200, f"{PATH}: no object: ", id="no JSON"),
        pytest.param(web.json_response([1]), 200, f"{PATH}: no object: ", id="a list"),
        pytest.param(web.Response(status=307, headers={"Location": PATH}), 307, "307", id="redirect"),
    ],
)
@pytest.mark.parametrize("verb", VERBS)
def test_answer_without_the_object_is_an_error_with_its_status(
    verb: str, answer: web.Response, status: int, message: str
) -> None:
    """No answer of the API server, or of a proxy before it, ends a controller."""
    with pytest.raises(ApiError) as raised:
        asked(verb, lambda _request: web.Response(body=answer.body, status=answer.status, headers=answer.headers))

    assert (raised.value.status, str(raised.value)[: len(message)]) == (status, message)


def test_object_that_does_not_exist_is_none_when_read_and_an_error_when_written() -> None:
    def missing(_request: web.Request) -> web.Response:
        return web.json_response({"message": "not found"}, status=404)

    assert asked("read", missing)[0] is None
    with pytest.raises(ApiError, match="404: not found"):
        asked("replace", missing)


def test_request_about_one_object_ends_in_less_than_the_duration_of_a_lease() -> None:
    """The holder of the Lease learns that a write hangs before another may take over."""
    assert OBJECT_SECONDS < DURATION_SECONDS
