# SPDX-License-Identifier: Apache-2.0
"""The headers of every answer, including those that the server itself writes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.server.limits import Limits
from tests.api.sockets import answer, connect
from tests.builders import make_service
from tests.running import Running, running

BIG = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n"


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(make_service(tmp_path_factory.mktemp("certs"))) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/none", 404), ("POST", "/mutate", 400), ("GET", "/mutate", 404), ("POST", "/scheduler/filter", 400)],
)
def test_errors_of_the_webhook_are_never_sniffed(clients: Running, method: str, path: str, status: int) -> None:
    response = clients.tls.request(method, path, content=b"{")

    assert response.status_code == status
    assert response.headers.get_list("x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/none"])
def test_answers_of_the_operations_listener_are_never_sniffed(clients: Running, path: str) -> None:
    assert clients.ops.get(path).headers.get_list("x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize("path", ["/", "/statusz", "/none", "/static/page.css"])
def test_pages_are_never_sniffed(clients: Running, path: str) -> None:
    """F132."""
    assert clients.people.get(path).headers.get_list("x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize(("sent", "status"), [(b"no HTTP\r\n\r\n", 400), (BIG, 431)])
def test_refusals_of_the_protocol_are_never_sniffed(clients: Running, sent: bytes, status: int) -> None:
    with connect(clients.ops.base_url.port) as sock:
        sock.sendall(sent)
        found_status, headers, _ = answer(sock)

    assert (found_status, headers.get("x-content-type-options")) == (status, "nosniff")


def test_request_too_many_is_never_sniffed(tmp_path: Path) -> None:
    with running(make_service(tmp_path), Limits(requests=0)) as made:
        response = made.tls.post("/mutate", json={})

    assert (response.status_code, response.headers.get_list("x-content-type-options")) == (503, ["nosniff"])
