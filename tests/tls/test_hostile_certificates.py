# SPDX-License-Identifier: Apache-2.0
"""Every reader of certificates gets a corpus of malformed DER: the pair in service stays, and only our errors occur."""

import asyncio
import base64
import contextlib
import datetime as dt
import json
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from app.cli.verbs import app as cli
from app.cluster.apiserver import ApiServer
from app.server.service import CertificateRenewal
from app.telemetry.logs import LOGGER
from app.tls.authority import KeyPair, issue_leaf, make_authority
from app.tls.ca_rotation import read_trust, renew_leaf, renew_trust
from app.tls.certificate_report import CertificateTexts, describe, problems
from app.tls.controller import Controller, Names
from app.tls.pem import is_named, key_matches, names_of, read_bundle, read_certificate, signed_by
from app.tls.serving_certificates import NAMES, Certificates, issue_if_needed
from app.values.errors import BadInput, CertificateError
from app.values.json_members import Object
from tests.api.test_clients import SCHEDULER, call, client_certificate, guarded
from tests.hostile_certificates import CHANGES, HARMLESS, hostile_pairs, remade
from tests.tls.test_certificate_renewal import FIVE, reloads, served

NOW = dt.datetime.now(dt.UTC)
AUTHORITY = make_authority(NOW)
CORPUS = dict(hostile_pairs(AUTHORITY, NOW))
FITTING = {"key of another", "key that is none"}
"""Pairs whose certificate is good."""
pytestmark = [
    pytest.mark.filterwarnings("ignore:Attribute's length:UserWarning"),
    pytest.mark.filterwarnings("ignore:Parsed a serial number:Warning"),
]


