# SPDX-License-Identifier: Apache-2.0
"""What a serving certificate is, and what is wrong with it, wherever it was found."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from app.tls.pem import belongs, is_named, names_of, read_bundle, read_certificate, signed_by


@dataclass(frozen=True, slots=True)
class CertificateTexts:
    """PEM texts of a certificate (a chain's first), its key, and whom clients trust; None where unknown."""

    certificate: bytes
    key: bytes | None = None
    bundle: bytes | None = None


@dataclass(frozen=True, slots=True)
class DescribedCertificate:
    """One certificate in words. `names`: empty for a CA."""

    subject: str
    signed_by: str
    begins: dt.datetime
    ends: dt.datetime
    names: tuple[str, ...]
    fingerprint: str


def describe(certificate: x509.Certificate) -> DescribedCertificate:
    """Say what a certificate says; names that cannot be read are none."""
    return DescribedCertificate(
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        tuple(sorted(names_of(certificate))) if is_named(certificate) else (),
        certificate.fingerprint(hashes.SHA256()).hex(),
    )


def problems(found: CertificateTexts, now: dt.datetime, asked: str | None = None) -> Iterator[str]:
    """Say what is wrong, worst first. `asked`: the name that clients call it by.

    Raises ValueError where the certificate cannot be read.
    """
    leaf = read_certificate(found.certificate)
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        yield f"valid from {_minute(leaf.not_valid_before_utc)} to {_minute(leaf.not_valid_after_utc)}, not now"
    if found.key is not None and not belongs(found.key, found.certificate):
        yield "the key is not the certificate's"
    names = names_of(leaf)
    if not names or (asked and not any(_fits(asked, name) for name in names)):
        yield f"not for {asked or 'any name'}: it has {', '.join(sorted(names)) or 'no names'}"
    if found.bundle is None:
        return
    trusted = read_bundle(found.bundle)
    signers = [each for each in trusted if signed_by(found.certificate, each)]
    if not signers:
        yield f"none of the {len(trusted)} CAs that clients trust signed it"
    elif all(read_certificate(each).not_valid_after_utc <= now for each in signers):
        yield "the CA that signed it has expired"


def _fits(asked: str, name: str) -> bool:
    star, _, rest = name.partition(".")
    return asked.lower() == name.lower() or (star == "*" and asked.lower().partition(".")[2] == rest.lower())


def _minute(moment: dt.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}Z"
