# SPDX-License-Identifier: Apache-2.0
"""What GPUs there are, who holds them, and what is free: one row for nodes of one product, driver and sharing."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import Products, normal_form
from app.kube.gpu_usage import GPUUsage
from app.nodes.model import Node, NodeClass
from app.nodes.sharing import PRODUCT
from app.values.versions import show_driver

UNKNOWN = "unknown"
WHOLE_MILLI = 1000
"""A GPU of which nothing is given away, in thousandths (nodeclass.Free.gpus)."""


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """Units that the pods of a namespace hold."""

    namespace: str
    units: int


@dataclass(frozen=True, slots=True)
class Slices:
    """MIG slices of one profile, by its name: in all, and those of which something is free.

    Of slices that are shared, `free` is the least number that the free shares can be of.
    """

    profile: str
    all: int
    free: int


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """Nodes of one product, driver and sharing.

    `product`: as GPU Feature Discovery labels it, or as DRA says it. `unit`: what one unit is: a whole GPU, a
    time-slice, an MPS share, a MIG slice. `units`, `free`: all but MIG slices that are asked by profile. `gpus`: the
    GPUs behind these units, several of which may be shares of one; slices are none. `slices`: by profile, those too
    that are asked as nvidia.com/gpu (MIG strategy single). `unhealthy`: devices that their plugin withdrew or that
    health sources report, whichever are more: both may mean the same. `held`: most first.
    """

    product: str
    driver: str
    unit: str
    nodes: int
    gpus: int
    units: int
    free: int
    unhealthy: int
    held: tuple[NamespaceUsage, ...]
    slices: tuple[Slices, ...]


@dataclass(frozen=True, slots=True)
class InventoryTotal:
    """The sums over all kinds."""

    nodes: int
    gpu_nodes: int
    gpus: int
    units: int
    free: int
    unhealthy: int
    held: tuple[NamespaceUsage, ...]
    slices: tuple[Slices, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """All kinds, by product, driver and unit; and the sums."""

    kinds: tuple[InventoryRow, ...]
    total: InventoryTotal


class _Sum:
    """Counts of one kind, while they are summed up."""

    def __init__(self) -> None:
        self.nodes = self.gpus = self.units = self.free = self.unhealthy = 0
        self.held: Counter[str] = Counter()
        self.slices: Counter[str] = Counter()
        self.free_slices: Counter[str] = Counter()

    def add(self, node: Node, holdings: Iterable[GPUUsage]) -> None:
        """Add a node and what bound pods hold of it."""
        known = node.node_class
        self.nodes += 1
        self.unhealthy += max(known.ill, known.withdrawn)
        for resource, amount in known.offered:
            free = max(node.free.units.get(resource, 0), 0)
            profile = profile_of(resource)
            if profile is None:
                self.units, self.free = self.units + amount, self.free + free
                profile = known.mig_profile
                self.gpus += known.gpus(resource, amount) if profile is None else 0
            if profile is not None:
                self.slices[profile] += known.gpus(resource, amount)
                self.free_slices[profile] += known.gpus(resource, free)
        if not known.offered and node.free.gpus:  # DRA shows GPUs by themselves
            self.gpus += len(node.free.gpus)
            self.units += len(node.free.gpus)
            self.free += sum(milli == WHOLE_MILLI for milli in node.free.gpus)
        for holding in holdings:
            self.held[holding.name.partition("/")[0]] += sum(units for _, units in holding.units)

    def named(self) -> tuple[tuple[NamespaceUsage, ...], tuple[Slices, ...]]:
        """Give what is held, most first, and the slices by profile."""
        held = sorted(self.held.items(), key=lambda pair: (-pair[1], pair[0]))
        slices = (Slices(name, count, self.free_slices[name]) for name, count in sorted(self.slices.items()))
        return tuple(NamespaceUsage(name, units) for name, units in held), tuple(slices)


def take_inventory(
    nodes: Mapping[str, Node], holdings: Mapping[str, Iterable[GPUUsage]], products: Products
) -> Inventory:
    """Sum up a fleet. `holdings`: what bound pods hold, by node."""
    sums: dict[tuple[str, str, str], _Sum] = {}
    total = _Sum()
    for name, node in nodes.items():
        if node.has_gpus:
            for each in (sums.setdefault(kind_of(node, products), _Sum()), total):
                each.add(node, holdings.get(name, ()))
    kinds = (
        InventoryRow(*key, each.nodes, each.gpus, each.units, each.free, each.unhealthy, *each.named())
        for key, each in sums.items()
    )
    found = InventoryTotal(
        len(nodes), total.nodes, total.gpus, total.units, total.free, total.unhealthy, *total.named()
    )
    return Inventory(tuple(sorted(kinds, key=lambda kind: (kind.product, kind.driver, kind.unit))), found)


def kind_of(node: Node, products: Products) -> tuple[str, str, str]:
    """Name a node's kind: product, driver, unit; of GPUs of several products, all of them."""
    known = node.node_class
    if known.several_models:
        told = _label(normal_form(node.labels.get(PRODUCT, "")), products)
        return f"{told} and others", *_driver_and_unit(known)
    found = {form for each in known.by_make() if (form := each.product)}
    if found:
        product = " and ".join(sorted(_label(form, products) for form in found))
    else:
        product = " or ".join(sorted(_label(form, products) for form in known.may_be)) or UNKNOWN
    return product, *_driver_and_unit(known)


def _driver_and_unit(known: NodeClass) -> tuple[str, str]:
    """Name the driver, and what one unit is of the resources that are not asked by MIG profile."""
    plain = [name for name, _ in known.offered if profile_of(name) is None]
    renamed = bool(plain) and all(name.endswith(".shared") for name in plain)
    unit = known.renamed if renamed else known.sharing
    return show_driver(known.driver) if known.driver else UNKNOWN, unit.value


def _label(form: str, products: Products) -> str:
    row = products.by_form.get(form)
    return row.label.removeprefix("NVIDIA-") if row else form
