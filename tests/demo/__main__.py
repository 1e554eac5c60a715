# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.demo`: sends recorded requests to a server, and shows the results as tables."""

import asyncio
import contextlib
import json
import logging
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from app.server.composition import build
from app.server.listeners import Listeners
from app.settings import Settings
from app.telemetry.logs import LOGGER
from app.values.errors import BadInput
from tests.demo.play import QUESTIONS, AdmittedPod, NodeOutcome, admit, place, preempt_candidates

PAYLOADS = Path(__file__).parents[1] / "contract"
START_SECONDS = 30
COLOURS = {"denied": "red", "patched": "green", "unchanged": "dim"}


def demo(
    url: Annotated[str, typer.Option(help="A running server.")] = "https://127.0.0.1:8443",
    ca: Annotated[Path, typer.Option(help="Its CA certificate.")] = Path("certs/ca.crt"),
) -> None:
    """Send recorded requests of a real API server and scheduler, and show the results with their reasons."""
    console = Console(highlight=False)
    with contextlib.ExitStack() as stack:
        if not _is_running(url, ca):
            url, ca = stack.enter_context(_run_demo_server())
            console.print("[dim]no server at the default address, so this demo runs one of its own[/]")
        context = ssl.create_default_context(cafile=str(ca))
        client = stack.enter_context(httpx.Client(base_url=url, verify=context, timeout=10, trust_env=False))

        def send(path: str, body: bytes) -> Any:
            return client.post(path, content=body).raise_for_status().json()

        _show(console, send, PAYLOADS)


def _show(console: Console, send: Any, payloads: Path) -> None:
    console.print(_admission_table(admit(send, payloads)))
    for question in QUESTIONS:
        console.print(_placement_table(question[0], place(send, payloads, question)))
    given, kept = preempt_candidates(send, payloads)
    console.print(
        f"\n[bold]preemption[/] for a pod that wants an H100: kube-scheduler would evict pods on {', '.join(given)};"
    )
    allowed = f"[green]{', '.join(kept)}[/]"
    console.print(f"gpu-usher allows only {allowed}: the pod could not run on the other nodes even after an eviction.")


def _admission_table(rows: Iterator[AdmittedPod]) -> Table:
    table = Table(title="Admission: POST /mutate", title_justify="left", header_style="bold", show_lines=True)
    for name in ("pod", "decision", "changes", "what the user sees"):
        table.add_column(name, overflow="fold")
    for row in rows:
        colour = COLOURS[row.decision]
        table.add_row(row.title, f"[{colour}]{row.decision}[/]", "\n".join(row.actions), "\n".join(row.messages))
    return table


def _placement_table(title: str, outcomes: list[NodeOutcome]) -> Table:
    table = Table(title=f"\nPlacement: {title}", title_justify="left", header_style="bold")
    table.add_column("score", justify="right")
    table.add_column("nodes", overflow="fold", ratio=2)
    table.add_column("why", overflow="fold", ratio=3)
    table.add_column("in", overflow="fold")
    for outcome in outcomes:
        nodes = ", ".join(outcome.nodes)
        if outcome.score is not None:
            table.add_row(str(outcome.score), f"[green]{nodes}[/]", outcome.message, "NodeNames")
        else:
            where = "FailedNodes" if outcome.preemptible else "FailedAndUnresolvableNodes"
            table.add_row("", nodes, outcome.message, where)
    return table


def _is_running(url: str, ca: Path) -> bool:
    """Tell whether gpu-usher runs at an address, by a request that every role of it answers."""
    if not ca.exists():
        return False
    try:
        context = ssl.create_default_context(cafile=str(ca))
        with httpx.Client(base_url=url, verify=context, timeout=3, trust_env=False) as client:
            names = json.dumps({"Pod": {}, "NodeNames": []})
            return client.post("/scheduler/filter", content=names).status_code == 200
    except (httpx.HTTPError, ssl.SSLError):
        return False


@contextlib.contextmanager
def _run_demo_server() -> Iterator[tuple[str, Path]]:
    """Run a demo server on free ports while the block runs."""
    LOGGER.setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(demo=True, certs=Path(folder), port=0, ops_port=0, ui_address="off")
        service = build(settings)
        ready = threading.Event()
        served: list[Listeners] = []
        loop = asyncio.new_event_loop()

        async def serve() -> None:
            served.append(Listeners(service))
            ready.set()
            await served[0].run()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
        thread.start()
        if not ready.wait(START_SECONDS):
            raise BadInput(f"demo: the server did not start within {START_SECONDS} s")
        host, port = served[0].addresses.tls
        try:
            yield f"https://{host}:{port}", Path(folder) / "ca.crt"
        finally:
            loop.call_soon_threadsafe(served[0].stop)
            thread.join(START_SECONDS)
            loop.close()


if __name__ == "__main__":
    typer.run(demo)
