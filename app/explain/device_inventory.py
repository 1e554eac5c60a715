# SPDX-License-Identifier: Apache-2.0
"""The devices of ResourceSlices: what becomes of each, and sums by driver, product and kind.

A device is free where a claim can get it now. Devices that are parts of one GPU count each by itself, as the driver
publishes them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from app.dra.capacity import lacking
from app.dra.classes import untolerated
from app.dra.cluster_devices import ClusterDevices
from app.dra.counters import PoolCounters
from app.dra.devices import Device
from app.dra.pools import Pool
from app.explain.claim_funnel import holder_names, show_taint
from app.nodes.model import Node

NO_PRODUCT = "unknown"


class DeviceState(Enum):
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
        yield from (_status(device, DeviceState.NotUsable, because) for one in slices for device in one.devices)
        return
    counters = PoolCounters(pool, cluster.allocated)
    for device in pool.devices:
        yield _of_device(device, counters, cluster)


def _of_device(device: Device, counters: PoolCounters, cluster: ClusterDevices) -> DeviceStatus:
    holders = cluster.allocated.holders(device.id)
    used = cluster.allocated.used(device.id)
    namespaces = tuple(sorted({key.partition("/")[0] for key in holders}))
    if holders and not (device.allow_multiple_allocations and lacking(device, None, used) is None):
        return _status(device, DeviceState.Held, ", ".join(holder_names(cluster, device)), namespaces)
    taint = untolerated(device, cluster.taint_rules, ())
    if taint is not None:
        return _status(device, DeviceState.Tainted, show_taint(taint))
    missing = counters.lacking(device) if device.counters else None
    if missing is not None and not holders:
        return _status(device, DeviceState.Blocked, f"too little is left of {missing[1]} of {missing[0]}")
    return _status(device, DeviceState.Free, "", namespaces)


def _status(device: Device, state: DeviceState, because: str, namespaces: tuple[str, ...] = ()) -> DeviceStatus:
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
    free, held, blocked, tainted, unusable = (states[state.value] for state in DeviceState)
    return DeviceRow(*key, len(statuses), free, held, blocked, tainted, unusable, holders)
