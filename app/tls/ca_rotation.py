# SPDX-License-Identifier: Apache-2.0
"""CA rotation: which CAs and which certificate to write next, so that clients can verify the server at every instant.

A new CA is published beside the old one. Once every place has shown it for a while, the leaf is issued by it. The old
CA stays trusted until all its leaves have expired. The functions are pure: state and time in, state out. The
state is the bundle, newest CA first, and the newest CA's key. The date of the newest CA tells when older ones may go;
the key of an older CA is dropped when there is a newer one.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from app.tls.authority import BACKDATED, LEAF_LIFE, KeyPair, can_sign, is_fresh, issue_leaf, issued_at, make_authority
from app.tls.pem import is_named, key_matches, names_of, read_bundle, read_certificate, signed_by

WAIT_SECONDS = 60.0
"""The time that API servers and mounted files need to show a new bundle; a kubelet's mount takes about it."""
MARGIN = BACKDATED
"""Added to the lifetime of the last old leaf: clocks differ, and a request may be about to write one."""


@dataclass(frozen=True, slots=True)
class TrustedCAs:
    """The CA that signs, and the older CAs that are still trusted, newest first."""

    authority: KeyPair
    retired: tuple[bytes, ...] = ()

    @property
    def bundle(self) -> bytes:
        """The PEM bundle that clients must trust, the signing CA first."""
        return b"".join((self.authority.certificate, *self.retired))


def read_trust(bundle: bytes, key: bytes) -> TrustedCAs | None:
    """Read stored CAs; None if they are unusable: our CAs have the key of an elliptic curve."""
    certificates = read_bundle(bundle)
    if not certificates or not key_matches(key, certificates[0]) or not can_sign(certificates[0]):
        return None
    return TrustedCAs(KeyPair(certificates[0], key), certificates[1:])


def renew_trust(
    trust: TrustedCAs | None, leaf: KeyPair | None, now: dt.datetime, requested: bool = False, published: bytes = b""
) -> TrustedCAs:
    """Return the CAs to trust now, the same object if nothing changes.

    `requested` asks for a new CA. `published` is the bundle that clients trust; if `trust` was lost, its CAs stay
    trusted for as long as one of their leaves may live.
    """
    if trust is None:
        return TrustedCAs(make_authority(now), _unexpired(read_bundle(published), now))
    authority = read_certificate(trust.authority.certificate)
    if requested or not is_fresh(authority, now):
        return TrustedCAs(make_authority(now), _unexpired((trust.authority.certificate, *trust.retired), now))
    served = leaf is not None and signed_by(leaf.certificate, trust.authority.certificate)
    if trust.retired and served and now >= issued_at(authority) + LEAF_LIFE + MARGIN:
        return TrustedCAs(trust.authority)
    return trust


def renew_leaf(
    leaf: KeyPair | None,
    trust: TrustedCAs,
    names: Iterable[str],
    now: dt.datetime,
    seen_seconds: float,
    wait_seconds: float = WAIT_SECONDS,
) -> KeyPair:
    """Return the certificate to serve, the same object if nothing changes.

    `seen_seconds` is how long every place has shown the signing CA. Before `wait_seconds` a usable leaf of an older CA
    stays. A leaf that is unusable, or of the signing CA itself, is replaced at once: that cannot make anything worse,
    and a controller that restarts every minute must not let a leaf expire.
    """
    if leaf is None or not _usable(leaf, trust, now):
        return issue_leaf(trust.authority, names, now)
    if not signed_by(leaf.certificate, trust.authority.certificate):
        return leaf if seen_seconds < wait_seconds else issue_leaf(trust.authority, names, now)
    certificate = read_certificate(leaf.certificate)
    fresh = is_fresh(certificate, now) and frozenset(names) == names_of(certificate)
    return leaf if fresh else issue_leaf(trust.authority, names, now)


def _usable(leaf: KeyPair, trust: TrustedCAs, now: dt.datetime) -> bool:
    """Tell whether a leaf has its key and a name, is trusted, and is valid with BACKDATED as tolerance for clocks."""
    if not key_matches(leaf.key, leaf.certificate):
        return False
    certificate = read_certificate(leaf.certificate)
    if not is_named(certificate):
        return False
    in_date = certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - BACKDATED
    return in_date and any(signed_by(leaf.certificate, authority) for authority in read_bundle(trust.bundle))


def _unexpired(certificates: Iterable[bytes], now: dt.datetime) -> tuple[bytes, ...]:
    """Drop expired certificates; one not valid yet stays, because our clock may be wrong."""
    return tuple(certificate for certificate in certificates if read_certificate(certificate).not_valid_after_utc > now)
