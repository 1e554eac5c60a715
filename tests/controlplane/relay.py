# SPDX-License-Identifier: Apache-2.0
"""A TCP relay on loopback that can be cut: a network between two programs, which fails when a test wants it to."""

import contextlib
import socket
import threading

BLOCK_BYTES = 1 << 16


class Relay:
    """Forwards connections to a port until it is cut; clients connect to `port` instead."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._lock:
            self._whole = False
            for pair in self._pairs:
                _close(*pair)
            self._pairs.clear()

    def mend(self) -> None:
        """Forward connections again."""
        with self._lock:
            self._whole = True

    def close(self) -> None:
        """Close the relay."""
        self.cut()
        _close(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._join(near)

    def _join(self, near: socket.socket) -> None:
        with self._lock:
            if not self._whole:
                _close(near)
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                _close(near)
                return
            far.settimeout(None)
            self._pairs.append((near, far))
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(BLOCK_BYTES):
            sink.sendall(data)
    _close(source, sink)


def _close(*sockets: socket.socket) -> None:
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
