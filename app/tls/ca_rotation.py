# SPDX-License-Identifier: Apache-2.0
"""What to write next, so that whoever trusts the published bundle verifies the served certificate at every instant.

A new CA is published beside the old one; once it was seen published everywhere for a while, the leaf comes from it;
the old one is trusted until every leaf of it has ended (TLS-06). Pure: state and time in, state out. All of the state
is the bundle, newest CA first, and the newest's key: when the CA was made says when the older ones may go, and the
key of an older one is gone from the moment that there is a newer.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from app.tls.authority import BACKDATED, LEAF_LIFE, KeyPair, can_sign, issue_leaf, made_at, make_authority, young
from app.tls.pem import belongs, is_named, names_of, read_bundle, read_certificate, signed_by

WAIT_SECONDS = 60.0
"""TLS-06: what API servers and mounted files need to see a new bundle; a kubelet's mount takes about as long."""
MARGIN = BACKDATED
"""Beyond the last old leaf's life: clocks differ, and a request to write one may have been under way."""


@dataclass(frozen=True, slots=True)
class TrustedCAs:
    """The CA that signs, and older ones still trusted, newest first."""

    authority: KeyPair
    retired: tuple[bytes, ...] = ()

    @property
    def bundle(self) -> bytes:
        """What clients are to trust, PEM, the signing CA first."""
        return b"".join((self.authority.certificate, *self.retired))


def read_trust(bundle: bytes, key: bytes) -> TrustedCAs | None:
    """Read what was stored; None where nothing of use was: a CA of ours has the key of an elliptic curve."""
    certificates = read_bundle(bundle)
    if not certificates or not belongs(key, certificates[0]) or not can_sign(certificates[0]):
        return None
    return TrustedCAs(KeyPair(certificates[0], key), certificates[1:])


def renew_trust(
    trust: TrustedCAs | None, leaf: KeyPair | None, now: dt.datetime, asked: bool = False, published: bytes = b""
) -> TrustedCAs:
    """Give the CAs to trust now: the same value where nothing is to do.

    `asked`: somebody wants a new CA. `published`: what clients trust where `trust` was lost; it stays trusted for
    as long as a leaf of it may live.
    """
    if trust is None:
        return TrustedCAs(make_authority(now), _unexpired(read_bundle(published), now))
    authority = read_certificate(trust.authority.certificate)
    if asked or not young(authority, now):
        return TrustedCAs(make_authority(now), _unexpired((trust.authority.certificate, *trust.retired), now))
    served = leaf is not None and signed_by(leaf.certificate, trust.authority.certificate)
    if trust.retired and served and now >= made_at(authority) + LEAF_LIFE + MARGIN:
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
    """Give the certificate to serve: the same value where nothing is to do.

    `seen_seconds`: for how long the signing CA was seen in every place that clients take their trust from. Before
    the wait is over a leaf of an older CA stays while it works; where it does not, or is of the signing CA itself,
    nothing can get worse by another, and a controller that is started anew each minute must not let a leaf end.
    """
    if leaf is None or not _works(leaf, trust, now):
        return issue_leaf(trust.authority, names, now)
    if not signed_by(leaf.certificate, trust.authority.certificate):
        return leaf if seen_seconds < wait_seconds else issue_leaf(trust.authority, names, now)
    certificate = read_certificate(leaf.certificate)
    fresh = young(certificate, now) and frozenset(names) == names_of(certificate)
    return leaf if fresh else issue_leaf(trust.authority, names, now)


def _works(leaf: KeyPair, trust: TrustedCAs, now: dt.datetime) -> bool:
    """Tell whether a leaf is whole, has a name, is trusted, and in date by clocks off by as much as we allow for."""
    if not belongs(leaf.key, leaf.certificate):
        return False
    certificate = read_certificate(leaf.certificate)
    if not is_named(certificate):
        return False
    in_date = certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - BACKDATED
    return in_date and any(signed_by(leaf.certificate, each) for each in read_bundle(trust.bundle))


def _unexpired(certificates: Iterable[bytes], now: dt.datetime) -> tuple[bytes, ...]:
    """Leave out the expired; one from the future stays, for it may be our clock that is wrong."""
    return tuple(each for each in certificates if read_certificate(each).not_valid_after_utc > now)
