# SPDX-License-Identifier: Apache-2.0
"""The CA rotation: over years of simulated time every client that trusts the published bundle verifies the leaf.

The verifier is that of `cryptography`, a webpki path builder, at each instant and with clocks ten minutes off.
"""

import datetime as dt
import random
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from app.tls.authority import BACKDATED, CA_LIFE, LEAF_LIFE, KeyPair, issue_leaf, make_authority, service_names
from app.tls.ca_rotation import WAIT_SECONDS, TrustedCAs, read_trust, renew_leaf, renew_trust
from app.tls.pem import read_bundle, read_certificate

NOW = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)
NAMES = service_names()
SERVICE_NAME = "gpu-usher.gpu-usher.svc"
OFF = dt.timedelta(minutes=10)
"""Fault 46."""
SECOND = dt.timedelta(seconds=1)
T = TypeVar("T")
FAST_SECONDS = 10
"""Seconds between two turns while anything has changed recently."""


def verifies(bundle: bytes, leaf: KeyPair, at: dt.datetime) -> bool:
    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(at).build_server_verifier(x509.DNSName(SERVICE_NAME))
    try:
        verifier.verify(read_certificate(leaf.certificate), [])
    except VerificationError:
        return False
    return True


@dataclass
class World:
    """A controller, a webhook configuration, API servers that lag up to 50 s behind it, replicas that lag 60 s."""

    seed: int
    now: dt.datetime = NOW
    trust: TrustedCAs | None = None
    leaf: KeyPair | None = None
    seen_seconds: float = 0.0
    bundles: list[tuple[dt.datetime, bytes]] = field(default_factory=list)
    leaves: list[tuple[dt.datetime, KeyPair]] = field(default_factory=list)
    rotations: int = 0
    dice: random.Random = field(init=False)
    skew: dt.timedelta = dt.timedelta(0)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def turn(self, seconds: float, requested: bool = False) -> bool:
        """Do what the controller does in one turn, and return whether it changed anything.

        `seconds` is the time since the last turn that is played; the turns between had nothing to do.
        """
        local = self.now + self.skew
        trust = renew_trust(self.trust, self.leaf, local, requested)
        published = bool(self.bundles) and trust.authority.certificate in self.bundles[-1][1]
        self.seen_seconds = self.seen_seconds + seconds if published else 0.0
        leaf = renew_leaf(self.leaf, trust, NAMES, local, self.seen_seconds)
        changed = (trust, leaf) != (self.trust, self.leaf)
        self.rotations += self.trust is not None and trust.authority != self.trust.authority
        self.trust, self.leaf = trust, leaf
        if not self.bundles or self.bundles[-1][1] != trust.bundle:
            self.bundles.append((self.now, trust.bundle))
        if not self.leaves or self.leaves[-1][1] != leaf:
            self.leaves.append((self.now, leaf))
        return changed

    def check(self) -> None:
        """Verify every leaf that a replica may still serve with every bundle that a client may still have."""
        for bundle in _within(self.bundles, self.now, 50):
            for leaf in _within(self.leaves, self.now, 60):
                for at in (self.now - OFF, self.now, self.now + OFF):
                    assert verifies(bundle, leaf, at), (self.seed, self.now, len(read_bundle(bundle)))


def _within(versions: list[tuple[dt.datetime, T]], now: dt.datetime, seconds: int) -> list[T]:
    """Return the versions that a reader with this lag may have: the newest, and those replaced since."""
    start = now - dt.timedelta(seconds=seconds)
    ended = [until for until, _ in versions[1:]] + [now]
    return [version for (_, version), until in zip(versions, ended, strict=True) if until >= start]


@pytest.mark.parametrize(
    ("seed", "years"), [(0, 1), *(pytest.param(seed, 2, marks=pytest.mark.long) for seed in range(1, 6))]
)
def test_every_client_verifies_every_leaf_at_every_instant_over_years(seed: int, years: int) -> None:
    """TLS-02, TLS-06, faults 44, 46, 47: with outages, restarts, wipes, skewed clocks, and requested rotations."""
    world = World(seed)
    world.turn(0)
    world.bundles, world.leaves = world.bundles[-1:], world.leaves[-1:]
    end, fast = NOW + years * CA_LIFE, 30
    while world.now < end:
        seconds = FAST_SECONDS if fast else world.dice.randint(3600, 6 * 3600)
        chance = world.dice.random()
        if not fast and chance < 0.02:
            world.skew = OFF * world.dice.uniform(-1, 1)
        elif not fast and chance < 0.04:
            world.now += world.dice.randint(1, 40) * 3600 * SECOND  # no controller runs; a due leaf has 56 h left
            world.check()
            seconds, world.seen_seconds, fast = FAST_SECONDS, 0.0, 7  # a controller runs for a minute
        elif chance < 0.06:
            world.seen_seconds = 0.0  # another process took over
        world.now += seconds * SECOND
        if fast or chance < 0.1:
            world.check()
        changed = world.turn(seconds, requested=world.dice.random() < 0.001)
        fast = 15 if changed else max(0, fast - 1)
        if fast:
            world.check()

    assert world.rotations >= years
    assert len(world.leaves) >= years * CA_LIFE / LEAF_LIFE
    assert world.trust is not None


