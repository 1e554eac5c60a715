# SPDX-License-Identifier: Apache-2.0
"""A node as a tile of the fleet map: its GPUs as runs of equal cells, its state, and a description in words.

A run is one element of the page, so that 5,000 nodes of 8 GPUs are some 10,000 elements and not 40,000.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby

from app.explain.gpu_inventory import inventory_key
from app.knowledge.mig_geometry import Geometry, GPULayout
from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import WHOLE_MILLI, normal_form
from app.knowledge.tables import Knowledge
from app.kube.gpu_usage import GPUUsage
from app.kube.pod_requests import CPU, PODS, quantity_units
from app.nodes.model import SHARES, UNSHARED, Node
from app.placement.class_filters import MIG_STATES_READY, UPGRADE_STATES_REFUSED
from app.web.views.tile_colours import HeldMarks, TileColours

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

    Ghost = "missing GPUs"
    Upgrading = "driver upgrading"
    Changing = "MIG changing"
    Ill = "unhealthy GPUs"
    Cordoned = "cordoned"
    Full = "full"
    Partly = "partly used"
    Free = "free"


UNAVAILABLE = frozenset({NodeState.Ghost, NodeState.Upgrading, NodeState.Changing, NodeState.Cordoned})


@dataclass(frozen=True, slots=True)
class CellRun:
    """Equal cells. `width` is that of one cell in eighths of a GPU; `text` stands in shared and in coloured cells.

    `colour` is a class in page.css, and empty on a map without colours.
    """

    cell: GPUCell
    count: int
    width: int = GPU_WIDTH
    text: str = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of one node.

    `units` and `free` are counted as in the inventory; `whole` is whether they are whole GPUs. `stranded` counts free
    GPUs that no pod can use now. `holders` are the pods here and the GPUs of each. `words` describes the tile.
    """

    node: str
    product: str
    driver: str
    unit: str
    state: NodeState
    namespaces: tuple[str, ...]
    runs: tuple[CellRun, ...]
    words: str
    units: int
    free: int
    stranded: int
    whole: bool
    holders: tuple[tuple[str, int], ...]

    @property
    def sizes(self) -> Iterator[int]:
        """The GPUs of each pod."""
        return (amount for _, amount in self.holders)


def tile_of(
    node: Node,
    usages: Sequence[GPUUsage],
    used: Mapping[str, int],
    knowledge: Knowledge,
    claimed: Mapping[str, int],
    colours: TileColours | None = None,
) -> Tile:
    """Make a node's tile from the GPU usage of its pods.

    `used` is the sum of their requests by resource, `claimed` the number of devices that claims have, by namespace.
    With `colours` the held cells are coloured.
    """
    product, driver, unit = inventory_key(node, knowledge.products)
    units_by_namespace = dict(claimed)
    for usage in usages:
        namespace = usage.name.partition("/")[0]
        units_by_namespace[namespace] = units_by_namespace.get(namespace, 0) + sum(amount for _, amount in usage.units)
    offered, free = counted_units(node)
    state = state_of(node, offered, free)
    stranded = free if state in UNAVAILABLE or _exhausted(node, used) else 0
    held = colours.marks(node, usages, claimed) if colours else None
    runs = tuple(_split(_runs(node, knowledge, state, held)))
    most = sorted(units_by_namespace.items(), key=lambda pair: (-pair[1], pair[0]))
    promises = "; ".join(f"{promise.words}, none is offered" for promise in node.node_class.absent)
    counted = promises if state is NodeState.Ghost else f"{offered - free} of {offered} used"
    words = f"{node.name}: {state.value}, {counted}" + "".join(f"; {namespace} {amount}" for namespace, amount in most)
    words += "".join(f"; {name}" for name, _ in node.node_class.bad_conditions)
    if colours:
        words += colours.words(node, usages, claimed)
    holders = tuple((usage.name, sum(amount for _, amount in usage.units)) for usage in usages)
    whole = unit in {kind.value for kind in UNSHARED}
    names = tuple(sorted(units_by_namespace))
    return Tile(node.name, product, driver, unit, state, names, runs, words, offered, free, stranded, whole, holders)


def counted_units(node: Node) -> tuple[int, int]:
    """Return the units of a node, all and free, summed over its resources."""
    if not node.node_class.offered and node.free.gpus:
        return len(node.free.gpus), sum(milli == WHOLE_MILLI for milli in node.free.gpus)
    amounts = [(amount, max(node.free.units.get(name, 0), 0)) for name, amount in node.node_class.offered]
    return sum(amount for amount, _ in amounts), sum(free for _, free in amounts)


