# SPDX-License-Identifier: Apache-2.0
"""Binds the sockets of the listeners, runs their servers and the background tasks, and stops them in order."""

import asyncio
import logging
import socket
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from app.api.allowed_callers import RequireClientCertificate, is_loopback
from app.api.app import create_tls_app
from app.api.decision_line import RecentDecisions
from app.api.decision_recorder import open_recorder
from app.api.explain_api import ExplainAPI
from app.api.operations_routes import create_ops_app
from app.cluster.policy_watch import LoadOutcome
from app.server.limits import Limits
from app.server.listener import (
    GRACE_SECONDS,
    BoundedServer,
    call_on_loop,
    make_server,
    serve_in_thread,
    yield_to_main_loop,
)
from app.server.process import stop_on_signals, watch_event_loop
from app.server.protocol import Connections
from app.server.service import CHECK_SECONDS, CertificateRenewal, Service
from app.settings import Role
from app.telemetry.logs import event, lost_lines, now
from app.values.errors import BadInput
from app.web.api import create_web_app
from app.web.routes import WebPages, run_for_ever

OPEN_PAGE = "the web page has no authentication: anyone who reaches this address sees all GPU pods and nodes"
"""The warning at start where --ui-address is not on loopback."""
LAST_PORT = 65_535
"""The highest port of TCP, which has 16 bits (RFC 9293)."""
HUNG_SECONDS = 5
"""After drain and grace periods, the process is ended even if its event loop hangs; a guess."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Host and port of the listeners; `web`, `scheduler` and `explain` are None if they are off."""

    tls: tuple[str, int]
    ops: tuple[str, int]
    web: tuple[str, int] | None
    scheduler: tuple[str, int] | None = None
    explain: tuple[str, int] | None = None


