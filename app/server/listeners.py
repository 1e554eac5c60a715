# SPDX-License-Identifier: Apache-2.0
"""Running the listeners: sockets bound first, one event loop, one heartbeat, one way to stop."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from starlette.types import ASGIApp

from app.api.app import create_tls_app
from app.api.client_certificates import OnlyKnownClients
from app.api.decision_recorder import open_recorder
from app.api.operations_routes import create_ops_app
from app.api.recent_decisions import RecentDecisions
from app.cluster.policy_watch import LoadOutcome
from app.server.aside import asking, making_way, serve_aside
from app.server.certificate_renewal import TURN_SECONDS, CertificateRenewal
from app.server.connections import Connections
from app.server.limits import Limits
from app.server.listener import GRACE_SECONDS, BoundedServer, make_server
from app.server.service import Service
from app.server.signals import stopping_on_signals
from app.server.watchdog import watching
from app.telemetry.clock import now
from app.telemetry.logs import event, lost_lines
from app.values.errors import BadInput
from app.web.api import create_people_app
from app.web.routes import WebPages

HUNG_SECONDS = 5
"""Beyond drain and grace, after which the process ends however its loop stands; guess."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the three listeners listen; `people` is None where it is off."""

    tls: tuple[str, int]
    ops: tuple[str, int]
    people: tuple[str, int] | None


class Listeners:
    """The bound sockets and the servers on them."""

    def __init__(self, service: Service, limits: Limits = Limits()) -> None:  # noqa: B008  # frozen
        self._service = service
        self._limits = limits
        self._metrics = service.metrics
        self._metrics.policies_loaded(service.policies, None)
        self._stop = asyncio.Event()
        settings = service.settings
        self._recorder = open_recorder(settings.decision_log)
        self._tls = bind(settings.host, settings.port, "--port")
        self._ops = bind(settings.ops_host, settings.ops_port, "--ops-port")
        self._people = (
            None if settings.ui_address == "off" else bind(*split_address(settings.ui_address), "--ui-address")
        )

        self._tail = RecentDecisions() if self._people is not None else None
        self._page = WebPages(service, self._tail) if self._people is not None else None

    @property
    def addresses(self) -> Addresses:
        """Say where the listeners are, with the ports really taken."""
        people = self._people.getsockname()[:2] if self._people else None
        return Addresses(self._tls.getsockname()[:2], self._ops.getsockname()[:2], people)

    def stop(self) -> None:
        """Ask `run` to finish: /readyz says 503 from here on."""
        self._service.draining = True
        self._stop.set()

    async def run(self) -> None:
        """Serve until a signal or `stop`."""
        loop = asyncio.get_running_loop()
        patience = self._service.settings.draining_seconds + GRACE_SECONDS + HUNG_SECONDS
        stop = partial(loop.call_soon_threadsafe, self.stop)
        with stopping_on_signals(stop, patience), watching(self._metrics.loop_blocked.inc):
            await self._serve()

    async def _serve(self) -> None:
        ops, *others = servers = list(self._servers())
        async with asyncio.TaskGroup() as tasks:
            serving = [tasks.create_task(server.serve()) for server in others]
            serving.append(tasks.create_task(serve_aside(ops, "operations")))
            loops = [self._beat(), self._renew_certificate(), self._service.book.follow(self._heard)]
            if self._service.cluster is not None:
                loops.append(self._service.cluster.run())
            if self._service.gpu_health is not None:
                loops.append(self._service.gpu_health.run())
            if self._page is not None:
                loops.append(self._page.run())
            if self._service.slipped is not None:
                loops.append(self._service.slipped.run())
            background = [tasks.create_task(each) for each in loops]
            await self._stop.wait()
            for server in servers:
                server.last_answers()
            await asyncio.sleep(self._service.settings.draining_seconds)  # callers learn from /readyz and go elsewhere
            for server in servers:
                server.should_exit = True
            await asyncio.wait(serving)
            for task in background:
                task.cancel()
        if self._recorder is not None:
            self._recorder.stop()

    def _shared(self) -> Connections:
        """Make what the connections of a listener share."""
        service, metrics = self._service, self._metrics
        return Connections(
            self._limits,
            draining=lambda: service.draining,
            shed=metrics.shed_requests.inc,
            closed=lambda why: metrics.closed_connections.labels(why).inc(),
        )

    def _servers(self) -> Iterator[BoundedServer]:
        """Make the servers, that of operations first."""
        service, metrics, settings = self._service, self._metrics, self._service.settings
        ops_app = create_ops_app(service, metrics, asking(asyncio.get_running_loop()))
        yield make_server(making_way(ops_app), self._ops, shared=self._shared())
        tls_app: ASGIApp = create_tls_app(
            service, metrics, settings.role, recorder=self._recorder, tracing=service.tracing, tail=self._tail
        )
        if settings.client_ca is not None:
            allowed = frozenset(settings.client_subjects)
            everywhere, trusts = settings.require_webhook_client_cert, service.certificates.trusts
            tls_app = OnlyKnownClients(tls_app, allowed, everywhere, trusts)
        yield make_server(tls_app, self._tls, service.certificates.context, self._shared())
        if self._people is not None:
            yield make_server(create_people_app(service, self._page), self._people, shared=self._shared())

    async def _beat(self) -> None:
        while True:
            self._service.beat = asyncio.get_running_loop().time()
            self._metrics.nodes.set(len(self._service.nodes))
            self._metrics.generation.set(self._service.generation)
            unrecorded = {"unrecorded": self._recorder.unrecorded} if self._recorder else {}
            self._metrics.lines_lost(lost_lines() | unrecorded)
            self._service.expire_promises()
            self._metrics.vram_overrun_nodes.set(len(self._service.state.overrun))
            if self._service.cluster is not None:
                self._service.cluster.measure()
            if self._service.gpu_health is not None:
                self._service.gpu_health.measure()
            if self._service.book.turn_page():
                event("policies of a new day", hash=self._service.policies.hash[:12])
            self._metrics.expired_exceptions.set(len(self._service.book.expired_exceptions()))
            await asyncio.sleep(1.0)

    def _heard(self, taken: LoadOutcome) -> None:
        """Say what became of an edit of the policies: log, metric; /readyz and /statusz show it too."""
        self._metrics.policies_loaded(self._service.policies, taken.error)
        if taken.error:
            for line in taken.error.splitlines():
                event("policy edit not taken, the last good set stays", 40, error=line)
        else:
            event("policies loaded", policies=taken.policies, hash=taken.hash[:12])

    async def _renew_certificate(self) -> None:
        renewal = CertificateRenewal(self._service)
        while True:
            renewal.turn(now())
            await asyncio.sleep(TURN_SECONDS)


def bind(host: str, port: int, flag: str) -> socket.socket:
    """Open a listening socket.

    Raises BadInput naming the flag to change.
    """
    sock: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen()  # from here on callers wait instead of being refused
    except (OSError, OverflowError) as error:
        if sock is not None:
            sock.close()
        why = error.strerror if isinstance(error, OSError) else "no such port"
        raise BadInput(f"{host}:{port}: {why}: choose another with {flag}") from error
    return sock


def split_address(address: str) -> tuple[str, int]:
    """Read `127.0.0.1:8081` or `[::1]:8081`.

    Raises BadInput.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise BadInput(f"--ui-address: got {address[:60]!r}, wants host:port or off")
    return host.strip("[]"), int(port)
