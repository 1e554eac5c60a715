# SPDX-License-Identifier: Apache-2.0
"""What GPUs there are, who holds them, and what is free: one row for nodes of one product, driver and sharing."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.holdings import Holding
from app.knowledge.mig import profile_of
from app.knowledge.products import Products
from app.nodeclass import Node, Sharing
from app.versions import show_driver

UNKNOWN = "unknown"
WHOLE_MILLI = 1000
"""A GPU of which nothing is given away, in thousandths (nodeclass.Free.gpus)."""


@dataclass(frozen=True, slots=True)
class Held:
    """Units that the pods of a namespace hold."""

    namespace: str
    units: int


@dataclass(frozen=True, slots=True)
class Slices:
    """MIG slices of one profile: units in all and free, by the profile's name."""

    profile: str
    all: int
    free: int


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes of one product, driver and sharing.

    `product`: as GPU Feature Discovery labels it, or as DRA says it. `unit`: what one unit is: a whole GPU, a
    time-slice, an MPS share, a MIG slice. `units`, `free`: all but MIG slices that are asked by profile. `slices`: by
    profile, those too that are asked as nvidia.com/gpu (MIG strategy single). `unhealthy`: devices that their plugin
    withdrew or that health sources report, whichever are more: both may mean the same. `held`: most first.
    """

    product: str
    driver: str
    unit: str
    nodes: int
    units: int
    free: int
    unhealthy: int
    held: tuple[Held, ...]
    slices: tuple[Slices, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """The sums over all kinds."""

    nodes: int
    gpu_nodes: int
    units: int
    free: int
    unhealthy: int
    held: tuple[Held, ...]
    slices: tuple[Slices, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """All kinds, by product, driver and unit; and the sums."""

    kinds: tuple[Kind, ...]
    total: Total


class _Sum:
    """Counts of one kind, while they are summed up."""

    def __init__(self) -> None:
        self.nodes = self.units = self.free = self.unhealthy = 0
        self.held: Counter[str] = Counter()
        self.slices: Counter[str] = Counter()
        self.free_slices: Counter[str] = Counter()

    def add(self, node: Node, holdings: Iterable[Holding]) -> None:
        """Add a node and what bound pods hold of it."""
        known = node.node_class
        self.nodes += 1
        self.unhealthy += max(known.ill, known.withdrawn)
        for resource, amount in known.offered:
            free = max(node.free.units.get(resource, 0), 0)
            profile = profile_of(resource)
            if profile is None:
                self.units, self.free = self.units + amount, self.free + free
                profile = known.mig_profile if known.sharing is Sharing.MIG else None
            if profile is not None:
                self.slices[profile] += amount
                self.free_slices[profile] += free
        if not known.offered and node.free.gpus:  # DRA shows GPUs by themselves
            self.units += len(node.free.gpus)
            self.free += sum(milli == WHOLE_MILLI for milli in node.free.gpus)
        for holding in holdings:
            self.held[holding.name.partition("/")[0]] += sum(units for _, units in holding.units)

    def named(self) -> tuple[tuple[Held, ...], tuple[Slices, ...]]:
        """Give what is held, most first, and the slices by profile."""
        held = sorted(self.held.items(), key=lambda pair: (-pair[1], pair[0]))
        slices = (Slices(name, count, self.free_slices[name]) for name, count in sorted(self.slices.items()))
        return tuple(Held(name, units) for name, units in held), tuple(slices)


def take_inventory(
    nodes: Mapping[str, Node], holdings: Mapping[str, Iterable[Holding]], products: Products
) -> Inventory:
    """Sum up a fleet. `holdings`: what bound pods hold, by node."""
    sums: dict[tuple[str, str, str], _Sum] = {}
    total = _Sum()
    for name, node in nodes.items():
        if node.has_gpus:
            for each in (sums.setdefault(kind_of(node, products), _Sum()), total):
                each.add(node, holdings.get(name, ()))
    kinds = (Kind(*key, each.nodes, each.units, each.free, each.unhealthy, *each.named()) for key, each in sums.items())
    found = Total(len(nodes), total.nodes, total.units, total.free, total.unhealthy, *total.named())
    return Inventory(tuple(sorted(kinds, key=lambda kind: (kind.product, kind.driver, kind.unit))), found)


def kind_of(node: Node, products: Products) -> tuple[str, str, str]:
    """Name a node's kind: product, driver, unit; of GPUs of several products, all of them."""
    known = node.node_class
    found = {form for each in known.by_make() if (form := each.product)}
    if found:
        product = " and ".join(sorted(_label(form, products) for form in found))
    else:
        product = " or ".join(sorted(_label(form, products) for form in known.may_be)) or UNKNOWN
    renamed = bool(known.offered) and all(name.endswith(".shared") for name, _ in known.offered)
    unit = known.renamed if renamed else known.sharing
    return product, show_driver(known.driver) if known.driver else UNKNOWN, unit.value


def _label(form: str, products: Products) -> str:
    row = products.by_form.get(form)
    return row.label.removeprefix("NVIDIA-") if row else form
