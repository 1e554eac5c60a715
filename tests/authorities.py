# SPDX-License-Identifier: Apache-2.0
"""Certificate authorities of the tests, and leaf certificates of theirs for loopback."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA: its name, its private key, and its certificate as PEM."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    pem: str


def make_authority(name: str) -> Authority:
    """Create a CA."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key.public_key())
    certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        key, hashes.SHA256()
    )
    return Authority(subject, key, _pem(certificate))


def write_leaf(authority: Authority, folder: Path, common_name: str = "gpu-usher") -> int:
    """Write tls.crt and tls.key for loopback, each whole, one after the other, and return the serial number."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        _builder(subject, authority.name, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for name, content in (("tls.key", private.decode()), ("tls.crt", _pem(certificate))):
        (folder / f"{name}.new").write_text(content, "ascii")
        (folder / f"{name}.new").replace(folder / name)
    return certificate.serial_number


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - DAY).not_valid_after(now + DAY)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
