# SPDX-License-Identifier: Apache-2.0
"""Malformed certificates, each signed by a real CA, so that only the malformed part of its DER is wrong."""

import base64
import datetime as dt
from collections.abc import Callable, Iterator

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, rsa

from app.tls.authority import KeyPair, issue_leaf
from app.tls.serving_certificates import NAMES

SEQUENCE, SET, INTEGER, BITS, OCTETS, UTF8, GENERALIZED = 0x30, 0x31, 0x02, 0x03, 0x04, 0x0C, 0x18
SERIAL, VALIDITY, SUBJECT, KEY, EXTENSIONS = 1, 4, 5, 6, 7
"""Places in a TBSCertificate of version 3 (RFC 5280, section 4.1)."""
SAN = bytes.fromhex("0603551d11")
P256 = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")
COMMON_NAME = bytes.fromhex("0603550403")


def tlv(tag: int, content: bytes) -> bytes:
    """Encode a DER value."""
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(digits))) + digits + content


def split(content: bytes) -> list[bytes]:
    """Split the content of a constructed value into its encoded members."""
    members = []
    while content:
        size, start = content[1], 2
        if size & 0x80:
            start = 2 + (size & 0x7F)
            size = int.from_bytes(content[2:start], "big")
        members.append(content[: start + size])
        content = content[start + size :]
    return members


def inside(encoded: bytes) -> bytes:
    """Return the content of an encoded value."""
    return encoded[2 + (encoded[1] & 0x7F if encoded[1] & 0x80 else 0) :]


def pem(der: bytes) -> bytes:
    """Write a certificate as PEM."""
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


def der_of(certificate: bytes) -> bytes:
    """Return the DER of a PEM certificate."""
    return x509.load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)


