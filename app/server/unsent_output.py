# SPDX-License-Identifier: Apache-2.0
"""What of our answers the peer has not taken: in our buffers, and in the kernel's, where most answers fit whole."""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios

ACKNOWLEDGED = 120
"""Offset of tcpi_bytes_acked in Linux's struct tcp_info, 64 bits (linux/tcp.h)."""


def unread(transport: asyncio.Transport) -> int:
    """Count the bytes that were written and not acknowledged by the peer; where the kernel does not say, our own."""
    return transport.get_write_buffer_size() + _in_kernel(transport.get_extra_info("socket"))


def taken(transport: asyncio.Transport) -> int:
    """Give a number that grows when the peer takes something."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError, struct.error):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKNOWLEDGED + 8)
        return int(struct.unpack_from("=Q", info, ACKNOWLEDGED)[0])
    return -unread(transport)


def _in_kernel(sock: socket.socket | None) -> int:
    """Ask SIOCOUTQ, which is TIOCOUTQ (tcp(7))."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sock is not None:
            return int(struct.unpack("=i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    return 0
