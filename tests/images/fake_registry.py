# SPDX-License-Identifier: Apache-2.0
"""A registry on loopback, with TLS, that answers as a test says: late, at length, with lies, or with redirects."""

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.authorities import make_authority, write_leaf
from tests.images.published import Published, digest_of

Answer = Callable[[BaseHTTPRequestHandler], None]


class FakeRegistry:
    """A registry with one image, `image`, of the repository team/serve.

    `answers` replace the answer to paths that contain a word. `asked` are method and path of each request, with what
    it was authorized by.
    """

    def __init__(self, folder: Path, published: Published) -> None:
        authority = make_authority(f"registry {folder.name}")
        (folder / "ca.crt").write_text(authority.pem, "ascii")
        write_leaf(authority, folder)
        self.ca = str(folder / "ca.crt")
        self.published = published
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, str]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
                answer = next((answer for word, answer in fake.answers.items() if word in self.path), fake.serve)
                try:
                    answer(self)
                except OSError:
                    self.close_connection = True  # the client has enough

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.host = f"localhost:{self._server.server_address[1]}"
        self.image = f"{self.host}/team/serve:v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer as a registry does."""
        key = handler.path.rpartition("/")[2]
        key = self.published.top if key == "v1" else key
        media_type, body = self.published.manifests.get(key, ("", self.published.blobs.get(key, b"")))
        if body:
            send(body, media_type)(handler)
        else:
            send(b"{}", status=404)(handler)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def send(body: bytes, media_type: str = "application/json", status: int = 200, **headers: str) -> Answer:
    """Answer with a body; the digest is right unless `headers` has another."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", media_type)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Docker-Content-Digest", headers.get("digest", digest_of(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body)

    return answer


def redirect(url: str) -> Answer:
    return send(b"", status=307, Location=url)


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Send ten megabytes without saying how many."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for _ in range(160):
        handler.wfile.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")


def slow(handler: BaseHTTPRequestHandler) -> None:
    """Send a byte now and then, so that no single read waits for long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(600):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


@contextmanager
def fake_registry(folder: Path, published: Published) -> Iterator[FakeRegistry]:
    """Run a registry for a test."""
    fake = FakeRegistry(folder, published)
    try:
        yield fake
    finally:
        fake.close()
