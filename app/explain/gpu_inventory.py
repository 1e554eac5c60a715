# SPDX-License-Identifier: Apache-2.0
"""The GPU inventory: which GPUs exist, which namespaces use them, and what is free; one row per kind of node.

The devices of ResourceSlices are listed by themselves, with what becomes of each, and summed by driver, product and
kind. A device is free where a claim can get it now. Devices that are parts of one GPU count each by itself, as
the driver publishes them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from app.dra.cluster_devices import ClusterDevices, Pool, holder_names
from app.dra.counters import PoolCounters, lacking
from app.knowledge.gpu_resources import Families, GPUsElsewhere
from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import Products, normal_form
from app.kube.device_classes import untolerated
from app.kube.devices import Device, show_taint
from app.kube.gpu_usage import GPUUsage
from app.kube.pod_requests import read_amounts
from app.nodes.conditions import PRODUCT
from app.nodes.model import WHOLE_MILLI, Node, NodeClass
from app.values.versions import show_driver

NO_PRODUCT = "unknown"


class DeviceAvailability(Enum):
    """What becomes of a device."""

    Free = "free"
    Held = "held"
    Blocked = "blocked"
    """What it is a part of is given to others: too little is left of its counters."""
    Tainted = "tainted"
    NotUsable = "not usable"
    """Slices of its pool are missing, or its pool is invalid."""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One device: its product and kind (a MIG profile, or the type that the driver writes), and which pod or claim has
    it.

    `because` names the pods or claims that hold it, its taint, or what is wrong with its pool; "" for a free one.
    A device that claims share, which is `shared`, is held when no claim can get a share any more. `part` says that it
    is one of several ways to give away the same GPU: a slice that is created on demand, a passed-through GPU.
    """

    driver: str
    pool: str
    name: str
    product: str
    kind: str
    state: str
    because: str = ""
    namespaces: tuple[str, ...] = ()
    shared: bool = False
    part: bool = False


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """Devices of one driver, product and kind: how many, by state, and the namespaces that hold some, most first."""

    driver: str
    product: str
    kind: str
    devices: int
    free: int
    held: int
    blocked: int
    tainted: int
    unusable: int
    holders: tuple[tuple[str, int], ...]


def devices_of_node(node: Node, cluster: ClusterDevices) -> tuple[DeviceStatus, ...]:
    """List the devices that can be reached from a node, in the order in which kube-scheduler tries them."""
    return tuple(status for pool in cluster.pools.pools(node) for status in _of_pool(pool, cluster))


def _of_pool(pool: Pool, cluster: ClusterDevices) -> Iterator[DeviceStatus]:
    if pool.incomplete or pool.invalid:
        because = pool.invalid or "slices of its pool are missing"
        slices = (one for one in cluster.pools.slices() if (one.driver, one.pool) == pool.id)
        yield from (_status(device, DeviceAvailability.NotUsable, because) for one in slices for device in one.devices)
        return
    counters = PoolCounters(pool, cluster.allocated)
    for device in pool.devices:
        yield _of_device(device, counters, cluster)


def _of_device(device: Device, counters: PoolCounters, cluster: ClusterDevices) -> DeviceStatus:
    holders = cluster.allocated.holders(device.id)
    used = cluster.allocated.used(device.id)
    namespaces = tuple(sorted({key.partition("/")[0] for key in holders}))
    if holders and not (device.allow_multiple_allocations and lacking(device, None, used) is None):
        return _status(device, DeviceAvailability.Held, ", ".join(holder_names(cluster, device)), namespaces)
    taint = untolerated(device, cluster.taint_rules, ())
    if taint is not None:
        return _status(device, DeviceAvailability.Tainted, show_taint(taint))
    missing = counters.lacking(device) if device.counters else None
    if missing is not None and not holders:
        return _status(device, DeviceAvailability.Blocked, f"too little is left of {missing[1]} of {missing[0]}")
    return _status(device, DeviceAvailability.Free, "", namespaces)


