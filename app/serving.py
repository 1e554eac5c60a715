# SPDX-License-Identifier: Apache-2.0
"""Running the listeners: sockets bound first, one event loop, one heartbeat, one way to stop."""

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from app.api.app import create_tls_app
from app.api.hosts import OnlyHosts, loopback
from app.api.ops import create_ops_app
from app.api.people import create_people_app
from app.certificates import issue_if_needed
from app.cluster.policies import Taken
from app.errors import BadInput, CertificateError
from app.logs import event
from app.service import Usher, now

KEEP_ALIVE_SECONDS = 90
"""Longer than the callers' idle connections live, so that they close them, not we (HA-04)."""
GRACE_SECONDS = 10
"""For requests in flight at shutdown; without it one silent TLS client delays the exit by 30 s (HA-04)."""
CERTIFICATE_CHECK_SECONDS = 60.0
"""TLS-03: polled by wall clock."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the three listeners listen; `people` is None where it is off."""

    tls: tuple[str, int]
    ops: tuple[str, int]
    people: tuple[str, int] | None


class QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to us: three of them share one process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listeners:
    """The bound sockets and the servers on them."""

    def __init__(self, usher: Usher) -> None:
        self._usher = usher
        self._metrics = usher.metrics
        self._metrics.policies_loaded(usher.policies, None)
        self._stop = asyncio.Event()
        settings = usher.settings
        self._tls = bind(settings.host, settings.port, "--port")
        self._ops = bind(settings.ops_host, settings.ops_port, "--ops-port")
        self._people = (
            None if settings.ui_address == "off" else bind(*split_address(settings.ui_address), "--ui-address")
        )

    @property
    def addresses(self) -> Addresses:
        """Say where the listeners are, with the ports really taken."""
        people = self._people.getsockname()[:2] if self._people else None
        return Addresses(self._tls.getsockname()[:2], self._ops.getsockname()[:2], people)

    def stop(self) -> None:
        """Ask `run` to finish."""
        self._usher.draining = True
        self._stop.set()

    async def run(self) -> None:
        """Serve until a signal or `stop`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: the tests
                loop.add_signal_handler(number, self.stop)
        servers = [(QuietServer(config), [sock]) for config, sock in self._configs()]
        async with asyncio.TaskGroup() as tasks:
            for server, sockets in servers:
                tasks.create_task(server.serve(sockets))
            loops = [self._beat(), self._renew_certificate(), self._usher.book.follow(self._heard)]
            if self._usher.cluster is not None:
                loops.append(self._usher.cluster.run())
            if self._usher.gpu_health is not None:
                loops.append(self._usher.gpu_health.run())
            background = [tasks.create_task(each) for each in loops]
            await self._stop.wait()
            for task in background:
                task.cancel()
            for server, _ in servers:
                server.should_exit = True

    def _configs(self) -> Iterator[tuple[uvicorn.Config, socket.socket]]:
        usher = self._usher
        tls_app = create_tls_app(usher, self._metrics, usher.settings.role)
        yield uvicorn_config(tls_app, self._tls, usher.certificates.context), self._tls
        yield uvicorn_config(create_ops_app(usher, self._metrics), self._ops), self._ops
        if self._people is not None:
            yield uvicorn_config(create_people_app(usher), self._people), self._people

    async def _beat(self) -> None:
        while True:
            self._usher.beat = asyncio.get_running_loop().time()
            self._metrics.nodes.set(len(self._usher.nodes))
            self._usher.expire_promises()
            self._metrics.vram_overrun_nodes.set(len(self._usher.state.overrun))
            if self._usher.cluster is not None:
                self._usher.cluster.measure()
            if self._usher.gpu_health is not None:
                self._usher.gpu_health.measure()
            if self._usher.book.turn_page():
                event("policies of a new day", hash=self._usher.policies.hash[:12])
            self._metrics.expired_exceptions.set(len(self._usher.book.expired()))
            await asyncio.sleep(1.0)

    def _heard(self, taken: Taken) -> None:
        """Say what became of an edit of the policies: log, metric; /readyz and /statusz show it too."""
        self._metrics.policies_loaded(self._usher.policies, taken.error)
        if taken.error:
            for line in taken.error.splitlines():
                event("policy edit not taken, the last good set stays", 40, error=line)
        else:
            event("policies loaded", policies=taken.policies, hash=taken.hash[:12])

    async def _renew_certificate(self) -> None:
        """Make a new certificate where ours grows old; take changed files into service, a bad pair never."""
        usher = self._usher
        while True:
            try:
                if usher.settings.own_certificate is None:
                    issue_if_needed(usher.settings.certs, now())
                if usher.certificates.renew(now()):
                    event("certificate renewed", expires=usher.certificates.serving.expires.isoformat())
            except (CertificateError, OSError) as error:
                event("certificate not renewed", 40, error=str(error))
            self._metrics.certificate_expiry.set(usher.certificates.serving.expires.timestamp())
            await asyncio.sleep(CERTIFICATE_CHECK_SECONDS)


def uvicorn_config(app: ASGIApp, sock: socket.socket, context: ssl.SSLContext | None = None) -> uvicorn.Config:
    """Configure one listener; `context` makes it speak TLS."""
    return uvicorn.Config(
        OnlyHosts(app) if loopback(sock.getsockname()[0]) else app,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=(lambda _config, _default: context) if context else None,
    )


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
