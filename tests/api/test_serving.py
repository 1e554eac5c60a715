# SPDX-License-Identifier: Apache-2.0
"""Serving: certificates change under live TLS, hostile certificate folders, ports in use, and a clean end."""

import asyncio
import datetime as dt
import logging
import shutil
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.server.listeners import OPEN_PAGE, Listeners, bind, split_address
from app.server.service import Service
from app.tls.pem import names_of
from app.tls.serving_certificates import NAMES, Certificates, issue_if_needed
from app.values.errors import BadInput, CertificateError
from tests.builders import make_service, pod, review
from tests.running import Running, running

TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Running]]:
    service = make_service(tmp_path_factory.mktemp("certs"))
    with running(service) as clients:
        yield service, clients


def handshake(clients: Running, trust: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, name: str = "") -> int:
    """Make a new TLS connection that trusts one CA, and return the serial number of the server's certificate."""
    context = ssl.create_default_context(cafile=str(trust))
    context.minimum_version = context.maximum_version = version
    port = clients.tls.base_url.port or 0
    with (
        socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=name or "127.0.0.1") as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def serial_of(folder: Path) -> int:
    return x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes()).serial_number


@pytest.mark.parametrize("name", ["localhost", "gpu-usher.gpu-usher.svc", "gpu-usher"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_certificate_verifies_under_every_name_we_are_called_by(
    served: tuple[Service, Running], name: str, version: ssl.TLSVersion
) -> None:
    """TLS-04, TLS-07."""
    service, clients = served
    folder = service.settings.certs

    assert serial_of(folder) == handshake(clients, folder / "ca.crt", version, name)


def test_another_name_does_not_verify(served: tuple[Service, Running]) -> None:
    service, clients = served

    with pytest.raises(ssl.SSLCertVerificationError, match="evil"):
        handshake(clients, service.settings.certs / "ca.crt", name="evil.example")


def test_plain_http_on_the_tls_port_is_no_answer_and_no_end(served: tuple[Service, Running]) -> None:
    _, clients = served
    port = clients.tls.base_url.port

    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{port}/readyz", verify=False, timeout=TIMEOUT_SECONDS, trust_env=False)

    assert clients.tls.post("/mutate", json=review(pod())).status_code == 200


def test_renewed_certificate_is_shown_to_new_connections_and_old_ones_live_on(tmp_path: Path) -> None:
    """P44, F101, TLS-05: there is no restart and no broken connection, with and without SNI."""
    service = make_service(tmp_path / "certs")
    folder = service.settings.certs
    with running(service) as clients:
        before = handshake(clients, folder / "ca.crt")
        assert clients.tls.post("/mutate", json=review(pod())).status_code == 200
        later = dt.datetime.now(dt.UTC)
        issue_if_needed(tmp_path / "new", later)
        for name in ("ca.crt", "ca.key", "tls.crt", "tls.key"):
            shutil.copy(tmp_path / "new" / name, folder / name)

        renewed = service.certificates.renew(later)

        after = [handshake(clients, folder / "ca.crt", name=name) for name in ("127.0.0.1", "localhost")]
        assert renewed
        assert [serial_of(folder)] * 2 == after
        assert before not in after
        assert clients.tls.post("/mutate", json=review(pod())).status_code == 200


def test_bad_pair_in_the_folder_leaves_the_good_one_in_service(tmp_path: Path) -> None:
    """TLS-05: a TLS context must never be half changed."""
    folder = tmp_path / "certs"
    issue_if_needed(folder, dt.datetime.now(dt.UTC))
    service = make_service(folder, cert=folder / "tls.crt", key=folder / "tls.key")
    good, trust = serial_of(folder), shutil.copy(folder / "ca.crt", tmp_path / "trusted.crt")
    with running(service) as clients:
        issue_if_needed(tmp_path / "new", dt.datetime.now(dt.UTC))
        shutil.copy(tmp_path / "new" / "tls.key", folder / "tls.key")

        with pytest.raises(CertificateError):
            service.certificates.renew(dt.datetime.now(dt.UTC))

        assert good == handshake(clients, Path(trust))


@pytest.mark.parametrize("name", ["tls.crt", "tls.key"])
def test_missing_file_is_a_certificate_error_as_promised(tmp_path: Path, name: str) -> None:
    """`Certificates.renew` raises CertificateError for a bad pair, and the one in service stays."""
    now = dt.datetime.now(dt.UTC)
    certificates = Certificates(issue_if_needed(tmp_path, now), now)
    good = certificates.serving
    (tmp_path / name).unlink()

    with pytest.raises(CertificateError):
        certificates.renew(now)
    assert good is certificates.serving


def write_nameless_leaf(folder: Path, now: dt.datetime) -> None:
    """Put a leaf of our CA without any name into a certificate folder, as other tools make them."""
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = (
        x509.CertificateBuilder()
        .subject_name(issuer.subject)
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .sign(ca_key, hashes.SHA256())
    )
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "tls.crt").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))


def test_certificate_without_names_is_replaced(tmp_path: Path) -> None:
    """TLS-02: a leaf is made where no valid one is, and a leaf without SAN is not valid."""
    now = dt.datetime.now(dt.UTC)
    issue_if_needed(tmp_path, now)
    write_nameless_leaf(tmp_path, now)

    issue_if_needed(tmp_path, now)

    leaf = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)