@pytest.mark.parametrize("name", CORPUS)
def test_bad_pair_in_a_mounted_secret_leaves_the_good_one_in_service(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 43, TLS-05: a log line and a count, readiness as it was; a good pair is taken afterwards."""
    service, mounted = served(tmp_path)
    renewal, good = CertificateRenewal(service), service.certificates.serving
    mounted.write(CORPUS[name])

    with caplog.at_level(logging.ERROR, LOGGER.name):
        renewal.check(NOW)

    if name not in HARMLESS:
        assert service.certificates.serving is good
        assert (reloads(service, "success"), reloads(service, "error")) == (0, 1)
        (record,) = caplog.records
        assert record.message.startswith("certificate not renewed: ")
        assert "tls." in record.message
        assert len(record.message) < 1000
    assert service.certificates.in_date(NOW)
    taken = reloads(service, "success")
    mounted.write(issue_leaf(mounted.authority, NAMES, NOW))
    renewal.check(NOW + FIVE)
    assert reloads(service, "success") == taken + 1


@pytest.mark.parametrize("name", CORPUS)
def test_bad_ca_beside_a_good_pair_is_no_reason_to_refuse_the_pair(name: str, tmp_path: Path) -> None:
    """TLS-09: the CA is read for its expiry alone; a file too large to be read is logged."""
    service, mounted = served(tmp_path)
    mounted.authority = KeyPair(CORPUS[name].certificate, mounted.authority.key)
    mounted.write(issue_leaf(AUTHORITY, NAMES, NOW))

    CertificateRenewal(service).check(NOW)

    large = name in ("16 MiB", "10,000 PEM blocks")
    assert (reloads(service, "success"), reloads(service, "error")) == ((0, 1) if large else (1, 0))


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("file", ["tls", "ca"])
def test_bad_pair_in_our_own_folder_is_made_anew(name: str, file: str, tmp_path: Path) -> None:
    """F102: a pair of our own that somebody damaged can be issued again."""
    issue_if_needed(tmp_path, NOW)
    (tmp_path / f"{file}.crt").write_bytes(CORPUS[name].certificate)
    (tmp_path / f"{file}.key").write_bytes(CORPUS[name].key)

    assert Certificates(issue_if_needed(tmp_path, NOW), NOW).in_date(NOW)


@pytest.mark.parametrize("name", CORPUS)
def test_start_with_a_bad_pair_is_a_certificate_error(name: str, tmp_path: Path) -> None:
    """F100: this also holds for the CAs of clients, which OpenSSL reads."""
    pair = issue_if_needed(tmp_path, NOW)
    clients = tmp_path / "clients.crt"
    clients.write_bytes(CORPUS[name].certificate)
    for words in ((clients,), ()):
        if not words:  # the pair itself
            pair.certificate.write_bytes(CORPUS[name].certificate)
            pair.key.write_bytes(CORPUS[name].key)
        with contextlib.suppress(CertificateError):
            Certificates(pair, NOW, *words)


@pytest.mark.parametrize("name", CORPUS)
def test_pure_readers_give_an_answer_or_a_value_error(name: str) -> None:
    """TLS-06: there are dates that overflow, names that do not decode, and keys of any type."""
    pair = CORPUS[name]
    for certificate in read_bundle(pair.certificate):
        assert isinstance(key_matches(pair.key, certificate), bool)
        assert isinstance(signed_by(certificate, AUTHORITY.certificate), bool)
        assert isinstance(is_named(read_certificate(certificate)), bool)
        describe(read_certificate(certificate))
        try:
            names_of(read_certificate(certificate))
        except ValueError:
            assert not is_named(read_certificate(certificate))
    with contextlib.suppress(ValueError):
        list(problems(CertificateTexts(pair.certificate, pair.key, pair.certificate), NOW, "gpu-usher"))
    renewed = renew_trust(read_trust(pair.certificate, pair.key), pair, NOW, published=pair.certificate)
    leaf = renew_leaf(pair, renewed, NAMES, NOW, 0.0)
    assert signed_by(leaf.certificate, renewed.authority.certificate) or name in HARMLESS | FITTING


@pytest.mark.parametrize("name", CORPUS)
def test_show_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    """`gpu-usher certs show`: bad input is an error message and never a stack trace."""
    issue_if_needed(tmp_path, NOW)
    (tmp_path / "tls.crt").write_bytes(CORPUS[name].certificate)
    (tmp_path / "tls.key").write_bytes(CORPUS[name].key)

    answer = CliRunner().invoke(cli, ["certs", "show", "--certs", str(tmp_path)])

    assert answer.exit_code != 0
    assert isinstance(answer.exception, SystemExit | BadInput)


def subject_changed(name: str) -> bool:
    """Tell whether a change of the corpus is one of the subject, after which the one common name is gone."""
    return "common name" in name or "subject" in name


class Stored(ApiServer):
    """The objects of an API server, by path, without a server."""

    def __init__(self, objects: Mapping[str, Object]) -> None:
        self.objects = dict(objects)

    async def read(self, path: str, _params: object = None, _seconds: float = 0.0) -> Object | None:
        return self.objects.get(path)

    async def replace(self, path: str, document: Mapping[str, Any]) -> Object:
        self.objects[path] = json.loads(json.dumps(document))
        return self.objects[path]


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("secret", ["tls", "ca"])
def test_keeper_of_certificates_makes_good_what_a_secret_spoils(name: str, secret: str) -> None:
    """TLS-06: its turn ends, and both Secrets are complete afterwards."""
    names, pair = Names(places=()), CORPUS[name]
    store = Stored({names.secret(pair_name): {"metadata": {}} for pair_name in ("tls", "ca")})
    keeper = Controller(store, names, lambda: NOW)
    asyncio.run(keeper.turn())
    spoilt = {f"{secret}.crt": pair.certificate, f"{secret}.key": pair.key}
    spoilt = {"tls.crt": pair.certificate, "tls.key": pair.key} if secret == "tls" else spoilt
    store.objects[names.secret(secret)]["data"] |= {
        key: base64.b64encode(content).decode() for key, content in spoilt.items()
    }

    asyncio.run(keeper.turn())

    data = {pair_name: store.objects[names.secret(pair_name)]["data"] for pair_name in ("tls", "ca")}
    leaf, bundle = (base64.b64decode(data["tls"][key]) for key in ("tls.crt", "ca.crt"))
    assert any(signed_by(leaf, authority) for authority in read_bundle(bundle))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("name", CHANGES)
def test_client_with_a_strange_certificate_of_a_known_ca_has_no_identity(
    name: str, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """F100: the handshake fails or gives no subject, and the next client is answered."""
    good = client_certificate(AUTHORITY, tmp_path, SCHEDULER)
    certificate, _, key = good.read_bytes().partition(b"-----BEGIN PRIVATE")
    strange = tmp_path / "strange.pem"
    leaf = remade(AUTHORITY, certificate, CHANGES[name](certificate))
    strange.write_bytes(leaf + b"-----BEGIN PRIVATE" + key)
    with guarded(tmp_path, AUTHORITY) as (service, url):
        try:
            answer = call(service, url, "/scheduler/filter", strange, version)
        except (httpx.TransportError, ssl.SSLError):
            answer = None  # OpenSSL on the client's side does not load it, or ours does not take it
        after = call(service, url, "/scheduler/filter", good, version)

    assert after.status_code == 200
    assert answer is None or answer.status_code == 403 or not subject_changed(name)
