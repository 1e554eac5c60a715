# SPDX-License-Identifier: Apache-2.0
"""No request is lost while replicas restart and certificates change under load, with and without a real HAProxy."""

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.authorities import Authority, make_authority, write_leaf
from tests.controlplane.processes import wait_until
from tests.haproxy import HAPROXY, haproxy
from tests.load import Load, Tally, loading
from tests.replicas import Replica

RATE = 200.0
"""Requests a second (docs/reference/measurements.md#serving: a cluster that creates 100 pods a second sends 200)."""
SHORT_RATE = 50.0
"""Requests a second for `make test`, which may run on a busy machine."""
DRAIN_SECONDS = 5.0
LAG_SECONDS = 1.5
"""Seconds for which callers still connect after SIGTERM (docs/reference/measurements.md#termination)."""
CHANGE_SECONDS = 60
HANDSHAKES = 12
"""So many new connections must show the new leaf alone before it counts as in use, as the proxy alternates replicas."""
RESULTS = Path(__file__).parents[1] / "results" / "rolling-restart.md"


@dataclass
class World:
    """Two replicas behind one port, the CAs that the caller trusts, and a record of each step."""

    folder: Path
    replicas: list[Replica]
    authority: Authority
    trusted: list[str]
    port: int = 0
    began: float = field(default_factory=time.monotonic)
    rows: list[str] = field(default_factory=list)

    def note(self, what: str, tally: Tally) -> None:
        row = f"| {time.monotonic() - self.began:.0f} s | {what} | {tally.answered} | {tally.failures.total()} |"
        self.rows.append(row)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    program = HAPROXY.find()
    if isinstance(program, str):
        pytest.skip(program)
    authority = make_authority("first")
    (tmp_path / "pair").mkdir()
    write_leaf(authority, tmp_path / "pair")
    with contextlib.ExitStack() as stack:
        replicas = []
        for name in ("one", "two"):
            replicas.append(Replica(name, tmp_path, tmp_path / "pair", DRAIN_SECONDS))
            stack.callback(replicas[-1].stop)
        ports = [(replica.tls, replica.ops) for replica in replicas]
        port = stack.enter_context(haproxy(program, tmp_path, ports))
        yield World(tmp_path / "pair", replicas, authority, [authority.pem], port)


def restart(world: World, tally: Tally, number: int) -> None:
    """Restart one replica, and return when the proxy has found the new one by a check."""
    world.note(f"SIGTERM to replica {number}", tally)
    world.replicas[number].restart()
    world.note(f"replica {number} is ready again", tally)
    answered(tally, 200)


def answered(tally: Tally, more: int) -> None:
    """Wait for this many more answers, which gives a proxy the time to notice a change."""
    until = tally.answered + more
    wait_until(f"{more} more answers", lambda: tally.answered >= until, CHANGE_SECONDS)


def rotate_leaf(world: World, tally: Tally) -> None:
    """Replace the leaf's files, and return when new connections are shown the new leaf alone."""
    serial = write_leaf(world.authority, world.folder)
    world.note("new leaf in the files", tally)

    before = tally.serials.copy()

    def alone() -> bool:
        nonlocal before
        shown = tally.serials - before
        if set(shown) <= {serial}:
            return shown[serial] >= HANDSHAKES
        before = tally.serials.copy()
        return False

    wait_until("the new leaf is shown by both", alone, CHANGE_SECONDS)
    world.note("new leaf shown by both", tally)


def rotate_authority(world: World, tally: Tally) -> None:
    """TLS-06: trust both CAs, change the leaf, then trust the new CA alone."""
    following = make_authority("second")
    world.trusted[:] = [world.authority.pem, following.pem]
    world.note("two CAs trusted", tally)
    answered(tally, 200)
    world.authority = following
    rotate_leaf(world, tally)
    world.trusted[:] = [following.pem]
    world.note("the new CA trusted alone", tally)
    answered(tally, 200)


