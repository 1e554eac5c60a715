# SPDX-License-Identifier: Apache-2.0
"""A node as a tile of the fleet map: its GPUs as runs of equal cells, its state, and the words for who cannot see it.

A run is one element on the page: 5,000 nodes of 8 GPUs are some 10,000 elements so, and not 40,000.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from app.explain.gpu_inventory import inventory_key
from app.knowledge.geometry import Geometry
from app.knowledge.mig_placements import GPULayout
from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import normal_form
from app.knowledge.tables import Knowledge
from app.kube.gpu_usage import GPUUsage
from app.kube.pod_requests import CPU, PODS, quantity_units
from app.nodes.model import SHARES, Node, Sharing
from app.placement.node_state_filters import MIG_STATES_READY, UPGRADE_STATES_REFUSED

WHOLE = 8
"""The width of a GPU: in memory slices, of which every product with MIG has eight, or four (mig_profiles.yaml)."""
MOST_IN_A_RUN = 16
"""GPUs of the largest machines; page.css has a class for each count up to that."""
WHOLE_MILLI = 1000
LITTLE_CPU_MILLI, LITTLE_MEMORY = 1000, 1 << 30
"""With less than this left of a node no GPU pod starts (guess: a core and a GiB are the least that such pods ask)."""


class Cell(Enum):
    """What a cell shows; the value is its class in page.css, the name what the legend says."""

    Used = "u"
    Free = "f"
    Shared = "s"
    Ill = "x"
    Ghost = "g"


class NodeState(Enum):
    """The one word for a node, the worst first."""

    Ghost = "ghost GPUs"
    Upgrading = "driver upgrading"
    Changing = "MIG changing"
    Ill = "ill GPUs"
    Cordoned = "cordoned"
    Full = "full"
    Partly = "partly used"
    Free = "free"


UNAVAILABLE = frozenset({NodeState.Ghost, NodeState.Upgrading, NodeState.Changing, NodeState.Cordoned})


@dataclass(frozen=True, slots=True)
class CellRun:
    """Cells that are alike. `width`: of one, in eighths of a GPU. `text`: what stands in it, for shared GPUs."""

    cell: Cell
    count: int
    width: int = WHOLE
    text: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """One node. `units`, `free`: as inventory counts them; `whole`: they are whole GPUs.

    `stranded`: free GPUs that no pod can have now. `sizes`: GPUs that each pod here holds. `words`: all of it, said.
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
    sizes: tuple[int, ...]


def tile_of(node: Node, holdings: Sequence[GPUUsage], used: Mapping[str, int], knowledge: Knowledge) -> Tile:
    """Make a node's tile. `holdings`: of the pods bound there; `used`: what they have booked of every resource."""
    product, driver, unit = inventory_key(node, knowledge.products)
    held: dict[str, int] = {}
    for holding in holdings:
        namespace = holding.name.partition("/")[0]
        held[namespace] = held.get(namespace, 0) + sum(amount for _, amount in holding.units)
    offered, free = _counted(node)
    state = state_of(node, offered, free)
    stranded = free if state in UNAVAILABLE or _exhausted(node, used) else 0
    runs = tuple(_split(_runs(node, knowledge, state)))
    most = sorted(held.items(), key=lambda pair: (-pair[1], pair[0]))
    promised = f"labels promise {node.node_class.labelled_gpus}, none is offered"
    counted = promised if state is NodeState.Ghost else f"{offered - free} of {offered} used"
    words = f"{node.name}: {state.value}, {counted}" + "".join(f"; {namespace} {amount}" for namespace, amount in most)
    sizes = tuple(sum(amount for _, amount in holding.units) for holding in holdings)
    whole = unit in (Sharing.Exclusive.value, Sharing.Unknown.value)
    names = tuple(sorted(held))
    return Tile(node.name, product, driver, unit, state, names, runs, words, offered, free, stranded, whole, sizes)


def _counted(node: Node) -> tuple[int, int]:
    """Count units in all and free; of several resources their sum."""
    if not node.node_class.offered and node.free.gpus:
        return len(node.free.gpus), sum(milli == WHOLE_MILLI for milli in node.free.gpus)
    amounts = [(amount, max(node.free.units.get(name, 0), 0)) for name, amount in node.node_class.offered]
    return sum(amount for amount, _ in amounts), sum(free for _, free in amounts)


def state_of(node: Node, offered: int, free: int) -> NodeState:
    """Name a node's state."""
    known = node.node_class
    if (
        known.labelled_gpus
        and not offered
        and not known.dra_resources
        and not known.mig_invalid
        and not known.withdrawn
    ):
        return NodeState.Ghost
    if known.upgrade_state in UPGRADE_STATES_REFUSED:
        return NodeState.Upgrading
    if known.mig_state not in MIG_STATES_READY or known.mig_invalid:
        return NodeState.Changing
    if known.ill or known.withdrawn:
        return NodeState.Ill
    if node.unschedulable:
        return NodeState.Cordoned
    return NodeState.Free if free == offered else NodeState.Partly if free else NodeState.Full


