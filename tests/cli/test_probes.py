# SPDX-License-Identifier: Apache-2.0
"""The probes of the certificate controller over real sockets, while it takes its turns."""

import asyncio
import datetime as dt
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
from anyio.from_thread import start_blocking_portal

from app.cli.probes import Turns, serve_probes
from app.tls.controller import Controller, Names
from tests.controlplane.processes import free_port, wait_until
from tests.tls.test_hostile_certificates import Stored

SECONDS = 20
"""Seconds allowed for what should happen within one turn of 10 ms."""


class ProbedController:
    """A certificate controller that takes turns on stored objects, with a clock that the test sets."""

    def __init__(self) -> None:
        self.names = Names(places=())
        self.store = Stored({self.names.secret(name): {"metadata": {}} for name in ("ca", "tls")})
        self.seconds = 0.0
        self.url = ""
        controller = Controller(
            self.store, self.names, lambda: dt.datetime.now(dt.UTC), lambda: self.seconds, turn_seconds=0.01
        )
        self.turns = Turns(controller, lambda: self.seconds)

    def get(self, path: str) -> tuple[int, str]:
        answer = httpx.get(self.url + path, verify=False, trust_env=False, timeout=5)
        return answer.status_code, answer.json().get("why", "")


@contextmanager
def probed(turning: bool = True) -> Iterator[ProbedController]:
    """Answer probes while the certificate controller takes its turns."""
    probed_controller, port = ProbedController(), free_port()
    probed_controller.url = f"http://127.0.0.1:{port}"
    with serve_probes(port, probed_controller.turns.probes):
        if not turning:
            yield probed_controller
            return
        with start_blocking_portal() as loop:
            stop = loop.call(make_stop)
            turns = loop.start_task_soon(probed_controller.turns.run, stop)
            yield probed_controller
            loop.call(stop.set)
            turns.result(SECONDS)


async def make_stop() -> asyncio.Event:
    return asyncio.Event()


def test_controller_is_ready_after_a_turn_that_succeeded() -> None:
    """F110: before its first turn the Secrets are empty, and a rollout must not go on."""
    with probed(turning=False) as probed_controller:
        assert probed_controller.get("/readyz") == (503, "no run has completed yet")
        assert probed_controller.get("/livez") == (200, "")
    with probed() as probed_controller:
        wait_until("it is ready", lambda: probed_controller.get("/readyz") == (200, ""), SECONDS)

        assert probed_controller.store.objects[probed_controller.names.secret("tls")]["data"]["tls.crt"]


def test_controller_that_lacks_an_object_is_not_ready_and_lives() -> None:
    """F110: a restart would not bring the Secret back."""
    with probed() as probed_controller:
        wait_until("it is ready", lambda: probed_controller.get("/readyz") == (200, ""), SECONDS)
        gone = probed_controller.store.objects.pop(probed_controller.names.secret("ca"))

        wait_until("it is not", lambda: probed_controller.get("/readyz")[0] == 503, SECONDS)

        assert "gpu-usher-ca: not there" in probed_controller.get("/readyz")[1]
        assert probed_controller.get("/livez")[0] == 200
        probed_controller.store.objects[probed_controller.names.secret("ca")] = gone
        wait_until("it is ready again", lambda: probed_controller.get("/readyz") == (200, ""), SECONDS)


def test_controller_whose_turn_does_not_end_is_dead() -> None:
    """F110: a hung turn is the one fault that a restart repairs."""
    with probed(turning=False) as probed_controller:
        probed_controller.seconds = 179.0
        assert probed_controller.get("/livez")[0] == 200
        probed_controller.seconds = 181.0

        assert probed_controller.get("/livez") == (503, "no run has completed for 181 s")


def test_callers_that_say_nothing_keep_no_probe_from_its_answer() -> None:
    """F110: anybody who reaches the pod can connect, and must not be able to cause a restart."""
    with probed(turning=False) as probed_controller, ExitStack() as silent:
        host, _, port = probed_controller.url.removeprefix("http://").partition(":")
        for _ in range(100):
            silent.enter_context(socket.create_connection((host, int(port))))

        assert probed_controller.get("/livez") == (200, "")
        assert probed_controller.get("/other")[0] == 404