def state_of(node: Node, offered: int, free: int) -> NodeState:
    node_class = node.node_class
    if node_class.absent and not offered and node.devices is None:
        return NodeState.Ghost
    if node_class.upgrade_state in UPGRADE_STATES_REFUSED:
        return NodeState.Upgrading
    if node_class.mig_state not in MIG_STATES_READY or node_class.mig_invalid:
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


def _runs(node: Node, knowledge: Knowledge, state: NodeState, held: HeldMarks | None) -> Iterator[CellRun]:
    node_class = node.node_class
    if state is NodeState.Ghost:
        yield CellRun(GPUCell.Ghost, sum(promise.count or 1 for promise in node_class.absent))
        return
    if not node_class.offered and node.free.gpus:
        yield from _by_gpu(node.free.gpus, node.free.layouts or (), held)
    ill = max(node_class.ill - node_class.withdrawn, 0)
    for resource, amount in node_class.offered:
        free = min(max(node.free.units.get(resource, 0), 0), amount)
        unit = node_class.unit(resource)
        profile = profile_of(resource) or node_class.mig_profile
        if unit in SHARES:
            width = _width(node_class.product, profile, knowledge) if profile else GPU_WIDTH
            shared = CellRun(
                GPUCell.Shared, max(node_class.gpus(resource, amount), 1), width, f"{amount - free}/{amount}"
            )
            yield from _shared(shared, resource, held)
            continue
        width = _width(node_class.product, profile, knowledge) if profile else GPU_WIDTH
        sick = min(ill, amount) if profile is None else 0
        from_free = min(sick, free)
        yield from _used(amount - free - (sick - from_free), width, resource, held)
        yield CellRun(GPUCell.Free, free - from_free, width)
        yield CellRun(GPUCell.Ill, sick, width)
    yield CellRun(GPUCell.Ill, node_class.withdrawn)


def _used(count: int, width: int, resource: str, held: HeldMarks | None) -> Iterator[CellRun]:
    """Draw used cells of a resource, in runs of one colour if there are colours."""
    if held is None:
        yield CellRun(GPUCell.Used, count, width)
        return
    for mark, cells in groupby(held.take(resource, count)):
        yield CellRun(GPUCell.Used, len(list(cells)), width, mark.text, mark.colour)


def _shared(run: CellRun, resource: str, held: HeldMarks | None) -> Iterator[CellRun]:
    """Draw shared GPUs; with colours as many of them as are known in the colour of their holders."""
    marks = held.known(resource, run.count) if held else []
    for mark, cells in groupby(marks):
        count = len(list(cells))
        yield CellRun(run.cell, count, run.width, run.text, mark.colour)
        run = replace(run, count=run.count - count, text="")
    yield run


def _by_gpu(gpus: Iterable[int], layouts: Sequence[GPULayout], held: HeldMarks | None) -> Iterator[CellRun]:
    """Draw the GPUs that DRA shows one by one, those with dynamic MIG with their slices."""
    for layout in layouts:
        yield from _mig_layout(layout, held)
    left = list(gpus)
    whole = [milli for milli in left if milli in (0, WHOLE_MILLI)] if not layouts else [m for m in left if m == 0]
    if layouts:
        whole = whole[: max(len(left) - len(layouts), 0)]
    yield from _used(sum(milli == 0 for milli in whole), GPU_WIDTH, "", held)
    yield CellRun(GPUCell.Free, sum(milli == WHOLE_MILLI for milli in whole))
    for milli in () if layouts else (milli_left for milli_left in left if 0 < milli_left < WHOLE_MILLI):
        used = max(1, min(GPU_WIDTH - 1, round(GPU_WIDTH * (WHOLE_MILLI - milli) / WHOLE_MILLI)))
        yield from _used(1, used, "", held)
        yield CellRun(GPUCell.Free, 1, GPU_WIDTH - used)


def _mig_layout(layout: GPULayout, held: HeldMarks | None) -> Iterator[CellRun]:
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
        yield from _used(1, length * scale, "", held)
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
            text = run.text if left == run.count or run.colour else ""
            yield CellRun(run.cell, min(left, MOST_PER_RUN), run.width, text, run.colour)
            left -= MOST_PER_RUN
