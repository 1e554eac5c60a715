# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher inventory`: counts the GPUs of a fleet by kind, all, free and used, once or followed live."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table

from app.cli.options import Fleet
from app.cli.output import names_of, show, table_of
from app.cli.source import load_of, read, state_of, telling
from app.cluster.files import read_knowledge, shipped_policies
from app.explain.gpu_inventory import (
    DeviceRow,
    Inventory,
    InventoryRow,
    InventoryTotal,
    NamespaceUsage,
    device_rows,
    take_inventory,
)
from app.kube.api_kinds import DRA, NAMESPACE
from app.telemetry.logs import LOGGER, today
from app.values.errors import BadInput
from app.world.state import State

if TYPE_CHECKING:
    from app.cluster.apiserver import ApiServer

NAMESPACES_SHOWN = 4
COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("product", "left"), ("driver", "left"), ("unit", "left"), ("nodes", "right"), ("units", "right"),
    ("free", "right"), ("gpus", "right"), ("unhealthy", "right"), ("not ready", "right"), ("slices", "left"),
    ("held by", "left"),
)  # fmt: skip
ALWAYS_SHOWN = 6
WRAPPED = 10
"""Columns before this one are not wrapped, because a wrapped version or number is unreadable."""
REDRAW_SECONDS = 1.0
"""Interval of checks for changes; faster changes cannot be read."""


def inventory(*, fleet: Fleet, watch: bool, output: str) -> None:
    if watch:
        if not fleet.live or output != "text":
            raise BadInput("inventory --watch: wants a live cluster, and -o text")
        with contextlib.suppress(KeyboardInterrupt), telling(fleet):
            asyncio.run(_watch(fleet))
        return
    result = _take(state_of(read(fleet, optional=DRA)))
    show(result, output, lambda console: _show(console, result))


def _take(state: State) -> Inventory:
    usages = {name: state.allocations.bound(name) for name in state.nodes}
    cluster, families = state.devices.dra.current, state.knowledge.families
    requested = state.node_requests.used
    units = take_inventory(state.nodes, usages, state.knowledge.products, cluster, families, requested)
    return replace(units, devices=device_rows(state.nodes, cluster))


async def _watch(fleet: Fleet) -> None:
    from app.cluster.apiserver import ApiServer

    LOGGER.setLevel(logging.CRITICAL)  # log lines would break the table
    async with ApiServer(load_of(fleet)) as server:
        await server.version()  # following tries for ever, in silence, where the first answer never comes
        await follow(server, Console(highlight=False), REDRAW_SECONDS)


async def follow(server: "ApiServer", console: Console, seconds: float) -> None:
    """Follow a cluster, and redraw the table when nodes or their GPU usage change, at most once in `seconds`.

    Raises the error that ends the following, such as ApiError.
    """
    from app.cluster.live import LiveCluster
    from app.cluster.policy_watch import PolicyBook
    from app.telemetry.metrics import Metrics

    knowledge = read_knowledge()
    state = State(knowledge)
    book = PolicyBook(shipped_policies(), knowledge, today)
    cluster = LiveCluster(server, state, book, Metrics(), NAMESPACE)
    following = asyncio.create_task(cluster.run())
    drawn = -1
    try:
        with Live(auto_refresh=False, console=console) as live:
            while not following.done():
                if cluster.synced and state.changes.generation != drawn:
                    drawn = state.changes.generation
                    live.update(unit_table(_take(state)), refresh=True)
                await asyncio.wait([following], timeout=seconds)
        following.result()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _show(console: Console, result: Inventory) -> None:
    console.print(unit_table(result))
    if result.devices:
        console.print(device_table(result.devices))


def device_table(devices: Sequence[DeviceRow]) -> Table:
    """Return the devices of ResourceSlices by driver, product and kind; columns that are all zero are left out."""
    counts = ("devices", "free", "held", "blocked", "tainted", "unusable")
    shown = [name for name in counts if name in ("devices", "free") or any(getattr(row, name) for row in devices)]
    columns = [Column(name, overflow="fold", no_wrap=True) for name in ("product", "kind", "driver")]
    columns += [Column(name, justify="right") for name in shown] + [Column("held by", overflow="fold")]
    rows = []
    for row in devices:
        holders = _holders(tuple(NamespaceUsage(*holder) for holder in row.holders))
        cells = (row.product, row.kind, row.driver, *(str(getattr(row, name)) for name in shown), holders)
        rows.append(map(escape, cells))
    return table_of(columns, rows, "devices that pods claim")


def unit_table(fleet: Inventory) -> Table:
    """Return the kinds as rows, with the sums last; empty columns are left out."""
    sums = fleet.total
    footers = ("all", "", "", f"{sums.gpu_nodes} of {sums.nodes}", *_count_cells(sums))
    shown = [index for index, text in enumerate(footers) if text or index < ALWAYS_SHOWN]
    columns = [
        Column(name, footers[index], justify=justify, overflow="fold", no_wrap=index < WRAPPED)
        for index, (name, justify) in enumerate(COLUMNS)
        if index in shown
    ]
    rows = []
    for kind in fleet.kinds:
        cells = (kind.product, kind.driver, kind.unit.split(maxsplit=1)[1].replace("whole ", ""), str(kind.nodes))
        rows.append([escape((*cells, *_count_cells(kind))[index]) for index in shown])
    return table_of(columns, rows, footer_style="bold", show_footer=True)


def _count_cells(row: InventoryRow | InventoryTotal) -> tuple[str, ...]:
    ill = str(row.unhealthy or "")
    slices = "\n".join(f"{mig_slice.profile} {mig_slice.free}/{mig_slice.all}" for mig_slice in row.slices)
    gpus = "" if row.gpus == row.units else str(row.gpus)
    return str(row.units), str(row.free), gpus, ill, str(row.not_ready or ""), slices, _holders(row.held)


def _holders(usages: tuple[NamespaceUsage, ...]) -> str:
    return names_of(tuple(f"{usage.namespace} {usage.units}" for usage in usages), NAMESPACES_SHOWN)