def test_names_that_somebody_added_outlive_renewals(tmp_path: Path) -> None:
    """TLS-04: `certs issue --name` adds names that `serve` does not know."""
    now = dt.datetime.now(dt.UTC)
    issue_if_needed(tmp_path, now, (*NAMES, "usher.example"))

    issue_if_needed(tmp_path, now + dt.timedelta(days=6))

    leaf = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    assert leaf.not_valid_before_utc > now
    assert set(names_of(leaf)) == {*NAMES, "usher.example"}


def test_key_under_a_pass_phrase_is_replaced_and_asks_nobody(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    pair = issue_if_needed(tmp_path, now)
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))

    issue_if_needed(tmp_path, now)

    assert Certificates(pair, now).in_date(now)


@pytest.mark.parametrize(
    ("elapsed", "in_date"),
    [(dt.timedelta(0), True), (dt.timedelta(days=7, seconds=-1), True), (dt.timedelta(days=7), False)],
    ids=["new", "a second before", "at the end"],
)
def test_served_certificate_is_in_date_until_its_last_second(
    tmp_path: Path, elapsed: dt.timedelta, in_date: bool
) -> None:
    """Readiness checks the served certificate (docs/reference/listeners.md#probes)."""
    now = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)

    assert in_date is Certificates(issue_if_needed(tmp_path, now), now).in_date(now + elapsed)


def test_stop_ends_everything_and_frees_the_ports(tmp_path: Path) -> None:
    """HA-04: a silent connection does not delay the end, for which `running` has a bound."""
    service = make_service(tmp_path)
    with running(service) as clients:
        ports = [client.base_url.port or 0 for client in (clients.tls, clients.ops, clients.people)]
        silent = socket.create_connection(("127.0.0.1", ports[1]), TIMEOUT_SECONDS)
    silent.close()

    assert service.draining
    for port in ports:
        with pytest.raises(OSError):  # noqa: PT011  # refused: nobody listens any more
            socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS).close()


def test_port_that_is_taken_or_none_is_said_with_the_flag_to_change() -> None:
    with bind("127.0.0.1", 0, "--port") as taken:
        for port, problem in ((taken.getsockname()[1], "Address already in use"), (70_000, "no such port")):
            with pytest.raises(BadInput, match=rf"127\.0\.0\.1:{port}: {problem}: choose another with --ops-port"):
                bind("127.0.0.1", port, "--ops-port")


def test_web_listener_can_be_off(tmp_path: Path) -> None:
    """See docs/reference/listeners.md#routes."""
    built = make_service(tmp_path)
    settings = replace(built.settings, ui_address="off")

    async def serve() -> tuple[object, int]:
        listeners = Listeners(Service(settings, built.certificates, built.state, built.book))
        task = asyncio.create_task(listeners.run())
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_SECONDS) as client:
            answer = await client.get(f"http://127.0.0.1:{listeners.addresses.ops[1]}/version")
        web = listeners.addresses.web
        listeners.stop()
        await asyncio.wait_for(task, TIMEOUT_SECONDS)
        return web, answer.status_code

    assert asyncio.run(serve()) == (None, 200)


def test_scheduler_in_the_same_pod_is_answered_over_plain_http_and_told_nothing_else(tmp_path: Path) -> None:
    """See docs/reference/listeners.md#scheduler."""
    built = make_service(tmp_path)
    settings = replace(built.settings, scheduler_address="127.0.0.1:0")
    service = Service(settings, built.certificates, built.state, built.book)
    service.synced = True

    async def serve() -> list[int]:
        listeners = Listeners(service)
        task = asyncio.create_task(listeners.run())
        assert listeners.addresses.scheduler is not None
        url = f"http://127.0.0.1:{listeners.addresses.scheduler[1]}"
        body = {"Pod": pod(), "NodeNames": ["h100-1"]}
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_SECONDS) as client:
            paths = ("/scheduler/filter", "/mutate", "/explain")
            answers = [await client.post(url + path, json=body) for path in paths]
        listeners.stop()
        await asyncio.wait_for(task, TIMEOUT_SECONDS)
        return [answer.status_code for answer in answers]

    assert asyncio.run(serve()) == [200, 404, 404]


def test_plain_http_for_the_scheduler_is_refused_beyond_loopback(tmp_path: Path) -> None:
    built = make_service(tmp_path)
    settings = replace(built.settings, scheduler_address="0.0.0.0:0")

    with pytest.raises(BadInput, match="wants a loopback address"):
        Listeners(Service(settings, built.certificates, built.state, built.book))


@pytest.mark.parametrize(("address", "warned"), [("127.0.0.1:0", False), ("0.0.0.0:0", True)])
def test_page_that_others_can_reach_is_warned_of_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str, warned: bool
) -> None:
    """F132: it has no authentication."""
    built = make_service(tmp_path)
    settings = replace(built.settings, ui_address=address)

    async def serve() -> None:
        listeners = Listeners(Service(settings, built.certificates, built.state, built.book))
        listeners.stop()
        await asyncio.wait_for(listeners.run(), TIMEOUT_SECONDS)

    with caplog.at_level(logging.WARNING):
        asyncio.run(serve())

    assert (OPEN_PAGE in caplog.messages) == warned


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:8081", ("127.0.0.1", 8081)), ("[::1]:0", ("::1", 0)), ("localhost:1", ("localhost", 1))],
)
def test_address_is_read_as_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert expected == split_address(address, "--ui-address")


@pytest.mark.parametrize("address", ["", "8081", ":8081", "host", "host:", "host:http", "host:-1", "on"])
def test_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(BadInput, match="--ui-address"):
        split_address(address, "--ui-address")
