# SPDX-License-Identifier: Apache-2.0
"""Serving certificates: made where none is valid, checked before use, swapped without breaking a handshake.

A pair is never loaded into a live SSLContext: from another thread that broke 51 of 770 handshakes, and a bad
pair leaves the context broken. A fresh, checked context is handed out in the SNI callback (OPERATIONS §4.4).
"""

import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.errors import CertificateError

CA_LIFE = dt.timedelta(days=365)
LEAF_LIFE = dt.timedelta(days=90)
"""Issue 6 shortens it to 7 days, together with rotation by a controller; here a restart once a quarter must do."""
BACKDATED = dt.timedelta(hours=1)
"""Clocks differ (TLS-02; open-policy-agent/cert-controller does the same)."""
RENEW_AT = 2 / 3
"""Share of the life after which a certificate is replaced (TLS-02, cert-manager's rule)."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
SERVICE_NAMES = (
    "gpu-usher",
    "gpu-usher.gpu-usher",
    "gpu-usher.gpu-usher.svc",
    "gpu-usher.gpu-usher.svc.cluster.local",
)
"""TLS-04: the API server asks for svc.ns.svc."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Certificate (PEM, chain allowed) and key files, and the CA's certificate where we made it."""

    certificate: Path
    key: Path
    ca: Path | None = None


def issue_if_needed(directory: Path, now: dt.datetime, names: Sequence[str] = (*LOCAL_NAMES, *SERVICE_NAMES)) -> Pair:
    """Give a CA and a leaf in `directory`: those there while valid and complete, else new ones.

    Raises CertificateError if the directory cannot be written.
    """
    pair = Pair(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")
    try:
        if _good(pair, directory / "ca.key", now, names):
            return pair
        _issue(pair, directory / "ca.key", now, names)
    except OSError as error:
        raise CertificateError(f"{directory}: {error.strerror}: wants a directory that can be written") from error
    return pair


def _good(pair: Pair, ca_key: Path, now: dt.datetime, names: Sequence[str]) -> bool:
    """Tell whether the pair is there, belongs together, has the names, and is young enough."""
    if not all(path.exists() for path in (pair.certificate, pair.key, ca_key)) or not (pair.ca and pair.ca.exists()):
        return False
    try:
        leaf = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        ca = x509.load_pem_x509_certificate(pair.ca.read_bytes())
        leaf.verify_directly_issued_by(ca)
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    except (ValueError, TypeError, InvalidSignature):
        return False
    same_names = _names(leaf) == set(names)
    same_key = key.public_key() == leaf.public_key()
    return same_names and same_key and all(_young(each, now) for each in (leaf, ca))


def _names(leaf: x509.Certificate) -> set[str]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(each.value) for each in found}


def _young(certificate: x509.Certificate, now: dt.datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_before_utc <= now < certificate.not_valid_before_utc + life * RENEW_AT


def _issue(pair: Pair, ca_key_path: Path, now: dt.datetime, names: Sequence[str]) -> None:
    ca_key, leaf_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-usher CA")])
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    leaf_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-usher")])
    leaf = (
        _builder(leaf_name, ca_name, leaf_key.public_key(), now, LEAF_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pair.certificate.parent.mkdir(parents=True, exist_ok=True)
    for path, key in ((ca_key_path, ca_key), (pair.key, leaf_key)):
        _write(path, _private(key), 0o600)
    for path, certificate in ((pair.certificate.with_name("ca.crt"), ca), (pair.certificate, leaf)):
        _write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    life: dt.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
    )


def _usage(**granted: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: granted.get(name, False) for name in names})


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file whole, with its mode from the first byte on; a half-written key is never seen."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


@dataclass(frozen=True, slots=True)
class Serving:
    """A checked certificate: its context, when it ends, and the bytes it was made from."""

    context: ssl.SSLContext
    expires: dt.datetime
    source: tuple[bytes, bytes]


def load_serving(pair: Pair, now: dt.datetime) -> Serving:
    """Load a pair into a fresh context: TLS 1.2 and newer.

    Raises CertificateError for a missing, mismatched or expired pair.
    """
    try:
        source = _read(pair)
        leaf = x509.load_pem_x509_certificate(source[0])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(pair.certificate, pair.key, password=lambda: "")  # else OpenSSL asks on the terminal
    except OSError as error:  # SSLError is one: the key is not the certificate's
        raise CertificateError(f"{pair.certificate}, {pair.key}: {error.strerror or error}") from error
    except ValueError as error:
        raise CertificateError(f"{pair.certificate}: not a PEM certificate") from error
    if _read(pair) != source:
        raise CertificateError(f"{pair.certificate}, {pair.key}: changed while they were read, wants another try")
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        raise CertificateError(f"{pair.certificate}: valid until {leaf.not_valid_after_utc:%Y-%m-%d %H:%M}Z, not now")
    context.set_alpn_protocols(["http/1.1"])
    return Serving(context, leaf.not_valid_after_utc, source)


def _read(pair: Pair) -> tuple[bytes, bytes]:
    """Read both files.

    Raises CertificateError.
    """
    try:
        return pair.certificate.read_bytes(), pair.key.read_bytes()
    except OSError as error:
        raise CertificateError(f"{error.filename}: {error.strerror}: wants a readable file") from error


class Certificates:
    """The certificate in service. `context` goes to the server once; later ones are handed out by SNI callback."""

    def __init__(self, pair: Pair, now: dt.datetime) -> None:
        self._pair = pair
        self.serving = load_serving(pair, now)
        self.context = load_serving(pair, now).context
        self.context.sni_callback = self._hand_out

    def _hand_out(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self.serving.context

    def renew(self, now: dt.datetime) -> bool:
        """Take the files' present content into service if it changed; tells whether it did.

        Raises CertificateError for a bad pair; the one in service stays.
        """
        if _read(self._pair) == self.serving.source:
            return False
        self.serving = load_serving(self._pair, now)
        return True

    def in_date(self, now: dt.datetime) -> bool:
        """Tell whether the certificate in service is valid."""
        return now < self.serving.expires
