# SPDX-License-Identifier: Apache-2.0
"""Connections from the machine into the sandbox, for one port.

A socket stays in the network namespace in which it was made, also when another process accepts on it. So a listener
that was made outside and is handed into the sandbox leads there, without an address that both sides could reach.
"""

import asyncio
import contextlib
import socket
import threading

BLOCK_BYTES = 1 << 16
CONNECTIONS = 256
"""Open connections of one port; those beyond it wait. Browsers and kubectl hold some ten. A guess."""


def forward(listener: socket.socket, host: str, port: int) -> None:
    """Forward the connections of a listener to an address of the sandbox, for as long as this process lives."""
    threading.Thread(target=lambda: asyncio.run(_serve(listener, host, port)), daemon=True).start()


async def _serve(listener: socket.socket, host: str, port: int) -> None:
    room = asyncio.Semaphore(CONNECTIONS)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with room:
            with contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(host, port)
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
            writer.close()

    async with await asyncio.start_server(connect, sock=listener) as server:
        await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the sender ends, and end the other side then."""
    try:
        while block := await reader.read(BLOCK_BYTES):
            writer.write(block)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