def _past(moment: float) -> bool:
    return time.monotonic() >= moment


def played(world: World, steps: list[Callable[[World, Tally], None]], seconds: float, rate: float) -> Tally:
    """Take the steps under load, spread over the time."""
    load = Load(rate, lambda: world.port, lambda: "".join(world.trusted))
    world.began = time.monotonic()
    with loading(load) as tally:
        for number, step in enumerate(steps, 1):
            step(world, tally)
            due = world.began + seconds * number / len(steps)
            assert dict(tally.failures) == {}, world.rows
            wait_until("the next step is due", partial(_past, due), seconds + 1)
        world.note("end", tally)
    return tally


def test_no_request_fails_while_a_replica_restarts_and_the_leaf_changes(world: World) -> None:
    """F112, HA-03, TLS-05: this is the short run."""
    tally = played(world, [lambda world, tally: restart(world, tally, 0), rotate_leaf], 28, SHORT_RATE)

    assert dict(tally.failures) == {}
    assert tally.answered > 500
    assert len(tally.serials) == 2


@pytest.mark.long
def test_no_request_fails_in_three_restarts_and_two_rotations(world: World) -> None:
    """F112, HA-03, TLS-05, TLS-06: this is the long run, whose table is kept in tests/results."""
    steps: list[Callable[[World, Tally], None]] = [
        lambda world, tally: restart(world, tally, 0),
        lambda world, tally: restart(world, tally, 1),
        rotate_leaf,
        rotate_authority,
        lambda world, tally: restart(world, tally, 0),
    ]

    tally = played(world, steps, 250, RATE)

    report(world, tally)
    assert dict(tally.failures) == {}
    assert tally.answered > 40_000
    assert len(tally.serials) == 3


def report(world: World, tally: Tally) -> None:
    """Write the table."""
    times = ", ".join(f"{name} {tally.percentile(share):.1f} ms" for name, share in (("p50", 0.5), ("p99", 0.99)))
    text = (
        "# Restarts and rotations under load\n\n"
        f"`make test-long` wrote this: two replicas (`gpu-usher serve --demo --drain-seconds {DRAIN_SECONDS:g}`) behind"
        f" HAProxy in TCP mode that checks /readyz, without retries; {RATE:g} requests/s to /mutate over TLS 1.3 from a"
        f" pool of kept connections, each replaced after 50 requests. {platform.machine()}, Python"
        f" {platform.python_version()}.\n\n"
        "| at | step | answered so far | failed so far |\n|---|---|---|---|\n" + "\n".join(world.rows) + "\n\n"
        f"Answered {tally.answered}, failed {tally.failures.total()}, {tally.serials.total()} connections,"
        f" {tally.last_answers} answers with `Connection: close`; {times} at the caller.\n"
        f"{''.join(f'- {count} x {what}' for what, count in tally.failures.items())}"
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text, "utf-8")


def test_no_request_fails_though_callers_come_for_a_while_after_sigterm(tmp_path: Path) -> None:
    """Faults 39 and 64: there is no proxy, and callers learn of the end 1.5 s late."""
    authority = make_authority("only")
    write_leaf(authority, tmp_path)
    one, two = (Replica(name, tmp_path, tmp_path, 3) for name in ("one", "two"))
    stopped_at = [0.0]
    turn = [0]

    def port() -> int:
        turn[0] += 1
        known_gone = stopped_at[0] and time.monotonic() > stopped_at[0] + LAG_SECONDS
        return two.tls if known_gone or turn[0] % 2 else one.tls

    try:
        with loading(Load(SHORT_RATE, port, lambda: authority.pem)) as tally:
            answered(tally, 100)
            stopped_at[0] = time.monotonic()
            code = one.stop()
            answered(tally, 100)
    finally:
        one.stop()
        two.stop()

    assert dict(tally.failures) == {}
    assert (code, tally.last_answers > 0) == (0, True)
