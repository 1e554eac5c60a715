# SPDX-License-Identifier: Apache-2.0
"""An API server that a process of its own plays for a benchmark: it answers lists, and its watches send nothing."""

import argparse
import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PAGE = 500
"""Objects in a page, as many as clients ask for."""


class ListServer:
    """Lists of an API server, by path in pages, and watches that send nothing."""

    def __init__(self, pages: Mapping[str, Sequence[bytes]]) -> None:
        self._pages = pages

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests on one connection."""
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            path, _, query = head.split()[1].decode().partition("?")
            if "watch=true" in query:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                self.watched(path, writer)
                continue
            body = self.body(path, query, head)
            status = b"404 Not Found" if "resource.k8s.io" in path else b"200 OK"
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
            await writer.drain()

    def body(self, path: str, query: str, _head: bytes) -> bytes:
        """Return a page of a list."""
        number = int(query.partition("continue=")[2].partition("&")[0] or 0)
        return self._pages.get(path, [_page([], "")])[number]

    def watched(self, path: str, writer: asyncio.StreamWriter) -> None:
        """Note that a watch was opened."""


def pages(documents: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """Write the pages of a list."""
    items = list(documents)
    for number, start in enumerate(range(0, len(items), PAGE), 1):
        yield _page(items[start : start + PAGE], str(number) if start + PAGE < len(items) else "")


def _page(items: list[dict[str, Any]], more: str) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "9", "continue": more}, "items": items}).encode()


def arguments() -> argparse.ArgumentParser:
    """Read what the process is told: its port, the directory of its certificate, and the size of the cluster."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certs", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pods", type=int, required=True)
    return parser


@contextmanager
def played_by(module: str, *words: str) -> Iterator[None]:
    """Run a module that plays an API server, in a process of its own that listens while the block lasts."""
    server = subprocess.Popen([sys.executable, "-m", module, *words], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()  # `listen` prints a line when it listens
        yield
    finally:
        server.terminate()
        server.communicate()


async def listen(played: ListServer, words: argparse.Namespace) -> None:
    """Answer over TLS until a signal; `listening` is printed when connections are accepted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(words.certs / "tls.crt", words.certs / "tls.key")
    server = await asyncio.start_server(played.answer, "127.0.0.1", words.port, ssl=context)
    print("listening", flush=True)
    await server.serve_forever()
