# SPDX-License-Identifier: Apache-2.0
"""A real HAProxy in place of a Service: the one on PATH, or Debian's package, unpacked here (`make haproxy`).

It forwards TCP to the replicas whose /readyz answers 200, with a delay as EndpointSlices have it.
"""

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.controlplane.binaries import BUILT
from tests.controlplane.processes import Process, free_port, wait_until
from tests.debian import fetching, unpack

VARIABLE = "GPU_USHER_HAPROXY"
UNPACKED = BUILT / "haproxy"
PROGRAM = UNPACKED / "usr" / "sbin" / "haproxy"
PACKAGES = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1", "libpcre2-8-0")
"""HAProxy, and its dependencies that a minimal Debian 12 lacks."""
START_SECONDS = 30
CHECK_MILLISECONDS = 750
FALLS = 2
"""Two failed checks: 1.5 s pass before callers are sent elsewhere, the lag of endpoints in
docs/reference/measurements.md#termination."""
REMEDY = f"run `make haproxy` (needs apt-get), or set {VARIABLE} to a program"


def find_haproxy() -> Path | str:
    """Find the program; a str gives the cause why there is none, and the remedy."""
    if named := os.environ.get(VARIABLE):
        return Path(named) if os.access(named, os.X_OK) else f"{VARIABLE}={named}: no program"
    if path := shutil.which("haproxy"):
        return Path(path)
    return PROGRAM if PROGRAM.is_file() else f"no haproxy: {REMEDY}"


def fetch() -> Path:
    """Download Debian's package and unpack it, unless there is a program already.

    Raises SystemExit with apt's output.
    """
    program = find_haproxy()
    if isinstance(program, Path):
        return program
    unpack("haproxy", PACKAGES, UNPACKED)
    return PROGRAM


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True


@contextlib.contextmanager
def haproxy(program: Path, folder: Path, replicas: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Run HAProxy before replicas on loopback, given as (TLS port, operations port), and yield its own port.

    It neither retries nor redispatches: a request that a replica refuses is lost, so that the test sees it.
    """
    port = free_port()
    check = f"check inter {CHECK_MILLISECONDS}ms fastinter {CHECK_MILLISECONDS}ms fall {FALLS} rise 1"
    servers = "".join(
        f"    server replica{number} 127.0.0.1:{tls} {check} port {ops}\n" for number, (tls, ops) in enumerate(replicas)
    )
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n    maxconn 2000\n"
        "defaults\n    mode tcp\n    retries 0\n    timeout connect 2s\n    timeout client 120s\n"
        "    timeout server 120s\n    timeout check 2s\n"
        f"listen service\n    bind 127.0.0.1:{port}\n    balance roundrobin\n    option httpchk\n"
        "    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost\n"
        f"    http-check expect status 200\n{servers}",
        "utf-8",
    )
    libraries = sorted({str(library.parent) for library in UNPACKED.glob("usr/lib/*/*.so*")})
    process = Process(
        "haproxy",
        [str(program), "-db", "-f", str(config)],
        folder / "haproxy.log",
        {"LD_LIBRARY_PATH": ":".join(libraries)} if program == PROGRAM else None,
    )
    try:
        wait_until("it listens", lambda: _listens(port), START_SECONDS, process)
        yield port
    finally:
        process.stop()


if __name__ == "__main__":
    sys.exit(fetching("haproxy", fetch, sys.argv[1:]))