def _status(device: Device, state: DeviceAvailability, because: str, namespaces: tuple[str, ...] = ()) -> DeviceStatus:
    product, kind = _product_and_kind(device)
    part = kind == "vfio" or bool(
        device.counters and "profile" in {name.rpartition("/")[2] for name in device.attributes}
    )
    of_device = device.driver, device.pool, device.name, product, kind, state.value, because, namespaces
    return DeviceStatus(*of_device, device.allow_multiple_allocations, part)


def _product_and_kind(device: Device) -> tuple[str, str]:
    """Read the attributes that drivers of GPUs write, of whatever domain: productName, and profile or type.

    Source: NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go.
    """
    bare = {name.rpartition("/")[2]: value for name, value in device.attributes.items()}
    return str(bare.get("productName", NO_PRODUCT)), str(bare.get("profile", bare.get("type", "device")))


def device_rows(nodes: Mapping[str, Node], cluster: ClusterDevices) -> tuple[DeviceRow, ...]:
    """Sum up the devices of a fleet; a device that several nodes can reach counts once."""
    if not len(cluster.pools):
        return ()
    statuses = {
        (one.driver, one.pool, one.name): one for node in nodes.values() for one in devices_of_node(node, cluster)
    }
    groups: dict[tuple[str, str, str], list[DeviceStatus]] = {}
    for status in statuses.values():
        groups.setdefault((status.driver, status.product, status.kind), []).append(status)
    return tuple(_row(key, group) for key, group in sorted(groups.items()))


def _row(key: tuple[str, str, str], group: Iterable[DeviceStatus]) -> DeviceRow:
    statuses = list(group)
    states = Counter(status.state for status in statuses)
    namespaces = Counter(name for status in statuses for name in status.namespaces)
    holders = tuple(sorted(namespaces.items(), key=lambda entry: (-entry[1], entry[0])))
    free, held, blocked, tainted, unusable = (states[state.value] for state in DeviceAvailability)
    return DeviceRow(*key, len(statuses), free, held, blocked, tainted, unusable, holders)


UNKNOWN_HOLDER = "unknown"
SHARED_GPU = "a shared GPU"
"""The unit where claims share every whole GPU of a node."""
NO_DEVICES = ClusterDevices()


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """GPU units that the pods of a namespace use."""

    namespace: str
    units: int


@dataclass(frozen=True, slots=True)
class Slices:
    """MIG slices of one profile: all of them, and those with free capacity.

    Of slices that are shared, `free` is the least number of slices that the free shares can belong to.
    """

    profile: str
    all: int
    free: int


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """Nodes of one product, driver and sharing.

    `product` is the label of GPU Feature Discovery, or the product name that DRA publishes.
    `unit` is what one unit is: a whole GPU, a time-slice, an MPS share or a MIG slice.
    `units` and `free` count all units but MIG slices that are requested by profile.
    `gpus` are the GPUs behind these units, several of which may be shares of one; MIG slices count as none.
    `slices` are by profile, including those requested as nvidia.com/gpu (MIG strategy single).
    `unhealthy` are the devices that the device plugin withdrew or that health sources report, whichever are more,
    since both may mean the same devices. `not_ready` are the nodes that are not Ready: nothing is free there.
    `held` is ordered by units, most first.
    """

    product: str
    driver: str
    unit: str
    nodes: int
    gpus: int
    units: int
    free: int
    unhealthy: int
    not_ready: int
    held: tuple[NamespaceUsage, ...]
    slices: tuple[Slices, ...]


