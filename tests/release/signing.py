# SPDX-License-Identifier: Apache-2.0
"""Detached signatures as `cosign verify-blob --key KEY.pub --signature FILE.sig FILE` checks them.

A signature is base64: of ECDSA over SHA-256 in DER for a key on P-256, which `cosign import-key-pair` takes, or of
Ed25519. ECDSA is deterministic (RFC 6979), so that two releases of one tree have equal signatures too. Keys are PEM
files, of PKCS #8 and SubjectPublicKeyInfo; the password of an encrypted one is in COSIGN_PASSWORD.
"""

import base64
import binascii
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

PrivateKey = EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = EllipticCurvePublicKey | Ed25519PublicKey
FROM_ENVIRONMENT = "env://"
WANTED = "wants a PEM key on P-256 or Ed25519"


def read_private_key(place: str) -> PrivateKey:
    """Read the key to sign with, from a file or, with env://NAME, from a variable of the environment.

    Raises SystemExit.
    """
    password, variable = os.environ.get("COSIGN_PASSWORD"), place.removeprefix(FROM_ENVIRONMENT)
    try:
        pem = os.environ.get(variable, "").encode() if variable != place else Path(place).read_bytes()
        key = load_pem_private_key(pem, password.encode() if password else None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SystemExit(f"release: KEY={place}: {error}: {WANTED}") from error
    if isinstance(key, EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
        return key
    if isinstance(key, Ed25519PrivateKey):
        return key
    raise SystemExit(f"release: KEY={place}: got {type(key).__name__}, {WANTED}")


def read_public_key(path: Path) -> PublicKey:
    """Read the key to verify with.

    Raises SystemExit.
    """
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise SystemExit(f"verify-release: PUBLIC_KEY={path}: {error}: {WANTED}") from error
    if isinstance(key, EllipticCurvePublicKey | Ed25519PublicKey):
        return key
    raise SystemExit(f"verify-release: PUBLIC_KEY={path}: got {type(key).__name__}, {WANTED}")


def public_pem(key: PrivateKey) -> bytes:
    """Write the public half as PEM."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def sign(key: PrivateKey, content: bytes) -> bytes:
    """Sign a file; the text of its .sig."""
    if isinstance(key, Ed25519PrivateKey):
        return base64.b64encode(key.sign(content)) + b"\n"
    return base64.b64encode(key.sign(content, ECDSA(SHA256(), deterministic_signing=True))) + b"\n"


def is_signed(key: PublicKey, content: bytes, signature: bytes) -> bool:
    """Tell whether a signature is of this content, by this key."""
    try:
        raw = base64.b64decode(signature.removesuffix(b"\n"), validate=True)
        if isinstance(key, Ed25519PublicKey):
            key.verify(raw, content)
        else:
            key.verify(raw, content, ECDSA(SHA256()))
    except (binascii.Error, InvalidSignature, ValueError):
        return False
    return base64.b64encode(raw) + b"\n" == signature
