# SPDX-License-Identifier: Apache-2.0
"""Reads certificates and keys in PEM from any source: bounded in size before parsing, ValueError if unusable.

cryptography parses extensions, names, dates and keys only when they are read, and raises several exceptions without a
common base. This module reads everything that gpu-usher uses, so that nothing fails later.
"""

import datetime as dt
from collections.abc import Collection
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

LARGEST_BYTES = 1 << 20
"""Bytes of a file, key or bundle: the most that a Secret holds (kubernetes pkg/apis/core/types.go, MaxSecretSize)."""
MOST_CERTIFICATES = 256
"""Certificates in a text; a guess above the 150 of a public trust store. A parse takes some 50 µs of the event loop."""
EARLIEST, LATEST = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1950, 9000))
"""Bounds of the start of a validity: UTCTime begins in 1950, and later years overflow when a lifetime is added."""
FAULTS = (
    ValueError,
    TypeError,
    OverflowError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""The exceptions of cryptography for certificates, keys and signatures that it cannot read."""
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
"""Curves of serving keys that the API server and kube-scheduler accept (golang src/crypto/tls/common.go)."""


def read_file(path: Path) -> bytes:
    """Read a file of at most LARGEST_BYTES.

    Raises OSError, and ValueError for a larger one.
    """
    with path.open("rb") as file:
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise ValueError(f"larger than {LARGEST_BYTES >> 10} KiB")
    return content


def read_certificate(pem: bytes) -> x509.Certificate:
    """Read the first certificate of a PEM text.

    Raises ValueError.
    """
    return read_certificates(pem)[0]


def read_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Read the certificates of a PEM text: at least one, with usable names and dates.

    Raises ValueError.
    """
    if len(pem) > LARGEST_BYTES:
        raise ValueError(f"larger than {LARGEST_BYTES >> 10} KiB")
    if pem.count(b"-----BEGIN ") > MOST_CERTIFICATES:
        raise ValueError(f"has more than {MOST_CERTIFICATES} PEM blocks")
    try:
        certificates = tuple(x509.load_pem_x509_certificates(pem))
        for certificate in certificates:
            begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            if not EARLIEST <= begins <= LATEST or ends < begins:
                raise ValueError(f"valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}")
            certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string()  # parsed when read
    except FAULTS as error:
        raise ValueError(f"not a certificate that can be read: {_one_line(error)}") from error
    return certificates


def read_bundle(pem: bytes) -> tuple[bytes, ...]:
    """Split a PEM text into its distinct certificates; none if one of them cannot be read."""
    try:
        certificates = read_certificates(pem)
    except ValueError:
        return ()
    return tuple(dict.fromkeys(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates))


def names_of(certificate: x509.Certificate) -> Collection[str]:
    """Return the names and addresses of a certificate; empty without a subjectAltName.

    Raises ValueError if the extensions cannot be read.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return frozenset(str(name.value) for name in names)
    except x509.ExtensionNotFound:
        return frozenset()
    except FAULTS as error:
        raise ValueError(f"extensions that cannot be read: {_one_line(error)}") from error


def is_named(certificate: x509.Certificate) -> bool:
    """Tell whether a certificate has names or addresses that can be read."""
    try:
        return bool(names_of(certificate))
    except ValueError:
        return False


def check_served(certificate: x509.Certificate) -> None:
    """Check what Go's TLS clients refuse: a negative serial number, and keys except RSA, ECDSA on NIST curves, Ed25519.

    golang src/crypto/x509/parser.go (GODEBUG x509negativeserial, Go 1.23). Raises ValueError.
    """
    if certificate.serial_number < 0:
        raise ValueError("a negative serial number, which Go's callers refuse")
    remedy = "wants RSA, ECDSA (P-256, P-384, P-521) or Ed25519, which Go's callers verify"
    try:
        key = certificate.public_key()
    except FAULTS as error:
        raise ValueError(f"a key that cannot be read: {_one_line(error)}: {remedy}") from error
    named_curve = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, CURVES)
    if not named_curve and not isinstance(key, rsa.RSAPublicKey | ed25519.Ed25519PublicKey):
        raise ValueError(f"a key of another type: {remedy}")


def key_matches(key: bytes, certificate: bytes) -> bool:
    """Tell whether a private key belongs to a certificate; False if either cannot be read."""
    try:
        private = serialization.load_pem_private_key(key, None)
        return private.public_key() == read_certificate(certificate).public_key()
    except FAULTS:  # TypeError: the key is encrypted
        return False


def signed_by(certificate: bytes, authority: bytes) -> bool:
    """Tell whether a CA signed a certificate directly; False if either cannot be read."""
    try:
        read_certificate(certificate).verify_directly_issued_by(read_certificate(authority))
    except FAULTS:
        return False
    return True


def _one_line(error: Exception) -> str:
    """Return the text of an error in one bounded line, since it may quote parts of the certificate."""
    return " ".join(str(error).split())[:200] or type(error).__name__
