# SPDX-License-Identifier: Apache-2.0
"""TLS sessions over real sockets: the right of a client's certificate ends with the CA that signed it."""

import datetime as dt
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from app.server.service import Service
from app.tls.authority import KeyPair, make_authority
from app.tls.serving_certificates import issue_if_needed
from tests.api.test_clients import ARGS, SCHEDULER, client_certificate, guarded
from tests.builders import make_service
from tests.running import running

NOW = dt.datetime.now(dt.UTC)
VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
SECONDS = 60
"""Bound on one answer."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The result of a connection. `status` is that of the answer, or None without an answer."""

    status: int | None
    session: ssl.SSLSession | None = None
    reused: bool | None = None


def client_context(service: Service, version: ssl.TLSVersion, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(service.settings.certs / "ca.crt"))
    context.minimum_version = context.maximum_version = version
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


@contextmanager
def connected(
    context: ssl.SSLContext, url: httpx.URL, session: ssl.SSLSession | None = None
) -> Iterator[ssl.SSLSocket]:
    """Open a connection, with the TLS session of an earlier one if there is one."""
    with (
        socket.create_connection((url.host, url.port), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
    ):
        yield tls


def ask(tls: ssl.SSLSocket) -> http.client.HTTPResponse:
    """Call the scheduler's filter, and return the answer, whose body is read."""
    body = json.dumps(ARGS).encode()
    head = f"POST /scheduler/filter HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    tls.sendall(head.encode() + body)
    answer = http.client.HTTPResponse(tls)
    answer.begin()
    answer.read()
    return answer


def call(context: ssl.SSLContext, url: httpx.URL, session: ssl.SSLSession | None = None) -> Exchange:
    """Connect, call filter once, and keep the session as a client that resumes does."""
    try:
        with connected(context, url, session) as tls:
            return Exchange(ask(tls).status, tls.session, tls.session_reused)
    except (OSError, http.client.HTTPException):
        return Exchange(None)


def replace_client_ca(service: Service, *authorities: KeyPair) -> None:
    """Write new client CAs, and let the service load them."""
    assert service.settings.client_ca is not None
    service.settings.client_ca.write_bytes(b"".join(authority.certificate for authority in authorities))
    assert service.certificates.renew(NOW)


@VERSIONS
def test_session_of_a_revoked_ca_is_not_resumed(version: ssl.TLSVersion, tmp_path: Path) -> None:
    """F100, F101: OpenSSL's tickets and sessions last two hours and contain the verified certificate."""
    old = make_authority(NOW)
    with guarded(tmp_path, old) as (service, url):
        context = client_context(service, version, client_certificate(old, tmp_path, SCHEDULER))
        first = call(context, url)
        replace_client_ca(service, make_authority(NOW))

        second = call(context, url, first.session)

    assert first.status == 200
    assert second.status in (None, 403)
    assert not second.reused


@VERSIONS
def test_live_connection_of_a_revoked_ca_is_refused_at_its_next_request(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """F100: the client was verified only once; it is told to connect again, and the connection is closed."""
    old = make_authority(NOW)
    with guarded(tmp_path, old) as (service, url):
        context = client_context(service, version, client_certificate(old, tmp_path, SCHEDULER))
        with connected(context, url) as tls:
            before = ask(tls).status
            replace_client_ca(service, make_authority(NOW))
            after = ask(tls)

    assert (before, after.status) == (200, 403)
    assert after.getheader("Connection") == "close"


def test_live_connection_goes_on_while_its_ca_is_one_of_the_bundle(tmp_path: Path) -> None:
    """F101: a CA is added before the old one is removed, and clients renew; neither may fail a call."""
    old = make_authority(NOW)
    with guarded(tmp_path, old) as (service, url):
        context = client_context(service, ssl.TLSVersion.TLSv1_3, client_certificate(old, tmp_path, SCHEDULER))
        with connected(context, url) as tls:
            statuses = [ask(tls).status]
            replace_client_ca(service, make_authority(NOW), old)
            statuses.append(ask(tls).status)
            later = NOW + dt.timedelta(days=5)
            issue_if_needed(service.settings.certs, later)
            assert service.certificates.renew(later)
            statuses.append(ask(tls).status)

    assert statuses == [200, 200, 200]


def test_no_ticket_outlives_the_verification_of_a_client(tmp_path: Path) -> None:
    """F100: each resumption in TLS 1.3 would begin two more hours, beyond the end of the client's certificate."""
    authority = make_authority(NOW)
    with guarded(tmp_path, authority) as (service, url):
        context = client_context(service, ssl.TLSVersion.TLSv1_3, client_certificate(authority, tmp_path, SCHEDULER))
        first = call(context, url)
        second = call(context, url, first.session)

    assert (first.status, second.status) == (200, 200)
    assert not second.reused


@VERSIONS
def test_without_client_certificates_sessions_are_resumed_until_the_certificate_changes(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """F100: this client does resume where it is allowed to, so the tests above can fail."""
    service = make_service(tmp_path / "certs")
    with running(service) as clients:
        url, context = clients.tls.base_url, client_context(service, version)
        first = call(context, url)
        second = call(context, url, first.session)
        (service.settings.certs / "tls.crt").unlink()
        issue_if_needed(service.settings.certs, NOW)
        assert service.certificates.renew(NOW)
        third = call(context, url, second.session)

    assert (first.status, second.status, third.status) == (200, 200, 200)
    assert (first.reused, second.reused, third.reused) == (False, True, False)
