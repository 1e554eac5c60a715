# SPDX-License-Identifier: Apache-2.0
"""Serving certificates: made where none is valid, checked before use, swapped without breaking a handshake.

A pair is never loaded into a live SSLContext: from another thread that broke 51 of 770 handshakes, and a bad
pair leaves the context broken. Each connection is begun by the fresh, checked context that is in service then, so that
no session outlives its certificate or the CAs of its client: OpenSSL keeps sessions and ticket keys by context.
"""

import datetime as dt
import os
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from cryptography import x509

from app.tls.authority import LOCAL_NAMES, KeyPair, made_at, service_names
from app.tls.ca_rotation import TrustedCAs, read_trust, renew_leaf, renew_trust
from app.tls.pem import check_served, names_of, read_bundle, read_certificate, read_certificates, read_file, signed_by
from app.values.errors import CertificateError

NAMES = (*LOCAL_NAMES, *service_names())


@dataclass(frozen=True, slots=True)
class KeyPairFiles:
    """Certificate (PEM, chain allowed) and key files. `ca`: whom its clients trust, newest first; None if unknown."""

    certificate: Path
    key: Path
    ca: Path | None = None


def issue_if_needed(
    directory: Path,
    now: dt.datetime,
    names: Iterable[str] | None = None,
    rotate: bool = False,
    wait_seconds: float = 60.0,
) -> KeyPairFiles:
    """Give a CA and a leaf in `directory`: those there while valid and complete, else new ones.

    `names`: those of the leaf; None: ours, and what the leaf that is there has besides (`certs issue --name`).
    `rotate`: begin a new CA; the leaf comes from it at the first call after the wait, by wall clock, for nobody
    can see who has read the file. Raises CertificateError if the directory cannot be written.
    """
    pair = KeyPairFiles(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")
    try:
        trust, leaf = read_trust(_content(directory / "ca.crt"), _content(directory / "ca.key")), _leaf(pair)
        names = _with_present(leaf) if names is None else tuple(names)
        renewed = renew_trust(trust, leaf, now, rotate, _content(directory / "ca.crt"))
        seen = (now - made_at(read_certificate(renewed.authority.certificate))).total_seconds()
        issued = renew_leaf(leaf, renewed, names, now, seen, wait_seconds)
        if renewed is not trust:
            _write_trust(directory, renewed)
        if issued is not leaf:
            _write(pair.key, issued.key, 0o600)
            _write(pair.certificate, issued.certificate, 0o644)
    except OSError as error:
        raise CertificateError(f"{directory}: {error.strerror}: wants a directory that can be written") from error
    return pair


def _write_trust(directory: Path, trust: TrustedCAs) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "ca.key", trust.authority.key, 0o600)
    _write(directory / "ca.crt", trust.bundle, 0o644)


def _leaf(pair: KeyPairFiles) -> KeyPair | None:
    certificate, key = _content(pair.certificate), _content(pair.key)
    return KeyPair(certificate, key) if certificate and key else None


def _with_present(leaf: KeyPair | None) -> tuple[str, ...]:
    try:
        present = names_of(read_certificate(leaf.certificate)) if leaf else ()
    except ValueError:
        present = ()
    return tuple(dict.fromkeys((*NAMES, *sorted(present))))


def _content(path: Path) -> bytes:
    """Read a file of our own; empty where there is none, or one too large to be ours."""
    try:
        return read_file(path)
    except (FileNotFoundError, ValueError):
        return b""


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
    """A checked certificate: its context, from when to when it is valid, and the bytes it was made from.

    `authority_expires`: when the CA that signed it ends; None where its certificate is not beside.
    """

    context: ssl.SSLContext
    starts: dt.datetime
    expires: dt.datetime
    authority_expires: dt.datetime | None
    source: tuple[bytes, ...]


def load_serving(pair: KeyPairFiles, now: dt.datetime, clients: Path | None = None) -> Serving:
    """Load a pair into a fresh context: TLS 1.2 and newer. `clients`: CAs of whom a client may show a certificate.

    Raises CertificateError for a pair that is missing, mismatched, expired, nameless, or of a broken chain.
    """
    try:
        source = _read(pair, clients)
        chain = read_certificates(source[0])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(pair.certificate, pair.key, password=lambda: "")  # else OpenSSL asks on the terminal
        _check_leaf(chain[0], now)
    except OSError as error:  # SSLError is one: the key is not the certificate's
        raise CertificateError(f"{pair.certificate}, {pair.key}: {error.strerror or error}") from error
    except ValueError as error:
        raise CertificateError(f"{pair.certificate}: {error}") from error
    if _read(pair, clients) != source:
        raise CertificateError(f"{pair.certificate}, {pair.key}: changed while they were read, wants another try")
    if not all(signed_by(*link) for link in pairwise(read_bundle(source[0]))):
        raise CertificateError(f"{pair.certificate}: a chain wants each certificate signed by the next")
    if clients is not None:
        _ask_clients(context, clients)
    context.set_alpn_protocols(["http/1.1"])
    leaf = chain[0]
    return Serving(context, leaf.not_valid_before_utc, leaf.not_valid_after_utc, _authority_end(source), source)


