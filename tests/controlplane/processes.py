# SPDX-License-Identifier: Apache-2.0
"""Child processes of the tests: started with a log of their own, waited for within bounds, stopped by pid."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

STOP_SECONDS = 20
POLL_SECONDS = 0.05


class Process:
    """One running program; `log` holds its output, unless that goes to a descriptor, `output`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        output: int | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._output = log.open("ab")
        self._child = subprocess.Popen(
            command,
            stdout=self._output if output is None else output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._child.poll() is None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait, kill the process if it does not end, and return the exit code."""
        if self.running:
            self._child.send_signal(number)
        try:
            code = self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait(STOP_SECONDS)
        self._output.close()
        return code

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of its output."""
        text = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(text[-lines:])

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Find a port on loopback that is free, and that no process of the tests returned before.

    It lies below the ports that the kernel gives to connections (32768 and up, ip(7), ip_local_port_range): one of
    those may belong to a client by the time a server is started on it.
    """
    for port in _PORTS:
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free below the kernel's own")


def own_ports() -> Iterator[int]:
    """Yield ports block by block, each block for this process alone, until it ends.

    A port is free until its server has started, and for so long another process could find it too. A block is taken by
    an abstract socket (unix(7)), which is bound by one process of a network namespace at a time.
    """
    for first in Random().sample(BLOCKS, len(BLOCKS)):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0gpu-usher-tests-ports-{first}")
        except OSError:
            lock.close()
            continue
        lock.detach()  # stays open until the process ends
        yield from Random().sample(range(first, first + BLOCK), BLOCK)


BLOCK = 500
"""Ports of one block: those of some fifty control planes, and 45 blocks for all processes of the tests."""
BLOCKS = range(10_000, 32_768 - BLOCK, BLOCK)
_PORTS = own_ports()


def wait_until(what: str, true: Callable[[], object], seconds: float, process: Process | None = None) -> None:
    """Wait until a condition is true; an exception of a connection counts as false.

    Raises AssertionError with the name of the condition and the last output of the process.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ConnectionError):
            if true():
                return
        if process is not None and not process.running:
            break
        time.sleep(POLL_SECONDS)
    words = f"\n{process.name}:\n{process.tail()}" if process is not None else ""
    raise AssertionError(f"not within {seconds:g} s: {what}{words}")