def private_key(pair: KeyPair) -> ec.EllipticCurvePrivateKey:
    """Read the key of a CA."""
    key = serialization.load_pem_private_key(pair.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def remade(authority: KeyPair, certificate: bytes, changes: dict[int, bytes]) -> bytes:
    """Replace parts of a certificate's TBSCertificate, and sign it again."""
    signed, algorithm, _ = split(inside(der_of(certificate)))
    parts = split(inside(signed))
    for place, encoded in changes.items():
        parts[place] = encoded
    to_sign = tlv(SEQUENCE, b"".join(parts))
    signature = private_key(authority).sign(to_sign, ec.ECDSA(hashes.SHA256()))
    return pem(tlv(SEQUENCE, to_sign + algorithm + tlv(BITS, b"\0" + signature)))


def extension(identifier: bytes, value: bytes) -> bytes:
    """Encode an extension of a TBSCertificate."""
    return tlv(SEQUENCE, identifier + tlv(OCTETS, value))


def extensions_of(certificate: bytes, but: bytes = b"no identifier") -> list[bytes]:
    """List the encoded extensions, except those that contain `but`."""
    (holder,) = split(inside(split(inside(split(inside(der_of(certificate)))[0]))[EXTENSIONS]))
    return [encoded for encoded in split(inside(holder)) if but not in encoded]


def with_extensions(extensions: list[bytes]) -> dict[int, bytes]:
    """Return the change that gives a certificate these extensions."""
    return {EXTENSIONS: tlv(0xA3, tlv(SEQUENCE, b"".join(extensions)))}


def validity(begins: bytes, ends: bytes) -> dict[int, bytes]:
    """Return the change of the dates, each given as the text of a GeneralizedTime."""
    return {VALIDITY: tlv(SEQUENCE, tlv(GENERALIZED, begins) + tlv(GENERALIZED, ends))}


def subject(*names: bytes, apart: bool = True) -> dict[int, bytes]:
    """Return the change of the subject to common names, each in an RDN of its own or all in one."""
    encoded = [tlv(SEQUENCE, COMMON_NAME + tlv(UTF8, name)) for name in names]
    sets = [tlv(SET, attribute) for attribute in encoded] if apart else [tlv(SET, b"".join(encoded))]
    return {SUBJECT: tlv(SEQUENCE, b"".join(sets))}


def public_key_of(key: dsa.DSAPrivateKey | ed448.Ed448PrivateKey | ec.EllipticCurvePrivateKey) -> dict[int, bytes]:
    """Return the change to another public key."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return {KEY: key.public_key().public_bytes(serialization.Encoding.DER, form)}


def private_pem(
    key: dsa.DSAPrivateKey | ed448.Ed448PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
) -> bytes:
    """Write a private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def explicit_curve() -> dict[int, bytes]:
    """Return the change to an EC key with explicit parameters, which are no curve."""
    algorithm = bytes.fromhex("06072a8648ce3d0201")
    field = tlv(SEQUENCE, bytes.fromhex("06072a8648ce3d0101") + tlv(INTEGER, b"\x17"))
    curve = tlv(SEQUENCE, tlv(OCTETS, b"\1") + tlv(OCTETS, b"\1"))
    written = tlv(SEQUENCE, tlv(INTEGER, b"\1") + field + curve + tlv(OCTETS, b"\4\1\1") + tlv(INTEGER, b"\x17"))
    return {KEY: tlv(SEQUENCE, tlv(SEQUENCE, algorithm + written) + tlv(BITS, b"\0\4\1\1"))}


def unknown_algorithm() -> dict[int, bytes]:
    """Return the change to a key of an unknown algorithm."""
    return {KEY: tlv(SEQUENCE, tlv(SEQUENCE, bytes.fromhex("06032a0304")) + tlv(BITS, b"\0" + b"\7" * 40))}


CHANGES: dict[str, Callable[[bytes], dict[int, bytes]]] = {
    "malformed SAN": lambda leaf: with_extensions([*extensions_of(leaf, SAN), extension(SAN, b"\x30\x05\x82\x20a")]),
    "SAN of bytes that are no ASCII": lambda leaf: with_extensions(
        [*extensions_of(leaf, SAN), extension(SAN, tlv(SEQUENCE, tlv(0x82, b"\xff\xfe")))]
    ),
    "SAN with an address of five bytes": lambda leaf: with_extensions(
        [*extensions_of(leaf, SAN), extension(SAN, tlv(SEQUENCE, tlv(0x87, b"\1\2\3\4\5")))]
    ),
    "SAN with an X.400 address": lambda leaf: with_extensions(
        [*extensions_of(leaf, SAN), extension(SAN, tlv(SEQUENCE, tlv(0xA3, tlv(SEQUENCE, b""))))]
    ),
    "SAN without names": lambda leaf: with_extensions(
        [*extensions_of(leaf, SAN), extension(SAN, tlv(SEQUENCE, b""))]
    ),
    "two SANs": lambda leaf: with_extensions([*extensions_of(leaf), *[e for e in extensions_of(leaf) if SAN in e]]),
    "malformed basic constraints": lambda leaf: with_extensions(
        [*extensions_of(leaf, bytes.fromhex("0603551d13")), extension(bytes.fromhex("0603551d13"), b"\x04\x01x")]
    ),
    "month 99": lambda _leaf: validity(b"20269912000000Z", b"20279912000000Z"),
    "negative year": lambda _leaf: validity(b"-0261112000000Z", b"20270101000000Z"),
    "year 0": lambda _leaf: validity(b"00000101000000Z", b"20990101000000Z"),
    "year 1": lambda _leaf: validity(b"00010101000000Z", b"00010101000000Z"),
    "end of time": lambda _leaf: validity(b"99991231233000Z", b"99991231235959Z"),
    "ends before it begins": lambda _leaf: validity(b"20990101000000Z", b"20000101000000Z"),
    "serial of 1,000 bytes": lambda _leaf: {SERIAL: tlv(INTEGER, b"\7" * 1000)},
    "negative serial": lambda _leaf: {SERIAL: tlv(INTEGER, b"\x87")},
    "empty serial": lambda _leaf: {SERIAL: tlv(INTEGER, b"")},
    "version 9": lambda _leaf: {0: tlv(0xA0, tlv(INTEGER, b"\x08"))},
    "common name that is no UTF-8": lambda _leaf: subject(b"\xff\xfe\x80"),
    "common name of 100,000 bytes": lambda _leaf: subject(b"a" * 100_000),
    "several common names": lambda _leaf: subject(b"kube-scheduler", b"root"),
    "several common names in one RDN": lambda _leaf: subject(b"kube-scheduler", b"root", apart=False),
    "subject of another type": lambda _leaf: {SUBJECT: tlv(INTEGER, b"\1")},
    "curve written out": lambda _leaf: explicit_curve(),
    "unknown algorithm": lambda _leaf: unknown_algorithm(),
    "key that is no point": lambda _leaf: {KEY: tlv(SEQUENCE, P256 + tlv(BITS, b"\0\4" + b"\1" * 64))},
}  # fmt: skip
"""Name → the change of a good leaf."""
OTHER_KEYS: dict[str, Callable[[], dsa.DSAPrivateKey | ed448.Ed448PrivateKey | ec.EllipticCurvePrivateKey]] = {
    "DSA": lambda: dsa.generate_private_key(1024),
    "Ed448": ed448.Ed448PrivateKey.generate,
    "secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
    "brainpool": lambda: ec.generate_private_key(ec.BrainpoolP256R1()),
}
"""Keys that a certificate can have, but that no client of ours verifies."""
HARMLESS = {"several common names", "serial of 1,000 bytes", "common name of 100,000 bytes"}
"""Names of malformed pairs that a client may accept, so that they may be taken into service or not."""


def hostile_pairs(authority: KeyPair, now: dt.datetime) -> Iterator[tuple[str, KeyPair]]:
    """Iterate over the corpus: a name of what is wrong, and the pair."""
    leaf = issue_leaf(authority, NAMES, now)
    der = der_of(leaf.certificate)
    for name, change in CHANGES.items():
        yield name, KeyPair(remade(authority, leaf.certificate, change(leaf.certificate)), leaf.key)
    for name, make in OTHER_KEYS.items():
        key = make()
        yield name, KeyPair(remade(authority, leaf.certificate, public_key_of(key)), private_pem(key))
    yield "truncated", KeyPair(pem(der[:-20]), leaf.key)
    yield "trailing data", KeyPair(pem(der + b"more"), leaf.key)
    yield "empty PEM block", KeyPair(pem(b""), leaf.key)
    yield "empty file", KeyPair(b"", leaf.key)
    yield "no base64", KeyPair(leaf.certificate.replace(b"M", b"!", 40), leaf.key)
    yield "10,000 PEM blocks", KeyPair(leaf.certificate * 10_000, leaf.key)
    yield "1,000 PEM blocks", KeyPair(leaf.certificate + pem(b"\x30\x00") * 1000, leaf.key)
    yield "16 MiB", KeyPair(leaf.certificate + b"\n" * (16 << 20), leaf.key)
    yield "good leaf, malformed intermediate", KeyPair(leaf.certificate + pem(b"\x30\x03\x02\x01\x01"), leaf.key)
    yield "key of another", KeyPair(leaf.certificate, private_pem(ec.generate_private_key(ec.SECP256R1())))
    yield "key that is none", KeyPair(leaf.certificate, pem(b"\x30\x00"))
