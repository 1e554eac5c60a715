# SPDX-License-Identifier: Apache-2.0
"""The options that name a history of use, and the history as it was read."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from app.cli.progress import show_progress
from app.cli.source import refuse_several
from app.cluster.state import State
from app.cluster.usage_history import UsageHistory
from app.cluster.usage_polling import shared_nodes
from app.demo.usage import demo_history
from app.telemetry.logs import now
from app.usage.history import History, with_sharing
from app.usage.table import idle_pods
from app.values.errors import BadInput
from app.values.quantity import parse_seconds

SINCE = re.compile(r"(\d{1,3})([dw])", re.ASCII)
UNITS = {"d": 86_400, "w": 7 * 86_400}
SHORTEST, LONGEST = 3600, 92 * 86_400
"""Seconds of a history: four windows, and three months, which few keep."""
IDLE_LOOK_BACK = 86_400
"""Seconds for which idleness is looked back where a command only says who is idle."""

PrometheusURL = Annotated[str | None, typer.Option("--prometheus", help="A Prometheus with DCGM's metrics of pods.")]
TokenFile = Annotated[Path | None, typer.Option("--prometheus-token-file", help="A file with a bearer token for it.")]
Since = Annotated[str, typer.Option("--since", help="How far back to look, such as 12h, 7d or 4w.")]


def read_since(text: str) -> int:
    """Read how far back to look, in seconds.

    Raises BadInput.
    """
    match = SINCE.fullmatch(text)
    seconds = int(match[1]) * UNITS[match[2]] if match else parse_seconds(text)
    if seconds is None or not SHORTEST <= seconds <= LONGEST:
        raise BadInput(f"--since {text[:20]!r}: wants 1h to 92d, such as 12h, 7d or 4w")
    return int(seconds)


def history_of(
    prometheus: str | None, token_file: Path | None, demo: str | None, state: State, seconds: int
) -> History:
    """Read the history of a Prometheus, or make up that of a sample fleet, with the shared GPUs of `state` marked.

    Raises BadInput without either, SourceError.
    """
    refuse_several(("--prometheus", prometheus), ("--demo-fleet", demo))
    if not (prometheus or demo):
        raise BadInput(
            "wants --prometheus URL, with DCGM's metrics: a cluster and a snapshot have no history (--demo has one)"
        )
    if token_file and not prometheus:
        raise BadInput("got --prometheus-token-file without --prometheus, wants both")
    end = now().timestamp()
    if not prometheus:
        usages = {name: state.usage_on(name) for name in state.nodes}
        return demo_history(state.nodes, usages, end, seconds)
    knowledge = state.knowledge
    source = UsageHistory(prometheus, knowledge.dcgm, knowledge.usage_metrics, token_file)
    with show_progress(f"asking {source.origin}"):
        history = asyncio.run(_read(source, end, seconds))
    return with_sharing(history, shared_nodes(state.nodes))


def idle_of_fleet(prometheus: str | None, token_file: Path | None, state: State) -> Mapping[str, float]:
    """Give for how many seconds the pods of a fleet have been idle for certain; nothing without a Prometheus.

    Raises SourceError.
    """
    return (
        idle_pods(history_of(prometheus, token_file, None, state, IDLE_LOOK_BACK)) if prometheus or token_file else {}
    )


async def _read(source: UsageHistory, end: float, seconds: int) -> History:
    try:
        return await source.read(end, seconds)
    finally:
        await source.close()
