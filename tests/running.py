# SPDX-License-Identifier: Apache-2.0
"""A real server on loopback: the three listeners on free ports, in a thread with its own event loop."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from app.server.limits import Limits
from app.server.listeners import Listeners
from app.server.service import Service

START_SECONDS = 60
"""Seconds for the start and for the stop, which both take well under one."""


@dataclass(frozen=True, slots=True)
class Running:
    """Clients of the three listeners; `tls` trusts the service's CA, and `loop` is the event loop of the service."""

    tls: httpx.Client
    ops: httpx.Client
    people: httpx.Client
    loop: asyncio.AbstractEventLoop


@contextmanager
def running(service: Service, limits: Limits = Limits()) -> Iterator[Running]:  # noqa: B008  # frozen
    """Run a service for as long as the block lasts."""
    started = threading.Event()
    served: list[Listeners] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        served.append(Listeners(service, limits))
        started.set()
        await served[0].run()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(START_SECONDS)
    addresses = served[0].addresses
    assert addresses.web is not None
    # a client of http needs no CAs, and to read those of the system takes 20 ms
    context = ssl.create_default_context(cafile=str(service.settings.certs / "ca.crt"))
    try:
        with (
            httpx.Client(base_url=f"https://127.0.0.1:{addresses.tls[1]}", verify=context, trust_env=False) as tls,
            httpx.Client(base_url=f"http://127.0.0.1:{addresses.ops[1]}", verify=False, trust_env=False) as ops,
            httpx.Client(base_url=f"http://127.0.0.1:{addresses.web[1]}", verify=False, trust_env=False) as people,
        ):
            yield Running(tls, ops, people, loop)
    finally:
        loop.call_soon_threadsafe(served[0].stop)
        thread.join(START_SECONDS)
        assert not thread.is_alive()
        loop.close()
