# SPDX-License-Identifier: Apache-2.0
"""What an attack is: a name, and a function that sends to the ports of one replica until its time is over."""

import contextlib
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CONNECT_SECONDS = 2.0
"""Bound on a connection attempt of an attacker; a refused attempt is repeated."""
PAUSE_SECONDS = 0.01
"""Between two turns of an attacker over its sockets, so that the attacker itself does not need a whole CPU core."""
DESCRIPTORS = 8192
"""Descriptors that an attacker's process asks for, at most what the hard limit gives."""


@dataclass(frozen=True, slots=True)
class Target:
    """The replica under attack. `end`: the monotonic second at which the attack stops."""

    tls: int
    ops: int
    ca: Path
    end: float

    @property
    def over(self) -> bool:
        """Tell whether the attack's time is over."""
        return time.monotonic() >= self.end

    def turns(self) -> Iterator[None]:
        """Yield once per turn until the time is over, with a short pause between two turns."""
        while not self.over:
            yield
            time.sleep(PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. `what`: the words for the table. `run` returns when the target's time is over."""

    name: str
    what: str
    run: Callable[[Target], None]


def raise_descriptor_limit() -> None:
    """Let this process open as many sockets as an attack needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, DESCRIPTORS)), hard))


def open_plain(port: int) -> socket.socket | None:
    """Open a TCP connection; None where the replica does not accept it in time."""
    with contextlib.suppress(OSError):
        return socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS)
    return None


def open_tls(target: Target) -> socket.socket | None:
    """Open a TLS connection to the webhook port; None where it does not come about in time."""
    plain = open_plain(target.tls)
    if plain is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(target.ca)).wrap_socket(plain, server_hostname="localhost")
    except OSError:
        plain.close()
        return None


def send_some(sock: socket.socket, data: bytes) -> bool:
    """Send what the socket takes without waiting; False where the connection is at its end."""
    sock.setblocking(False)
    try:
        sock.send(data)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return True
    except (OSError, ValueError):
        return False
    return True


def receive_some(sock: socket.socket) -> bool:
    """Read what has arrived without waiting; False where the peer closed the connection."""
    sock.setblocking(False)
    try:
        return bool(sock.recv(1 << 18))
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return True
    except (OSError, ValueError):
        return False


def receive_all(sock: socket.socket) -> bool:
    """Read all that has arrived without waiting; False where the peer closed the connection."""
    sock.setblocking(False)
    try:
        while sock.recv(1 << 18):
            pass
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return True
    except (OSError, ValueError):
        pass
    return False


class Crowd:
    """Connections that an attacker keeps open; each one that is closed is opened again in the next turn."""

    def __init__(self, count: int, connect: Callable[[], socket.socket | None]) -> None:
        self._count, self._connect = count, connect
        self._socks: list[socket.socket] = []

    def refill(self, most: int = 50) -> list[socket.socket]:
        """Open missing connections, at most `most` per call, and return the new ones."""
        new = []
        for _ in range(min(most, self._count - len(self._socks))):
            sock = self._connect()
            if sock is None:
                break
            new.append(sock)
        self._socks += new
        return new

    def for_each(self, act: Callable[[socket.socket], bool]) -> None:
        """Act on each connection; those for which `act` is False are closed."""
        alive = []
        for sock in self._socks:
            if act(sock):
                alive.append(sock)
            else:
                sock.close()
        self._socks = alive

    def close(self) -> None:
        """Close all connections."""
        for sock in self._socks:
            sock.close()
        self._socks = []
