# SPDX-License-Identifier: Apache-2.0
"""A node as a tile of the fleet map: its GPUs as runs of equal cells, its state, and a description in words.

A run is one element of the page, so that 5,000 nodes of 8 GPUs are some 10,000 elements and not 40,000.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from app.explain.gpu_inventory import inventory_key
from app.knowledge.mig_geometry import Geometry, GPULayout
from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import WHOLE_MILLI, normal_form
from app.knowledge.tables import Knowledge
from app.kube.gpu_usage import GPUUsage
from app.kube.pod_requests import CPU, PODS, quantity_units
from app.nodes.mig_state import MIG_FAILED
from app.nodes.model import SHARES, UNSHARED, Node
from app.placement.class_filters import MIG_STATES_AT_REST, UPGRADE_STATES_REFUSED

GPU_WIDTH = 8
"""The width of a GPU in memory slices, of which products with MIG have eight or four (mig_profiles.yaml)."""
MOST_PER_RUN = 16
"""GPUs of the largest machines; page.css has a class for each count up to it."""
LITTLE_CPU_MILLI, LITTLE_MEMORY = 1000, 1 << 30
"""A node with less than this left starts no GPU pod (a guess: such pods ask for a core and a GiB at least)."""


class GPUCell(Enum):
    """What a cell shows. The value is its class in page.css, the name its text in the legend."""

    Used = "u"
    Free = "f"
    Shared = "s"
    Ill = "x"
    Ghost = "g"


class NodeState(Enum):
    """The state of a node, the worst first."""

    NotReady = "not Ready"
    Ghost = "missing GPUs"
    UpgradeFailed = "driver upgrade failed"
    ChangeFailed = "MIG layout failed"
    Upgrading = "driver upgrading"
    Changing = "MIG changing"
    Ill = "unhealthy GPUs"
    Cordoned = "cordoned"
    Full = "full"
    Partly = "partly used"
    Free = "free"


UNAVAILABLE = frozenset(NodeState) - {NodeState.Ill, NodeState.Full, NodeState.Partly, NodeState.Free}


@dataclass(frozen=True, slots=True)
class CellRun:
    """Equal cells. `width` is that of one cell in eighths of a GPU; `text` stands in shared cells."""

    cell: GPUCell
    count: int
    width: int = GPU_WIDTH
    text: str = ""


@dataclass(frozen=True, slots=True)
class UnitCount:
    """The units of one kind on a node, such as GPUs or MIG slices: all, and free ones."""

    unit: str
    units: int
    free: int

    @property
    def whole(self) -> bool:
        return self.unit in WHOLE_UNITS


WHOLE_UNITS = frozenset(kind.value for kind in UNSHARED)


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of one node.

    `counts` are its units by kind, which are never added. `stranded` tells that no pod can use what is free. `sizes`
    are the whole GPUs of each pod that has some. `words` describes the tile.
    """

    node: str
    product: str
    driver: str
    state: NodeState
    namespaces: tuple[str, ...]
    runs: tuple[CellRun, ...]
    words: str
    counts: tuple[UnitCount, ...]
    stranded: bool
    sizes: tuple[int, ...]

    @property
    def unit(self) -> str:
        """The kinds of units, as text."""
        return " + ".join(count.unit for count in self.counts)


