# SPDX-License-Identifier: Apache-2.0
"""A real HAProxy in place of a Service: the one on PATH, or Debian's package, unpacked here (`make haproxy`).

It forwards TCP to the replicas whose /readyz answers 200, with a delay as EndpointSlices have it.
"""

import contextlib
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.controlplane.processes import Process, free_port, wait_until
from tests.debian import DebianProgram, fetching

HAPROXY = DebianProgram(
    "haproxy",
    ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1", "libpcre2-8-0"),
    "usr/sbin/haproxy",
    ("haproxy",),
)
"""HAProxy, and its dependencies that a minimal Debian 12 lacks."""

START_SECONDS = 30
CHECK_MILLISECONDS = 750
FALLS = 2
"""Two failed checks: 1.5 s pass before callers are sent elsewhere, the lag of endpoints in
docs/reference/measurements.md#termination."""


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
    libraries = sorted({str(library.parent) for library in HAPROXY.folder.glob("usr/lib/*/*.so*")})
    process = Process(
        "haproxy",
        [str(program), "-db", "-f", str(config)],
        folder / "haproxy.log",
        {"LD_LIBRARY_PATH": ":".join(libraries)} if program == HAPROXY.program else None,
    )
    try:
        wait_until("it listens", lambda: _listens(port), START_SECONDS, process)
        yield port
    finally:
        process.stop()


if __name__ == "__main__":
    sys.exit(fetching("haproxy", HAPROXY.fetch, sys.argv[1:]))