@dataclass(frozen=True, slots=True)
class InventoryTotal:
    """The sums over all rows."""

    nodes: int
    gpu_nodes: int
    gpus: int
    units: int
    free: int
    unhealthy: int
    not_ready: int
    held: tuple[NamespaceUsage, ...]
    slices: tuple[Slices, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """All rows, ordered by product, driver and unit; their sums; and the devices of ResourceSlices by kind."""

    kinds: tuple[InventoryRow, ...]
    total: InventoryTotal
    devices: tuple[DeviceRow, ...] = ()


class _Counts:
    """The counts of one row while nodes are added."""

    def __init__(self) -> None:
        self.nodes = self.gpus = self.units = self.free = self.unhealthy = self.not_ready = 0
        self.held: Counter[str] = Counter()
        self.slices: Counter[str] = Counter()
        self.free_slices: Counter[str] = Counter()

    def add_elsewhere(self, units: int, used: int, gone: int, gpus: int) -> None:
        """Add the units of a resource by which others give a node's GPUs; `gone` are those that were withdrawn."""
        self.units, self.free = self.units + units, self.free + max(0, units - used)
        self.gpus, self.unhealthy = self.gpus + gpus, self.unhealthy + gone

    def add(self, node: Node, usages: Iterable[GPUUsage], devices: Iterable[DeviceStatus]) -> None:
        """Add a node and what its pods and claims use of it."""
        node_class = node.node_class
        self.nodes += 1
        self.unhealthy += max(node_class.ill, node_class.withdrawn)
        self.not_ready += node.not_ready is not None
        for resource, amount in node_class.offered:
            free = 0 if node.not_ready else max(node.free.units.get(resource, 0), 0)
            profile = profile_of(resource)
            if profile is None:
                self.units, self.free = self.units + amount, self.free + free
                profile = node_class.mig_profile
                self.gpus += node_class.gpus(resource, amount) if profile is None else 0
            if profile is not None:
                self.slices[profile] += node_class.gpus(resource, amount)
                self.free_slices[profile] += node_class.gpus(resource, free)
        self._add_devices(devices, node_class.withdrawn, ready=node.not_ready is None)
        for usage in usages:
            self.held[usage.name.partition("/")[0]] += sum(units for _, units in usage.units)

    def _add_devices(self, devices: Iterable[DeviceStatus], withdrawn: int, ready: bool) -> None:
        """Add the devices of a node of which no device plugin offers any: whole GPUs, and slices that exist."""
        tainted = 0
        for device in devices:
            free = ready and device.state == DeviceAvailability.Free.value
            tainted += device.state == DeviceAvailability.Tainted.value
            if device.kind == "gpu":
                self.gpus, self.units, self.free = self.gpus + 1, self.units + 1, self.free + free
            else:
                self.slices[device.kind] += 1
                self.free_slices[device.kind] += free
            self.held.update(device.namespaces)
        self.unhealthy += max(0, tainted - withdrawn)

    def usage_and_slices(self) -> tuple[tuple[NamespaceUsage, ...], tuple[Slices, ...]]:
        """Return the usage by namespace, most first, and the slices by profile."""
        held = sorted(self.held.items(), key=lambda pair: (-pair[1], pair[0]))
        slices = (Slices(name, count, self.free_slices[name]) for name, count in sorted(self.slices.items()))
        return tuple(NamespaceUsage(name, units) for name, units in held), tuple(slices)


def take_inventory(
    nodes: Mapping[str, Node],
    usages: Mapping[str, Iterable[GPUUsage]],
    products: Products,
    cluster: ClusterDevices = NO_DEVICES,
    families: Families | None = None,
    requested: Mapping[str, Mapping[str, int]] | None = None,
) -> Inventory:
    """Sum up a fleet. `usages` are the GPU usages of bound pods, by node, and `cluster` has the DRA devices.

    `families` tell which resources others give GPUs by; `requested` is what pods request of each resource, by node.
    """
    counts_by_key: dict[tuple[str, str, str], _Counts] = {}
    total = _Counts()
    for name, node in nodes.items():
        if node.has_gpus:
            devices = _own_devices(node, cluster)
            product, driver, unit = inventory_key(node, products)
            whole = [device.shared for device in devices if device.kind == "gpu"]
            key = (product, driver, SHARED_GPU if whole and all(whole) else unit)
            for counts in (counts_by_key.setdefault(key, _Counts()), total):
                counts.add(node, usages.get(name, ()), devices)
        elsewhere = _elsewhere(node, families)
        for resource, (units, gone, row) in elsewhere.items():
            used = (requested or {}).get(name, {}).get(resource, 0)
            counts = counts_by_key.setdefault((resource, UNKNOWN_HOLDER, row.unit), _Counts())
            counts.nodes += 1
            part = products.find(
                resource.partition("/")[2].replace("_", "-")
            )  # of a board, by the name of its vGPU type
            gpus = -(-units * part.milli // WHOLE_MILLI) if part else units // row.per_gpu
            for one in (counts, total):
                one.add_elsewhere(units, used, -(-gone // row.per_gpu), gpus)
        total.nodes += bool(elsewhere) and not node.has_gpus
    rows = (
        InventoryRow(
            *key,
            counts.nodes,
            counts.gpus,
            counts.units,
            counts.free,
            counts.unhealthy,
            counts.not_ready,
            *counts.usage_and_slices(),
        )
        for key, counts in counts_by_key.items()
    )
    sum_of_all = InventoryTotal(
        len(nodes),
        total.nodes,
        total.gpus,
        total.units,
        total.free,
        total.unhealthy,
        total.not_ready,
        *total.usage_and_slices(),
    )
    return Inventory(tuple(sorted(rows, key=lambda row: (row.product, row.driver, row.unit))), sum_of_all)


def _elsewhere(node: Node, families: Families | None) -> Mapping[str, tuple[int, int, GPUsElsewhere]]:
    """List the units of a node of resources by which others give GPUs, those withdrawn, and what a unit is."""
    if families is None:
        return {}
    gone = {resource: units for resource, units, _ in node.node_class.withdrawn_elsewhere}
    units = {**dict.fromkeys(gone, 0), **read_amounts(node.allocatable)}
    rows = ((resource, families.elsewhere(resource)) for resource in units)
    return {
        name: (units[name], gone.get(name, 0), row) for name, row in rows if row and (units[name] > 0 or name in gone)
    }


def _own_devices(node: Node, cluster: ClusterDevices) -> tuple[DeviceStatus, ...]:
    """List the GPUs and the existing slices of a node whose GPUs only a DRA driver gives away."""
    if not node.node_class.claims_only:
        return ()
    return tuple(one for one in devices_of_node(node, cluster) if one.driver.startswith("gpu.") and not one.part)


def inventory_key(node: Node, products: Products) -> tuple[str, str, str]:
    """Return the key of a node's row: (product, driver, unit); of GPUs of several products all are named."""
    node_class = node.node_class
    if node_class.several_models:
        product = _label(normal_form(node.labels.get(PRODUCT, "")), products, node)
        return f"{product} and others", *_driver_and_unit(node_class)
    forms = {form for make in node_class.by_device_variant() if (form := make.product)}
    if forms:
        product = " and ".join(sorted(_label(form, products, node) for form in forms))
    else:
        product = (
            " or ".join(sorted(_label(form, products, node) for form in node_class.possible_products)) or UNKNOWN_HOLDER
        )
    return product, *_driver_and_unit(node_class)


def _driver_and_unit(node_class: NodeClass) -> tuple[str, str]:
    """Name the driver, and the unit of those resources that are not requested by MIG profile."""
    plain = [name for name, _ in node_class.offered if profile_of(name) is None]
    renamed = bool(plain) and all(name.endswith(".shared") for name in plain)
    unit = node_class.renamed_sharing if renamed else node_class.sharing
    return show_driver(node_class.driver) if node_class.driver else UNKNOWN_HOLDER, unit.value


def _label(form: str, products: Products, node: Node) -> str:
    """Write a product as the table has it; one that is not in the table as the node's own label has it, if it does."""
    if (row := products.by_form.get(form)) is not None:
        return row.label.removeprefix("NVIDIA-")
    start = (label := node.labels.get(PRODUCT, "")).lower().find(form)
    return label[start : start + len(form)] if start >= 0 else form