def tile_of(
    node: Node,
    usages: Sequence[GPUUsage],
    used: Mapping[str, int],
    knowledge: Knowledge,
    claimed: Mapping[str, int],
) -> Tile:
    """Make a node's tile from the GPU usage of its pods.

    `used` is the sum of their requests by resource, `claimed` the number of devices that claims have, by namespace.
    """
    product, driver, _ = inventory_key(node, knowledge.products)
    units_by_namespace = dict(claimed)
    for usage in usages:
        namespace = usage.name.partition("/")[0]
        units_by_namespace[namespace] = units_by_namespace.get(namespace, 0) + sum(amount for _, amount in usage.units)
    counts = counted_units(node, knowledge)
    offered, free = sum(count.units for count in counts), sum(count.free for count in counts)
    state = state_of(node, offered, free)
    runs = tuple(_split(_runs(node, knowledge, state)))
    if state is NodeState.NotReady:  # nothing is free there
        runs = tuple(replace(run, cell=GPUCell.Ill) if run.cell is GPUCell.Free else run for run in runs)
    most = sorted(units_by_namespace.items(), key=lambda pair: (-pair[1], pair[0]))
    promises = "; ".join(f"{promise.words}, none is offered" for promise in node.node_class.absent)
    named = len(counts) > 1
    used_units = (f"{one.units - one.free} of {one.units}{f' ({one.unit})' * named} used" for one in counts)
    counted = promises if state is NodeState.Ghost else ", ".join(used_units)
    words = f"{node.name}: {state.value}, {counted}" + "".join(f"; {namespace} {amount}" for namespace, amount in most)
    words += "".join(f"; {name}" for name, _ in node.node_class.bad_conditions)
    sizes = (sum(amount for name, amount in usage.units if not profile_of(name)) for usage in usages)
    names, stranded = tuple(sorted(units_by_namespace)), state in UNAVAILABLE or _exhausted(node, used)
    return Tile(
        node.name, product, driver, state, names, runs, words, counts, stranded, tuple(size for size in sizes if size)
    )


def counted_units(node: Node, knowledge: Knowledge) -> tuple[UnitCount, ...]:
    """Return the units of a node by kind; one kind at least, of which there may be none."""
    facts = node.node_class
    unit = inventory_key(node, knowledge.products)[2]
    if not facts.offered and node.free.gpus:
        return (UnitCount(unit, len(node.free.gpus), sum(milli == WHOLE_MILLI for milli in node.free.gpus)),)
    counts: dict[str, tuple[int, int]] = {}
    for name, amount in facts.offered:
        kind = facts.unit_words(name)
        units, free = counts.get(kind, (0, 0))
        counts[kind] = units + amount, free + max(node.free.units.get(name, 0), 0)
    shown = {kind: count for kind, count in counts.items() if count[0]} or {unit: (0, 0)}
    return tuple(UnitCount(kind, *count) for kind, count in sorted(shown.items()))


def state_of(node: Node, offered: int, free: int) -> NodeState:
    node_class = node.node_class
    if node.not_ready is not None:
        return NodeState.NotReady
    if node_class.absent and not offered and node.devices is None:
        return NodeState.Ghost
    if node_class.upgrade_state == "upgrade-failed":
        return NodeState.UpgradeFailed
    if node_class.mig_state == MIG_FAILED or node_class.mig_invalid:
        return NodeState.ChangeFailed
    if node_class.upgrade_state in UPGRADE_STATES_REFUSED:
        return NodeState.Upgrading
    if node_class.mig_state not in MIG_STATES_AT_REST:
        return NodeState.Changing
    if node_class.ill or node_class.withdrawn or node_class.faulty:
        return NodeState.Ill
    if node.unschedulable:
        return NodeState.Cordoned
    return NodeState.Free if free == offered else NodeState.Partly if free else NodeState.Full


def _exhausted(node: Node, used: Mapping[str, int]) -> bool:
    """Tell whether CPU, memory or the number of pods of a node is used up."""
    for resource, least in ((CPU, LITTLE_CPU_MILLI), ("memory", LITTLE_MEMORY), (PODS, 1)):
        allocatable = node.allocatable.get(resource)
        if allocatable is not None and quantity_units(resource, str(allocatable)) - used.get(resource, 0) < least:
            return True
    return False


