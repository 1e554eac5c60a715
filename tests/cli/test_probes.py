# SPDX-License-Identifier: Apache-2.0
"""The probes of the certificates' keeper, over real sockets, while it takes turns."""

import datetime as dt
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from app.cli.probes import serve_probes
from app.tls.controller import Controller, Names
from tests.controlplane.processes import free_port, wait_until
from tests.tls.test_hostile_certificates import Stored

SECONDS = 20
"""Bound on what happens within a turn of 10 ms."""


class Keeper:
    """A keeper that takes turns on stored objects, and the time by which it counts."""

    def __init__(self) -> None:
        self.names = Names(configurations=())
        self.store = Stored({self.names.secret(name): {"metadata": {}} for name in ("ca", "tls")})
        self.store.objects[self.names.lease] = {"metadata": {}}
        self.seconds = 0.0
        self.url = ""
        self.controller = Controller(
            self.store, self.names, lambda: dt.datetime.now(dt.UTC), lambda: self.seconds, turn_seconds=0.01
        )

    def asked(self, path: str) -> tuple[int, str]:
        answer = httpx.get(self.url + path, trust_env=False, timeout=5)
        return answer.status_code, answer.json().get("why", "")


@contextmanager
def probed(turning: bool = True) -> Iterator[Keeper]:
    """Answer probes, and let the keeper take turns."""
    keeper, stop, port = Keeper(), threading.Event(), free_port()
    keeper.url = f"http://127.0.0.1:{port}"
    thread = threading.Thread(target=keeper.controller.run, args=(stop,))
    answers = {"/livez": keeper.controller.alive, "/readyz": keeper.controller.ready}
    with serve_probes(port, answers):
        if turning:
            thread.start()
        yield keeper
        stop.set()
        if turning:
            thread.join()


def test_keeper_is_ready_after_a_turn_that_succeeded() -> None:
    """F110: before it neither Secret is filled, and a rollout must not go on."""
    with probed(turning=False) as keeper:
        assert keeper.asked("/readyz") == (503, "no turn yet")
        assert keeper.asked("/livez") == (200, "")
    with probed() as keeper:
        wait_until("it is ready", lambda: keeper.asked("/readyz") == (200, ""), SECONDS)

        assert keeper.store.objects[keeper.names.secret("tls")]["data"]["tls.crt"]


def test_keeper_that_lacks_an_object_is_not_ready_and_lives() -> None:
    """F110: a restart brings no Secret back."""
    with probed() as keeper:
        wait_until("it is ready", lambda: keeper.asked("/readyz") == (200, ""), SECONDS)
        gone = keeper.store.objects.pop(keeper.names.secret("ca"))

        wait_until("it is not", lambda: keeper.asked("/readyz")[0] == 503, SECONDS)

        assert "gpu-usher-ca: not there" in keeper.asked("/readyz")[1]
        assert keeper.asked("/livez")[0] == 200
        keeper.store.objects[keeper.names.secret("ca")] = gone
        wait_until("it is ready again", lambda: keeper.asked("/readyz") == (200, ""), SECONDS)


def test_keeper_whose_turn_does_not_end_is_dead() -> None:
    """F110: the one thing that a restart mends."""
    with probed(turning=False) as keeper:
        keeper.seconds = 179.0
        assert keeper.asked("/livez")[0] == 200
        keeper.seconds = 181.0

        assert keeper.asked("/livez") == (503, "no turn has ended for 181 s")


def test_callers_that_say_nothing_keep_no_probe_from_its_answer() -> None:
    """F110: anybody who reaches the pod can connect; a restart of the keeper must not be theirs to cause."""
    with probed(turning=False) as keeper, ExitStack() as silent:
        host, _, port = keeper.url.removeprefix("http://").partition(":")
        for _ in range(100):
            silent.enter_context(socket.create_connection((host, int(port))))

        assert keeper.asked("/livez") == (200, "")
        assert keeper.asked("/other")[0] == 404