class Listeners:
    """The bound sockets and the servers on them."""

    def __init__(self, service: Service, limits: Limits = Limits()) -> None:  # noqa: B008  # frozen
        self._service = service
        self._limits = limits
        self._metrics = service.metrics
        self._metrics.policies_loaded(service.policies, service.policy_error)
        self._stop = asyncio.Event()
        settings = service.settings
        self._recorder = open_recorder(settings.decision_log)
        self._scheduler = bind_beside_scheduler(settings.scheduler_address)
        self._tls = bind(settings.host, settings.port, "--port")
        self._ops = bind(settings.ops_host, settings.ops_port, "--ops-port")
        self._explain = bind_unless_off(settings.explain_address, "--explain-address")
        self._web = bind_unless_off(settings.ui_address, "--ui-address")
        if self._web is not None and not is_loopback(self._web.getsockname()[0]):
            event(OPEN_PAGE, logging.WARNING, address=settings.ui_address)
        self._recent_decisions = RecentDecisions() if self._web is not None else None
        reasons = service.events.reasons if service.events is not None else None
        self._pages = WebPages(service, self._recent_decisions, reasons) if self._web is not None else None

    @property
    def addresses(self) -> Addresses:
        """Return the addresses of the listeners, with the ports that the kernel chose."""
        off = (self._web, self._scheduler, self._explain)
        web, scheduler, explain = (sock.getsockname()[:2] if sock else None for sock in off)
        return Addresses(self._tls.getsockname()[:2], self._ops.getsockname()[:2], web, scheduler, explain)

    def stop(self) -> None:
        """Make `run` finish; from now on /readyz answers 503."""
        self._service.draining = True
        self._stop.set()

    async def run(self) -> None:
        """Serve until a signal or `stop`."""
        loop = asyncio.get_running_loop()
        patience = self._service.settings.draining_seconds + GRACE_SECONDS + HUNG_SECONDS
        stop = partial(loop.call_soon_threadsafe, self.stop)
        with stop_on_signals(stop, patience), watch_event_loop(self._metrics.loop_blocked.inc):
            await self._serve()

    async def _serve(self) -> None:
        if self._service.book.error:
            self._report_policy_error(self._service.book.error)
        ops, *others = servers = list(self._servers())
        async with asyncio.TaskGroup() as tasks:
            serving = [tasks.create_task(server.serve()) for server in others]
            serving.append(tasks.create_task(serve_in_thread(ops, "operations")))
            coroutines: list[Coroutine[Any, Any, None]] = [
                self._heartbeat(),
                self._renew_certificate(),
                self._service.book.follow(self._report_policies),
            ]
            service = self._service
            optional = (service.cluster, service.gpu_health, self._pages, service.slipped)
            coroutines += [part.run() for part in optional if part is not None]
            coroutines += [run_for_ever(service.usage.run), *self._event_tasks()]
            coroutines += [run_for_ever(service.images.run)] if service.images is not None else []
            background = [tasks.create_task(coroutine) for coroutine in coroutines]
            await self._stop.wait()
            await asyncio.sleep(
                self._service.settings.draining_seconds
            )  # callers see /readyz fail and use another replica
            for server in servers:
                server.should_exit = True
            await asyncio.wait(serving)
            for task in background:
                task.cancel()
        if self._recorder is not None:
            self._recorder.stop()

    def _event_tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        """List the tasks of the process that writes Events; where there is no page, also the one for reasons."""
        yield from map(run_for_ever, self._service.event_tasks)
        if self._pages is None and self._service.events is not None:
            yield run_for_ever(self._service.events.reasons.run)

    def _connections(self) -> Connections:
        service, metrics = self._service, self._metrics
        return Connections(
            self._limits,
            draining=lambda: service.draining,
            on_shed=metrics.shed_requests.inc,
            on_closed=lambda reason: metrics.closed_connections.labels(reason).inc(),
        )

    def _servers(self) -> Iterator[BoundedServer]:
        """Make the servers, the one of the operations listener first."""
        service, metrics, settings = self._service, self._metrics, self._service.settings
        ops_app = create_ops_app(service, metrics, call_on_loop(asyncio.get_running_loop()))
        yield make_server(yield_to_main_loop(ops_app), self._ops, shared=self._connections())
        tls_app: ASGIApp = self._webhooks(settings.role)
        if settings.client_ca is not None:
            allowed = frozenset(settings.client_subjects)
            everywhere, trusts = settings.require_webhook_client_cert, service.certificates.trusts
            tls_app = RequireClientCertificate(tls_app, allowed, everywhere, trusts)
        yield make_server(tls_app, self._tls, service.certificates.context, self._connections())
        if self._scheduler is not None:
            yield make_server(self._webhooks("extender"), self._scheduler, shared=self._connections())
        trust = service.front_proxy
        if self._explain is not None and trust is not None:
            app = ExplainAPI(service, trust.problem_of, lambda: trust.proxy.user_headers if trust.proxy else ())
            yield make_server(app, self._explain, trust.context, self._connections())
        if self._web is not None:
            yield make_server(create_web_app(service, self._pages), self._web, shared=self._connections())

    def _webhooks(self, role: Role) -> FastAPI:
        """Make the application that answers the API server, the scheduler or both."""
        return create_tls_app(
            self._service,
            self._metrics,
            role,
            recorder=self._recorder,
            tracing=self._service.tracing,
            recent=self._recent_decisions,
        )

    async def _heartbeat(self) -> None:
        while True:
            self._service.beat = asyncio.get_running_loop().time()
            self._metrics.nodes.set(len(self._service.nodes))
            self._metrics.generation.set(self._service.state.changes.generation)
            counts = self._service.state.devices.dra.counts
            self._metrics.devices_counted(counts.devices, counts.pools)
            unrecorded = {"unrecorded": self._recorder.unrecorded} if self._recorder else {}
            self._metrics.lines_lost(lost_lines() | unrecorded)
            self._service.expire_promises()
            self._metrics.vram_overrun_nodes.set(len(self._service.state.overrun))
            reported = sum(1 for node in self._service.nodes.values() if node.conditions and node.has_gpus)
            self._metrics.health_nodes.labels("condition").set(reported)
            silent = sum(1 for node in self._service.nodes.values() if node.not_ready and node.has_gpus)
            self._metrics.health_nodes.labels("not_ready").set(silent)
            if self._service.cluster is not None:
                self._service.cluster.measure()
            if self._service.gpu_health is not None:
                self._service.gpu_health.measure()
            if self._service.images is not None:
                self._service.images.measure()
            self._service.usage.measure()
            if self._service.book.apply_new_day():
                event("policies changed with the date", hash=self._service.policies.hash[:12])
            self._metrics.policy_error.set(1 if self._service.policy_error else 0)
            self._metrics.expired_exceptions.set(len(self._service.book.expired_exceptions()))
            await asyncio.sleep(1.0)

    def _report_policies(self, outcome: LoadOutcome) -> None:
        """Log and count whether an edit of the policies was loaded; /readyz and /statusz show it too."""
        self._metrics.policies_loaded(self._service.policies, outcome.error)
        if outcome.error:
            self._report_policy_error(outcome.error)
        else:
            event("policies loaded", policies=outcome.policies, hash=outcome.hash[:12])

    def _report_policy_error(self, error: str) -> None:
        for line in error.splitlines():
            event("policies not taken as written", 40, serving=self._service.book.serving, error=line)

    async def _renew_certificate(self) -> None:
        renewal = CertificateRenewal(self._service)
        while True:
            renewal.check(now())
            await asyncio.sleep(CHECK_SECONDS)


def bind(host: str, port: int, flag: str) -> socket.socket:
    """Open a listening socket; `flag` is the command line flag that sets its address.

    Raises BadInput with the name of the flag.
    """
    if not 0 <= port <= LAST_PORT:  # getaddrinfo would take it modulo 65,536
        raise BadInput(f"{host}:{port}: no such port: choose another with {flag}")
    sock: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen()  # from here on the kernel queues callers instead of refusing them
    except OSError as error:
        if sock is not None:
            sock.close()
        raise BadInput(f"{host}:{port}: {error.strerror}: choose another with {flag}") from error
    return sock


def bind_unless_off(address: str, flag: str) -> socket.socket | None:
    """Open a listening socket on an address such as `127.0.0.1:8081`; None for `off`. Raises BadInput."""
    return None if address == "off" else bind(*split_address(address, flag), flag)


def bind_beside_scheduler(address: str) -> socket.socket | None:
    """Open the listening socket for a scheduler in the same pod, on a loopback address; None for `off`.

    Raises BadInput.
    """
    flag = "--scheduler-address"
    sock = bind_unless_off(address, flag)
    if sock is not None and not is_loopback(sock.getsockname()[0]):
        sock.close()
        raise BadInput(f"{flag}: got {address[:60]}, wants a loopback address such as 127.0.0.1:8444")
    return sock


def split_address(address: str, flag: str) -> tuple[str, int]:
    """Read `127.0.0.1:8081` or `[::1]:8081`, the value of a flag.

    Raises BadInput.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise BadInput(f"{flag}: got {address[:60]!r}, wants host:port or off")
    return host.strip("[]"), int(port)