def _runs(node: Node, knowledge: Knowledge, state: NodeState) -> Iterator[CellRun]:
    node_class = node.node_class
    if state is NodeState.Ghost:
        yield CellRun(GPUCell.Ghost, sum(promise.count or 1 for promise in node_class.absent))
        return
    if not node_class.offered and node.free.gpus:
        yield from _by_gpu(node.free.gpus, node.free.layouts or ())
    ill = max(node_class.ill - node_class.withdrawn, 0)
    for resource, amount in node_class.offered:
        free = min(max(node.free.units.get(resource, 0), 0), amount)
        unit = node_class.unit(resource)
        profile = profile_of(resource) or node_class.mig_profile
        if unit in SHARES:
            width = _width(node_class.product, profile, knowledge) if profile else GPU_WIDTH
            yield CellRun(GPUCell.Shared, max(node_class.gpus(resource, amount), 1), width, f"{amount - free}/{amount}")
            continue
        width = _width(node_class.product, profile, knowledge) if profile else GPU_WIDTH
        sick = min(ill, amount) if profile is None else 0
        from_free = min(sick, free)
        yield CellRun(GPUCell.Used, amount - free - (sick - from_free), width)
        yield CellRun(GPUCell.Free, free - from_free, width)
        yield CellRun(GPUCell.Ill, sick, width)
    yield CellRun(GPUCell.Ill, node_class.withdrawn)


def _by_gpu(gpus: Iterable[int], layouts: Sequence[GPULayout]) -> Iterator[CellRun]:
    """Draw the GPUs that DRA shows one by one, those with dynamic MIG with their slices."""
    for layout in layouts:
        yield from _mig_layout(layout)
    left = list(gpus)
    whole = [milli for milli in left if milli in (0, WHOLE_MILLI)] if not layouts else [m for m in left if m == 0]
    if layouts:
        whole = whole[: max(len(left) - len(layouts), 0)]
    yield CellRun(GPUCell.Used, sum(milli == 0 for milli in whole))
    yield CellRun(GPUCell.Free, sum(milli == WHOLE_MILLI for milli in whole))
    for milli in () if layouts else (milli_left for milli_left in left if 0 < milli_left < WHOLE_MILLI):
        used = max(1, min(GPU_WIDTH - 1, round(GPU_WIDTH * (WHOLE_MILLI - milli) / WHOLE_MILLI)))
        yield CellRun(GPUCell.Used, 1, used)
        yield CellRun(GPUCell.Free, 1, GPU_WIDTH - used)


def _mig_layout(layout: GPULayout) -> Iterator[CellRun]:
    """Draw one GPU with MIG, from its first memory slice to its last."""
    if not layout.taken:
        yield CellRun(GPUCell.Free, 1)
        return
    scale, position = GPU_WIDTH // layout.geometry.memory_total, 0
    for profile, start in sorted(layout.taken, key=lambda placement: placement.start):
        if start > position:
            yield CellRun(GPUCell.Free, 1, (start - position) * scale)
        slot = layout.geometry.slots.get(profile)
        length = slot.length if slot else 1  # an unknown profile of one GPU must not break the page
        yield CellRun(GPUCell.Used, 1, length * scale)
        position = start + length
    yield CellRun(
        GPUCell.Free,
        1 if position < layout.geometry.memory_total else 0,
        (layout.geometry.memory_total - position) * scale,
    )


def _width(product: str | None, profile: str, knowledge: Knowledge) -> int:
    """Return the width of a MIG slice: its memory slices, scaled to the eight that a GPU is wide."""
    geometry: Geometry | None = knowledge.geometry.get(normal_form(product)) if product else None
    if geometry is not None and (slot := geometry.slots.get(profile)) is not None:
        return max(1, slot.length * GPU_WIDTH // geometry.memory_total)
    size = knowledge.mig.size(product, profile)
    return min(max(size.compute, 1), GPU_WIDTH) if size else 1


def _split(runs: Iterable[CellRun]) -> Iterator[CellRun]:
    """Drop empty runs, and split those longer than MOST_PER_RUN."""
    for run in runs:
        left = run.count
        while left > 0:
            text = run.text if left == run.count else ""
            yield CellRun(run.cell, min(left, MOST_PER_RUN), run.width, text)
            left -= MOST_PER_RUN