def test_new_ca_is_published_first_then_signs_then_the_old_one_goes() -> None:
    """TLS-06, in its order: publish at 2/3 of the CA's life, sign 60 s later, drop the old one after a leaf's life."""
    first = renew_trust(None, None, NOW)
    leaf = renew_leaf(None, first, NAMES, NOW, 0)
    due = NOW + CA_LIFE * 2 / 3
    leaf = renew_leaf(leaf, first, NAMES, due - dt.timedelta(days=1), 60)

    second = renew_trust(first, leaf, due)
    waiting = renew_leaf(leaf, second, NAMES, due, WAIT_SECONDS - 1)
    issued = renew_leaf(leaf, second, NAMES, due, WAIT_SECONDS)
    unchanged = renew_trust(second, issued, due + LEAF_LIFE)
    dropped = renew_trust(second, issued, due + LEAF_LIFE + BACKDATED)

    assert second.bundle == second.authority.certificate + first.authority.certificate
    assert waiting is leaf
    assert issued != leaf
    assert verifies(second.authority.certificate, issued, due)
    assert unchanged is second
    assert dropped == TrustedCAs(second.authority)


def test_controller_that_was_just_started_renews_a_leaf_of_the_signing_ca() -> None:
    """TLS-02, fault 47: who verifies the old leaf verifies the new one, so a restart each minute delays nothing."""
    trust = renew_trust(None, None, NOW)
    leaf = renew_leaf(None, trust, NAMES, NOW, 0)
    due = NOW + LEAF_LIFE * 2 / 3

    renewed = renew_leaf(leaf, trust, NAMES, due, seen_seconds=0)
    renamed = renew_leaf(leaf, trust, ("other", *NAMES), NOW, seen_seconds=0)

    assert leaf != renewed != renamed != leaf
    assert verifies(trust.bundle, renewed, due)


def test_old_ca_stays_while_its_leaf_is_still_served() -> None:
    """A bundle that cannot be published must not lose the CA of the served leaf."""
    first = renew_trust(None, None, NOW)
    leaf = renew_leaf(None, first, NAMES, NOW, 0)
    second = renew_trust(first, leaf, NOW, requested=True)

    assert renew_trust(second, leaf, NOW + LEAF_LIFE * 2) is second


def test_lost_authority_leaves_what_is_published_trusted() -> None:
    """After the Secret was emptied, the served leaf stays until the new CA was seen."""
    first = renew_trust(None, None, NOW)
    leaf = renew_leaf(None, first, NAMES, NOW, 0)

    second = renew_trust(None, leaf, NOW, published=first.bundle)

    assert second.retired == (first.authority.certificate,)
    assert renew_leaf(leaf, second, NAMES, NOW, 0) is leaf


@pytest.mark.parametrize("away", [CA_LIFE, 3 * CA_LIFE, -CA_LIFE], ids=["a year", "three years", "clock set back"])
def test_after_any_absence_one_turn_mends_it(away: dt.timedelta) -> None:
    """Fault 47: nothing waits where nothing can get worse."""
    first = renew_trust(None, None, NOW)
    leaf = renew_leaf(None, first, NAMES, NOW, 0)
    now = NOW + away

    trust = renew_trust(first, leaf, now)

    assert verifies(trust.bundle, renew_leaf(leaf, trust, NAMES, now, 0), now)


def test_leaf_never_outlives_its_authority() -> None:
    authority = make_authority(NOW)
    late = NOW + CA_LIFE - dt.timedelta(days=1)

    leaf = read_certificate(issue_leaf(authority, NAMES, late).certificate)

    assert leaf.not_valid_after_utc == read_certificate(authority.certificate).not_valid_after_utc


@pytest.mark.parametrize("damage", ["no bundle", "no key", "another key", "not PEM"])
def test_damaged_state_is_no_state(damage: str) -> None:
    trust = TrustedCAs(make_authority(NOW))
    bundle = {"no bundle": b"", "not PEM": b"-----BEGIN"}.get(damage, trust.bundle)
    key = {"no key": b"", "another key": make_authority(NOW).key}.get(damage, trust.authority.key)

    assert read_trust(bundle, key) is None
    assert read_trust(trust.bundle, trust.authority.key) == trust
