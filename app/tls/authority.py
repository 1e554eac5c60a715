# SPDX-License-Identifier: Apache-2.0
"""Our own certificate authority: makes CAs and issues leaf certificates, with ECDSA P-256 keys."""

import datetime as dt
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.tls.pem import read_certificate

CA_LIFE = dt.timedelta(days=365)
LEAF_LIFE = dt.timedelta(days=7)
"""Certificates of 365 days are usual here: cert-manager's own authority uses the same (cert-manager
pkg/server/tls/authority)."""
BACKDATED = dt.timedelta(hours=1)
"""Certificates are valid from an hour ago, since clocks differ (as open-policy-agent/cert-controller does)."""
RENEW_AT = 2 / 3
"""Share of its lifetime after which a certificate is replaced (cert-manager's rule)."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def service_names(service: str = "gpu-usher", namespace: str = "gpu-usher") -> tuple[str, ...]:
    """Return the names of a Service; the API server uses `service.namespace.svc`."""
    short = f"{service}.{namespace}"
    return service, short, f"{short}.svc", f"{short}.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(now: dt.datetime) -> KeyPair:
    """Make a CA that signs leaves only. Its subject is unique, because OpenSSL confuses two CAs of one name."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpu-usher CA {serial % 16**8:08x}")])
    certificate = (
        _builder(name, name, key.public_key(), now, now + CA_LIFE)
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _key_pair(certificate, key)


def issue_leaf(authority: KeyPair, names: Iterable[str], now: dt.datetime) -> KeyPair:
    """Issue a serving certificate, which never outlives its CA."""
    ca = read_certificate(authority.certificate)
    ca_key = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key of a CA of ours is an elliptic curve's")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-usher")])
    certificate = (
        _builder(subject, ca.subject, key.public_key(), now, min(now + LEAF_LIFE, ca.not_valid_after_utc))
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return _key_pair(certificate, key)


def can_sign(certificate: bytes) -> bool:
    """Tell whether a certificate that can be read has an elliptic curve key, as our CAs have."""
    return isinstance(read_certificate(certificate).public_key(), ec.EllipticCurvePublicKey)


def issued_at(certificate: x509.Certificate) -> dt.datetime:
    """Return when we made a certificate."""
    return certificate.not_valid_before_utc + BACKDATED


def is_fresh(certificate: x509.Certificate, now: dt.datetime) -> bool:
    """Tell whether a certificate is valid and not yet due for renewal."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_before_utc <= now < certificate.not_valid_before_utc + life * RENEW_AT


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return builder.not_valid_before(now - BACKDATED).not_valid_after(end)


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


def _key_pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, pkcs8, plain),
    )
