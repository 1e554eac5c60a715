# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher serve`: runs the service, and prints its addresses and what to try."""

import contextlib
import json
import os
import sys
import threading
from dataclasses import replace

import uvloop
from rich.console import Console

from app.server.composition import build
from app.server.listeners import Addresses, Listeners
from app.server.process import raise_descriptor_limit, return_large_blocks
from app.server.service import Service
from app.settings import Settings
from app.telemetry.logs import start_logging
from app.values.reasons import counted

POD_TO_TRY = {
    "metadata": {"annotations": {"gpu-usher.io/products": "A10"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "nvcr.io/nvidia/pytorch:24.05-py3",
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ]
    },
}


def serve(*, settings: Settings) -> None:
    settings.check()
    run(replace(settings, log_json=not sys.stderr.isatty() and not settings.demo))


def run(settings: Settings) -> None:
    """Build the service and serve until a signal."""
    raise_descriptor_limit()
    return_large_blocks()
    service = build(settings)
    writer = start_logging(settings.log_json)
    try:
        uvloop.run(_serve(service))
    finally:
        if service.tracing is not None:
            service.tracing.stop()
        written = writer.finish()
    if not written:  # nobody reads stderr, and Python's own exit would wait for that thread's lock
        os._exit(0)


async def _serve(service: Service) -> None:
    listeners = Listeners(service)
    threading.Thread(target=_announce, args=(service, listeners.addresses), daemon=True).start()
    await listeners.run()


def _announce(service: Service, addresses: Addresses) -> None:
    """Announce in a thread, because a blocked stdout must not keep us from serving."""
    with contextlib.suppress(OSError):
        announce(service, addresses)


def announce(service: Service, addresses: Addresses) -> None:
    """Print the addresses of the listeners, and what to try."""
    console = Console(highlight=False, soft_wrap=True)
    tls, ops = map(authority, (addresses.tls, addresses.ops))
    nodes = service.nodes.values()
    policies = ", ".join(policy.name for policy in service.policies.policies)
    if service.cluster is not None:
        console.print("[bold]gpu-usher[/] is following a live cluster; /readyz says when it is in view")
    else:
        gpu_nodes = sum(node.has_gpus for node in nodes)
        console.print(f"[bold]gpu-usher[/] is serving {counted(len(nodes), 'node')}, {gpu_nodes} with GPUs")
    console.print(f"  policies                  {policies}")
    if service.absent:
        console.print(f"  [yellow]not in the snapshot       {', '.join(service.absent)}[/]")
    console.print(f"  API server and scheduler  https://{tls}   POST /mutate /validate /scheduler/filter …")
    if addresses.scheduler:
        beside = f"http://{authority(addresses.scheduler)}"
        console.print(f"  scheduler in this pod     {beside}    POST /scheduler/filter …")
    console.print(f"  probes and metrics        http://{ops}    GET /readyz /metrics")
    if addresses.web:
        web = f"http://{authority(addresses.web)}"
        console.print(f"  web UI                    {web}    a browser; POST /explain /dry-run")
    console.print("try, in another terminal:")
    if service.settings.demo:
        console.print("  make demo")
    console.print(f"  curl -s http://{ops}/readyz")
    if addresses.web:
        console.print(f"  curl -s {web}/explain -d '{json.dumps(POD_TO_TRY)}'", markup=False)


def authority(address: tuple[str, int]) -> str:
    """Write a host and a port as URLs have them: an IPv6 address stands in brackets (RFC 3986, 3.2.2)."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