def _exhausted(node: Node, used: Mapping[str, int]) -> bool:
    """Tell whether the CPU, the memory or the places for pods of a node are used up."""
    for resource, least in ((CPU, LITTLE_CPU_MILLI), ("memory", LITTLE_MEMORY), (PODS, 1)):
        said = node.allocatable.get(resource)
        if said is not None and quantity_units(resource, str(said)) - used.get(resource, 0) < least:
            return True
    return False


def _runs(node: Node, knowledge: Knowledge, state: NodeState) -> Iterator[CellRun]:
    known = node.node_class
    if state is NodeState.Ghost:
        yield CellRun(Cell.Ghost, known.labelled_gpus)
        return
    if not known.offered and node.free.gpus:
        yield from _by_gpu(node.free.gpus, node.free.layouts or ())
    ill = max(known.ill - known.withdrawn, 0)
    for resource, amount in known.offered:
        free = min(max(node.free.units.get(resource, 0), 0), amount)
        unit = known.unit(resource)
        profile = profile_of(resource) or known.mig_profile
        if unit in SHARES:
            width = _width(known.product, profile, knowledge) if profile else WHOLE
            yield CellRun(Cell.Shared, max(known.gpus(resource, amount), 1), width, f"{amount - free}/{amount}")
            continue
        width = _width(known.product, profile, knowledge) if profile else WHOLE
        sick = min(ill, amount) if profile is None else 0
        from_free = min(sick, free)
        yield CellRun(Cell.Used, amount - free - (sick - from_free), width)
        yield CellRun(Cell.Free, free - from_free, width)
        yield CellRun(Cell.Ill, sick, width)
    yield CellRun(Cell.Ill, known.withdrawn)


def _by_gpu(gpus: Iterable[int], layouts: Sequence[GPULayout]) -> Iterator[CellRun]:
    """Draw GPUs that DRA shows one by one; those that are carved on demand with what lies on them."""
    for layout in layouts:
        yield from _carved(layout)
    left = list(gpus)
    whole = [milli for milli in left if milli in (0, WHOLE_MILLI)] if not layouts else [m for m in left if m == 0]
    if layouts:
        whole = whole[: max(len(left) - len(layouts), 0)]
    yield CellRun(Cell.Used, sum(milli == 0 for milli in whole))
    yield CellRun(Cell.Free, sum(milli == WHOLE_MILLI for milli in whole))
    for milli in () if layouts else (each for each in left if 0 < each < WHOLE_MILLI):
        used = max(1, min(WHOLE - 1, round(WHOLE * (WHOLE_MILLI - milli) / WHOLE_MILLI)))
        yield CellRun(Cell.Used, 1, used)
        yield CellRun(Cell.Free, 1, WHOLE - used)


def _carved(layout: GPULayout) -> Iterator[CellRun]:
    """Draw one GPU from its first memory slice to its last."""
    if not layout.taken:
        yield CellRun(Cell.Free, 1)
        return
    scale, at = WHOLE // layout.geometry.memory_total, 0
    for profile, start in sorted(layout.taken, key=lambda each: each.start):
        if start > at:
            yield CellRun(Cell.Free, 1, (start - at) * scale)
        slot = layout.geometry.slots.get(profile)
        length = slot.length if slot else 1  # no geometry has another: one odd GPU must not hide the fleet
        yield CellRun(Cell.Used, 1, length * scale)
        at = start + length
    yield CellRun(Cell.Free, 1 if at < layout.geometry.memory_total else 0, (layout.geometry.memory_total - at) * scale)


def _width(product: str | None, profile: str, knowledge: Knowledge) -> int:
    """Give the width of a MIG slice: the memory slices on which it lies, of the eight that a GPU is wide."""
    geometry: Geometry | None = knowledge.geometry.get(normal_form(product)) if product else None
    if geometry is not None and (slot := geometry.slots.get(profile)) is not None:
        return max(1, slot.length * WHOLE // geometry.memory_total)
    size = knowledge.mig.size(product, profile)
    return min(max(size.compute, 1), WHOLE) if size else 1


def _split(runs: Iterable[CellRun]) -> Iterator[CellRun]:
    """Leave out what is empty, and make two of what is longer than a run can be."""
    for run in runs:
        left = run.count
        while left > 0:
            yield CellRun(run.cell, min(left, MOST_IN_A_RUN), run.width, run.text if left == run.count else "")
            left -= MOST_IN_A_RUN
