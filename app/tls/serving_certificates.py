# SPDX-License-Identifier: Apache-2.0
"""Serving certificates: issued if none is valid, checked before use, and replaced without breaking a handshake.

A pair is never loaded into an SSLContext in use: from another thread that broke 51 of 770 handshakes, and an invalid
pair leaves the context broken. Each new connection uses the fresh, checked context that is current then, so that no
session outlives its certificate or the client CAs: OpenSSL keeps sessions and ticket keys by context.
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

from app.tls.authority import LOCAL_NAMES, KeyPair, issued_at, service_names
from app.tls.ca_rotation import read_trust, renew_leaf, renew_trust
from app.tls.pem import check_served, names_of, read_bundle, read_certificate, read_certificates, read_file, signed_by
from app.values.errors import CertificateError

NAMES = (*LOCAL_NAMES, *service_names())


@dataclass(frozen=True, slots=True)
class KeyPairFiles:
    """Files of a certificate (PEM, chain allowed) and its key. `ca`: those that callers trust; None if unknown."""

    certificate: Path
    key: Path
    ca: Path | None = None


def issue_if_needed(
    directory: Path, now: dt.datetime, names: Iterable[str] | None = None, rotate: bool = False
) -> KeyPairFiles:
    """Return the CA and leaf in `directory`, issued anew if they are absent, invalid or incomplete.

    `names` are those of the leaf; None stands for our own and those of the present leaf (`certs issue --name`).
    `rotate` makes a new CA. The leaf is issued by it at the first call after WAIT_SECONDS of ca_rotation.py, by wall
    clock, because we cannot see who has read the file. Raises CertificateError if the directory cannot be written.
    """
    pair = KeyPairFiles(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")
    try:
        trust, leaf = (
            read_trust(_content_or_empty(directory / "ca.crt"), _content_or_empty(directory / "ca.key")),
            _leaf(pair),
        )
        names = _default_names(leaf) if names is None else tuple(names)
        renewed = renew_trust(trust, leaf, now, rotate, _content_or_empty(directory / "ca.crt"))
        seen_seconds = (now - issued_at(read_certificate(renewed.authority.certificate))).total_seconds()
        issued = renew_leaf(leaf, renewed, names, now, seen_seconds)
        if renewed is not trust:
            directory.mkdir(parents=True, exist_ok=True)
            _write(directory / "ca.key", renewed.authority.key, 0o600)
            _write(directory / "ca.crt", renewed.bundle, 0o644)
        if issued is not leaf:
            _write(pair.key, issued.key, 0o600)
            _write(pair.certificate, issued.certificate, 0o644)
    except OSError as error:
        raise CertificateError(f"{directory}: {error.strerror}: wants a directory that can be written") from error
    return pair


def _leaf(pair: KeyPairFiles) -> KeyPair | None:
    certificate, key = _content_or_empty(pair.certificate), _content_or_empty(pair.key)
    return KeyPair(certificate, key) if certificate and key else None


def _default_names(leaf: KeyPair | None) -> tuple[str, ...]:
    try:
        present = names_of(read_certificate(leaf.certificate)) if leaf else ()
    except ValueError:
        present = ()
    return tuple(dict.fromkeys((*NAMES, *sorted(present))))


def _content_or_empty(path: Path) -> bytes:
    """Read one of our files; empty if it is absent or too large to be ours."""
    try:
        return read_file(path)
    except (FileNotFoundError, ValueError):
        return b""


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically and with its mode from the start, so that a half-written key is never seen."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


@dataclass(frozen=True, slots=True)
class Serving:
    """A checked certificate: its context, its validity, and the bytes that it was read from.

    `authority_expires` is when the CA that signed it expires; None if the CA's certificate is unknown.
    """

    context: ssl.SSLContext
    starts: dt.datetime
    expires: dt.datetime
    authority_expires: dt.datetime | None
    source: tuple[bytes, ...]


def load_serving(pair: KeyPairFiles, now: dt.datetime, clients: Path | None = None) -> Serving:
    """Load a pair into a fresh context, for TLS 1.2 and newer. `clients` is the file of the CAs of clients.

    Raises CertificateError for a pair that is missing, mismatched, expired, without names, or of a broken chain.
    """
    try:
        source = _read(pair, clients)
        chain = read_certificates(source[0])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(pair.certificate, pair.key, password=lambda: "")  # otherwise OpenSSL prompts for one
        _check_leaf(chain[0], now)
    except OSError as error:  # SSLError is an OSError: the key does not match the certificate
        raise CertificateError(f"{pair.certificate}, {pair.key}: {error.strerror or error}") from error
    except ValueError as error:
        raise CertificateError(f"{pair.certificate}: {error}") from error
    if _read(pair, clients) != source:
        raise CertificateError(f"{pair.certificate}, {pair.key}: changed while they were read, wants another try")
    if not all(signed_by(*link) for link in pairwise(read_bundle(source[0]))):
        raise CertificateError(f"{pair.certificate}: a chain wants each certificate signed by the next")
    if clients is not None:
        _request_client_certificates(context, clients)
    context.set_alpn_protocols(["http/1.1"])
    leaf = chain[0]
    return Serving(context, leaf.not_valid_before_utc, leaf.not_valid_after_utc, _authority_end(source), source)


def _request_client_certificates(context: ssl.SSLContext, clients: Path) -> None:
    """Request a client certificate of these CAs; a client without one is refused later, by route.

    Raises CertificateError.
    """
    try:
        context.load_verify_locations(clients)
    except OSError as error:
        raise CertificateError(f"{clients}: {error.strerror or error}: wants the CAs of callers, in PEM") from error
    context.verify_mode = ssl.CERT_OPTIONAL
    _resume_no_session(context)


def _resume_no_session(context: ssl.SSLContext) -> None:
    """Switch off session tickets, so that each connection is verified."""
    # A resumed session is not verified again, and each resumption in TLS 1.3 starts a new lifetime of two hours, so
    # that a certificate would be accepted after it has expired. Go's clients resume no session by default (crypto/tls,
    # Config.ClientSessionCache), so this costs the API server and kube-scheduler nothing.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET


def _check_leaf(leaf: x509.Certificate, now: dt.datetime) -> None:
    """Check what OpenSSL accepts but clients refuse.

    Raises ValueError.
    """
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        raise ValueError(f"valid until {leaf.not_valid_after_utc:%Y-%m-%d %H:%M}Z, not now")
    if not names_of(leaf):
        raise ValueError("has no subjectAltName, wants the names that callers use")
    check_served(leaf)


def _authority_end(source: tuple[bytes, ...]) -> dt.datetime | None:
    """Return when the CA that signed the leaf expires; the CA is in the chain or among those that clients trust."""
    authorities = (*read_bundle(source[0])[1:], *read_bundle(source[2]))
    return next(
        (
            read_certificate(authority).not_valid_after_utc
            for authority in authorities
            if signed_by(source[0], authority)
        ),
        None,
    )


def _read(pair: KeyPairFiles, clients: Path | None) -> tuple[bytes, ...]:
    """Read the certificate, the key, the CAs that clients trust and the CAs of clients; the last two may be empty.

    Raises CertificateError.
    """
    return (
        _readable(pair.certificate),
        _readable(pair.key),
        _readable(pair.ca) if pair.ca is not None and pair.ca.exists() else b"",
        _readable(clients) if clients else b"",
    )


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
    """The certificate in use. `context` is given to the server once; connections get the current context from it."""

    def __init__(self, pair: KeyPairFiles, now: dt.datetime, clients: Path | None = None) -> None:
        self._pair = pair
        self._clients = clients
        self.serving = load_serving(pair, now, clients)
        self.context = CurrentContext(lambda: self.serving.context)

    def renew(self, now: dt.datetime) -> bool:
        """Load the files if they have changed; tell whether they had.

        Raises CertificateError for an invalid pair; the certificate in use stays.
        """
        if _read(self._pair, self._clients) == self.serving.source:
            return False
        self.serving = load_serving(self._pair, now, self._clients)
        return True

    def requiring_clients_of(self, authority: str, now: dt.datetime) -> ssl.SSLContext:
        """Return a context of its own with the certificate of the files that requires a client certificate of a CA.

        `authority` is in PEM. Raises CertificateError.
        """
        context = load_serving(self._pair, now).context
        try:
            context.load_verify_locations(cadata=authority)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"the CA of clients: {error}: wants PEM") from error
        context.verify_mode = ssl.CERT_REQUIRED
        _resume_no_session(context)
        return context

    def in_date(self, now: dt.datetime) -> bool:
        """Tell whether the certificate in use is valid."""
        return now < self.serving.expires

    def trusts(self, connection: ssl.SSLObject) -> bool:
        """Tell whether the current CAs of clients would accept the certificate of an open connection.

        A connection that was opened before the last renewal may have a certificate of a CA that is no longer trusted.
        """
        if connection.context is self.serving.context:
            return True
        certificate = connection.getpeercert(binary_form=True)
        return certificate is not None and _still_trusted(certificate, self.serving.source[3])


class CurrentContext(ssl.SSLContext):
    """A context without a certificate: it passes each new connection to the current one, sessions included."""

    def __new__(cls, _current: Callable[[], ssl.SSLContext]) -> Self:
        """Make an empty server context."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, current: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._current = current

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Start a connection, as event loops do."""
        return self._current().wrap_bio(*args, **kwargs)


@lru_cache(maxsize=64)
def _still_trusted(certificate: bytes, clients: bytes) -> bool:
    """Tell whether one of the CAs signed a DER certificate directly; with an intermediate the client must reconnect."""
    pem = ssl.DER_cert_to_PEM_cert(certificate).encode("ascii")
    return any(signed_by(pem, authority) for authority in read_bundle(clients))
