# SPDX-License-Identifier: Apache-2.0
"""Describes a certificate, and finds the problems of a serving certificate from any source."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from app.tls.pem import is_named, key_matches, names_of, read_bundle, read_certificate, signed_by


@dataclass(frozen=True, slots=True)
class CertificateTexts:
    """PEM texts of a certificate (or chain, leaf first), its key, and the CAs that clients trust; None if unknown."""

    certificate: bytes
    key: bytes | None = None
    bundle: bytes | None = None


@dataclass(frozen=True, slots=True)
class DescribedCertificate:
    """The readable members of a certificate. `names` is empty for a CA."""

    subject: str
    signed_by: str
    begins: dt.datetime
    ends: dt.datetime
    names: tuple[str, ...]
    fingerprint: str


def describe(certificate: x509.Certificate) -> DescribedCertificate:
    """Describe a certificate; names that cannot be read are left out."""
    return DescribedCertificate(
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        tuple(sorted(names_of(certificate))) if is_named(certificate) else (),
        certificate.fingerprint(hashes.SHA256()).hex(),
    )


def problems(texts: CertificateTexts, now: dt.datetime, server_name: str | None = None) -> Iterator[str]:
    """Yield the problems of a certificate, the worst first. `server_name` is the name that clients use.

    Raises ValueError if the certificate cannot be read.
    """
    leaf = read_certificate(texts.certificate)
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        yield f"valid from {_minute(leaf.not_valid_before_utc)} to {_minute(leaf.not_valid_after_utc)}, not now"
    if texts.key is not None and not key_matches(texts.key, texts.certificate):
        yield "the key is not the certificate's"
    names = names_of(leaf)
    if not names or (server_name and not any(_matches(server_name, name) for name in names)):
        yield f"not for {server_name or 'any name'}: it has {', '.join(sorted(names)) or 'no names'}"
    if texts.bundle is None:
        return
    trusted = read_bundle(texts.bundle)
    signers = [authority for authority in trusted if signed_by(texts.certificate, authority)]
    if not signers:
        yield f"none of the {len(trusted)} CAs that clients trust signed it"
    elif all(read_certificate(authority).not_valid_after_utc <= now for authority in signers):
        yield "the CA that signed it has expired"


def _matches(server_name: str, name: str) -> bool:
    star, _, rest = name.partition(".")
    return server_name.lower() == name.lower() or (
        star == "*" and server_name.lower().partition(".")[2] == rest.lower()
    )


def _minute(moment: dt.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}Z"
