# SPDX-License-Identifier: Apache-2.0
"""What waits in the buffers of a connection, ours and the kernel's: answers not taken by the peer, and unread input."""

import asyncio
import contextlib
import fcntl
import select
import socket
import struct
import termios

ACKNOWLEDGED = 120
"""Offset of tcpi_bytes_acked in Linux's struct tcp_info, 64 bits (linux/tcp.h)."""


SEND_BUFFER = 64 << 10
"""Bytes of one connection that the kernel takes; Linux doubles the number for its own overhead. It would take up to
4 MiB (net.ipv4.tcp_wmem), also for a peer that reads nothing (docs/reference/listeners.md#connection-limits)."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends a reset, and the kernel drops what is not sent yet (socket(7))."""


def abort(transport: asyncio.Transport) -> None:
    """Close at once.

    Where the peer has not taken all bytes, reset the connection: otherwise the kernel keeps them for another one or two
    minutes, in memory that counts as ours.
    """
    if unacknowledged_bytes(transport):
        with contextlib.suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Count the bytes written that the peer has not acknowledged; only our own buffers where the kernel cannot tell."""
    return transport.get_write_buffer_size() + _bytes_in_kernel(transport.get_extra_info("socket"))


def acknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return a number that grows when the peer takes bytes: those acknowledged, or else minus those not yet taken."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError, struct.error):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKNOWLEDGED + 8)
        return int(struct.unpack_from("=Q", info, ACKNOWLEDGED)[0])
    return -unacknowledged_bytes(transport)


def _bytes_in_kernel(sock: socket.socket | None) -> int:
    """Read SIOCOUTQ of the socket, which equals TIOCOUTQ (tcp(7)); 0 where that is not supported."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sock is not None:
            return int(struct.unpack("=i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    return 0


def input_waits(sock: socket.socket | None) -> bool:
    """Tell whether the kernel holds bytes from the peer that the loop has not read yet."""
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return any(events == select.POLLIN for _, events in poll.poll(0))  # POLLHUP or POLLERR: the peer has closed
