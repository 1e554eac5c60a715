# SPDX-License-Identifier: Apache-2.0
"""Client certificates over real TLS: the scheduler's routes require one if configured, the webhooks' only if told
to."""

import datetime as dt
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from typer.testing import CliRunner

from app.api.wire import encode
from app.cli.verbs import app as cli
from app.server.service import Service
from app.tls.authority import KeyPair, make_authority
from app.tls.pem import read_certificate
from app.tls.serving_certificates import Certificates, issue_if_needed
from app.values.errors import BadInput, CertificateError
from tests.builders import make_service, pod, review
from tests.running import running

NOW = dt.datetime.now(dt.UTC)
SCHEDULER = "kube-scheduler"
APISERVER = "kube-apiserver"
ARGS = {"Pod": pod(), "NodeNames": []}


def client_certificate(
    authority: KeyPair, folder: Path, *names: str, ends: dt.timedelta = dt.timedelta(days=1)
) -> Path:
    """Write a client's certificate and key into one file."""
    ca_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]))
        .issuer_name(read_certificate(authority.certificate).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - dt.timedelta(days=2))
        .not_valid_after(NOW + ends)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    path = folder / f"client-{made.serial_number}.pem"
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    path.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, pkcs8, plain))
    return path


@contextmanager
def guarded(folder: Path, authority: KeyPair, webhooks: bool = False) -> Iterator[tuple[Service, httpx.URL]]:
    """Serve with a client CA and two allowed subjects."""
    built = make_service(folder)
    ca = folder / "clients.crt"
    ca.write_bytes(authority.certificate)
    settings = replace(
        built.settings, client_ca=ca, client_subjects=(SCHEDULER, APISERVER), require_webhook_client_cert=webhooks
    )
    certificates = Certificates(issue_if_needed(settings.certs, NOW), NOW, ca)
    service = Service(settings, certificates, built.state, built.book)
    service.synced = True
    with running(service) as clients:
        yield service, clients.tls.base_url


def call(
    service: Service, url: httpx.URL, path: str, certificate: Path | None = None, version: ssl.TLSVersion | None = None
) -> httpx.Response:
    context = ssl.create_default_context(cafile=str(service.settings.certs / "ca.crt"))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if certificate is not None:
        context.load_cert_chain(certificate)
    body = review(pod()) if path in ("/mutate", "/validate") else ARGS
    with httpx.Client(base_url=url, verify=context, trust_env=False) as client:
        return client.post(path, content=encode(body))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("names", [(SCHEDULER,), ("somebody",), (), (SCHEDULER, "somebody"), None])
def test_scheduler_routes_want_an_allowed_subject(
    tmp_path: Path, names: tuple[str, ...] | None, version: ssl.TLSVersion
) -> None:
    """F100, TLS-08: no certificate, another's subject, or a subject with no name or with two names gives a 403.

    See docs/reference/listeners.md#client-certificates.
    """
    authority = make_authority(NOW)
    shown = None if names is None else client_certificate(authority, tmp_path, *names)
    with guarded(tmp_path, authority) as (service, url):
        answers = [call(service, url, f"/scheduler/{verb}", shown, version) for verb in ("filter", "prioritize")]
        webhook = call(service, url, "/mutate", shown, version)

    expected = 200 if names == (SCHEDULER,) else 403
    assert [expected] * 2 == [response.status_code for response in answers]
    assert webhook.status_code == 200
    if expected == 403:
        assert answers[0].json()["reason"] == "Forbidden"


@pytest.mark.parametrize(("name", "code"), [(APISERVER, 200), ("somebody", 403), (None, 403)])
def test_webhook_routes_ask_where_told_to(tmp_path: Path, name: str | None, code: int) -> None:
    """F100: the API server's certificate is required only with --require-webhook-client-cert."""
    authority = make_authority(NOW)
    shown = client_certificate(authority, tmp_path, name) if name else None
    with guarded(tmp_path, authority, webhooks=True) as (service, url):
        answers = [call(service, url, path, shown).status_code for path in ("/mutate", "/validate", "/other")]

    assert answers == [code, code, 404 if code == 200 else 403]


@pytest.mark.parametrize("fault", ["another CA", "expired"])
def test_certificate_that_does_not_verify_gets_no_connection(tmp_path: Path, fault: str) -> None:
    """F100: the TLS handshake fails."""
    authority = make_authority(NOW)
    signer = make_authority(NOW) if fault == "another CA" else authority
    ends = dt.timedelta(days=-1 if fault == "expired" else 1)
    shown = client_certificate(signer, tmp_path, SCHEDULER, ends=ends)

    with guarded(tmp_path, authority) as (service, url), pytest.raises(httpx.TransportError):
        call(service, url, "/scheduler/filter", shown)


def test_clients_ca_that_changes_is_taken_without_restart(tmp_path: Path) -> None:
    """F100, F101: the new TLS context must require client certificates too."""
    first, second = make_authority(NOW), make_authority(NOW)
    shown = client_certificate(second, tmp_path, SCHEDULER)
    with guarded(tmp_path, first) as (service, url):
        assert service.settings.client_ca is not None
        service.settings.client_ca.write_bytes(second.certificate)

        service.certificates.renew(NOW)

        assert call(service, url, "/scheduler/filter", shown).status_code == 200
        assert call(service, url, "/scheduler/filter").status_code == 403
        with pytest.raises(httpx.TransportError):
            call(service, url, "/scheduler/filter", client_certificate(first, tmp_path, SCHEDULER))


def test_without_a_client_ca_nobody_is_asked(tmp_path: Path) -> None:
    """F100: client certificates are optional."""
    service = make_service(tmp_path)
    with running(service) as clients:
        assert clients.tls.post("/scheduler/filter", json=ARGS).status_code == 200


@pytest.mark.parametrize("content", [b"", b"no PEM", None], ids=["empty", "no PEM", "missing"])
def test_clients_ca_that_is_none_is_no_start_and_named(tmp_path: Path, content: bytes | None) -> None:
    """F100."""
    pair, ca = issue_if_needed(tmp_path, NOW), tmp_path / "clients.crt"
    if content is not None:
        ca.write_bytes(content)

    with pytest.raises(CertificateError, match=r"clients\.crt: .*: wants"):
        Certificates(pair, NOW, ca)


@pytest.mark.parametrize(
    "words",
    [("--client-ca", "ca.crt"), ("--client-subject", "x"), ("--require-webhook-client-cert",)],
    ids=["no subject", "no CA", "nobody to require"],
)
def test_half_a_setting_is_bad_input(words: tuple[str, ...]) -> None:
    """F100: a CA without a list of subjects would admit every client whose certificate it signed."""
    assert isinstance(CliRunner().invoke(cli, ["serve", "--demo", *words]).exception, BadInput)