def _ask_clients(context: ssl.SSLContext, clients: Path) -> None:
    """Ask callers for a certificate of these CAs; who shows none is told apart later.

    Raises CertificateError.
    """
    try:
        context.load_verify_locations(clients)
    except OSError as error:
        raise CertificateError(f"{clients}: {error.strerror or error}: wants the CAs of callers, in PEM") from error
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed session is not verified again, and each resumption in TLS 1.3 begins a new lifetime of two hours: a
    # certificate would count for longer than it is valid. Go's clients resume nothing unless told to (crypto/tls,
    # Config.ClientSessionCache), so that the API server and kube-scheduler pay nothing.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET


def _check_leaf(leaf: x509.Certificate, now: dt.datetime) -> None:
    """Check what OpenSSL takes without a word (TLS-05).

    Raises ValueError.
    """
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        raise ValueError(f"valid until {leaf.not_valid_after_utc:%Y-%m-%d %H:%M}Z, not now")
    if not names_of(leaf):
        raise ValueError("has no subjectAltName, wants the names that callers use")
    check_served(leaf)


def _authority_end(source: tuple[bytes, ...]) -> dt.datetime | None:
    """Say when whoever signed the leaf ends: one of the chain, or one of those that clients trust."""
    known = (*read_bundle(source[0])[1:], *read_bundle(source[2]))
    return next((read_certificate(each).not_valid_after_utc for each in known if signed_by(source[0], each)), None)


def _read(pair: KeyPairFiles, clients: Path | None) -> tuple[bytes, ...]:
    """Read certificate, key, whom callers trust, and the CAs of clients; the last two empty where there are none.

    Raises CertificateError.
    """
    return _readable(pair.certificate), _readable(pair.key), _beside(pair.ca), _readable(clients) if clients else b""


def _beside(path: Path | None) -> bytes:
    """Read whom callers trust, which a Secret may lack."""
    return _readable(path) if path is not None and path.exists() else b""


def _readable(path: Path) -> bytes:
    """Read a file.

    Raises CertificateError.
    """
    try:
        return read_file(path)
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}: wants a readable file") from error
    except ValueError as error:
        raise CertificateError(f"{path}: {error}: wants PEM") from error


class Certificates:
    """The certificate in service. `context` goes to the server once, and begins each connection with that of then."""

    def __init__(self, pair: KeyPairFiles, now: dt.datetime, clients: Path | None = None) -> None:
        self._pair = pair
        self._clients = clients
        self.serving = load_serving(pair, now, clients)
        self.context = PresentContext(lambda: self.serving.context)

    def renew(self, now: dt.datetime) -> bool:
        """Take the files' present content into service if it changed; tells whether it did.

        Raises CertificateError for a bad pair; the one in service stays.
        """
        if _read(self._pair, self._clients) == self.serving.source:
            return False
        self.serving = load_serving(self._pair, now, self._clients)
        return True

    def in_date(self, now: dt.datetime) -> bool:
        """Tell whether the certificate in service is valid."""
        return now < self.serving.expires

    def trusts(self, connection: ssl.SSLObject) -> bool:
        """Tell whether the CAs of clients as they are now would take the certificate that a live connection has shown.

        A connection that was begun before the last renewal may be of a CA that is trusted no more.
        """
        if connection.context is self.serving.context:
            return True
        shown = connection.getpeercert(binary_form=True)
        return shown is not None and _still_trusted(shown, self.serving.source[3])


class PresentContext(ssl.SSLContext):
    """A context without a certificate of its own: it hands each new connection to the present one, sessions and all."""

    def __new__(cls, _present: Callable[[], ssl.SSLContext]) -> Self:
        """Make the bare context that a server wants to see."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, present: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._present = present

    def wrap_bio(self, *words: Any, **named: Any) -> ssl.SSLObject:
        """Begin a connection, as event loops do it."""
        return self._present().wrap_bio(*words, **named)


@lru_cache(maxsize=64)
def _still_trusted(shown: bytes, clients: bytes) -> bool:
    """Tell whether one of the CAs signed a certificate (DER) itself; one below an intermediate is to connect again."""
    pem = ssl.DER_cert_to_PEM_cert(shown).encode("ascii")
    return any(signed_by(pem, each) for each in read_bundle(clients))
