# SPDX-License-Identifier: Apache-2.0
"""How far each device of a node gets with a request: of the class, selected, reachable, untainted, free, enough left.

The stages are in the order in which a person would ask; the allocator's own order gives the same devices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from app.dra.cluster_devices import ClusterDevices, Pool
from app.dra.counters import PoolCounters, lacking
from app.dra.selectors import Selection
from app.kube.device_classes import untolerated
from app.kube.devices import Device, DeviceTaint
from app.kube.resource_claims import ALL, DeviceRequest
from app.nodes.model import Node


class StageKind(Enum):
    """What a stage asks about a device."""

    CLASS = "of DeviceClass"
    SELECTOR = "selected"
    NODE = "reachable from the node"
    TAINT = "not tainted"
    ALLOCATED = "not allocated"
    CAPACITY = "enough capacity left"
    COUNTERS = "enough of its GPU left"


@dataclass(frozen=True, slots=True)
class DeviceStage:
    """One stage of a request; `selector` is the expression of a SELECTOR."""

    kind: StageKind
    selector: str = ""


AFTER_SELECTION = (
    DeviceStage(StageKind.NODE),
    DeviceStage(StageKind.TAINT),
    DeviceStage(StageKind.ALLOCATED),
    DeviceStage(StageKind.CAPACITY),
    DeviceStage(StageKind.COUNTERS),
)


def stages_of(request: DeviceRequest) -> tuple[DeviceStage, ...]:
    """List the stages of a request."""
    selectors = (DeviceStage(StageKind.SELECTOR, expression) for expression in request.selectors)
    return (DeviceStage(StageKind.CLASS), *selectors, *AFTER_SELECTION)


class NodeDevices:
    """The devices of one node and what one request makes of each of them."""

    def __init__(self, node: Node, cluster: ClusterDevices, selection: Selection) -> None:
        self._node, self._cluster, self._selection = node, cluster, selection
        self.pools: tuple[Pool, ...] = cluster.pools.pools(node)
        self._counters: dict[tuple[str, str], PoolCounters] = {}

    @property
    def devices(self) -> Iterator[Device]:
        """The devices of the pools from which devices are allocated."""
        return (device for pool in self.pools if not (pool.incomplete or pool.invalid) for device in pool.devices)

    def stops(self, request: DeviceRequest) -> Iterator[tuple[Device, int]]:
        """List each device with the index of the stage that stops it; len(stages_of(request)) for one that is left.

        Raises ClaimError, NotJudged.
        """
        for device in self.devices:
            yield device, self._stop(request, device)

    def _stop(self, request: DeviceRequest, device: Device) -> int:
        device_class = self._cluster.classes.get(request.device_class)
        if device_class is None or not self._selection.test_all(device_class.selectors, device):
            return 0
        for index, expression in enumerate(request.selectors, 1):
            if not self._selection.test(expression, device):
                return index
        tests = self._after_selection(request, device)
        first = 1 + len(request.selectors)
        return next((first + index for index, passes in enumerate(tests) if not passes), first + len(AFTER_SELECTION))

    def _after_selection(self, request: DeviceRequest, device: Device) -> Iterator[bool]:
        """Test the stages of AFTER_SELECTION, in their order."""
        allocated = self._cluster.allocated
        yield not device.names_nodes or device.selects(self._node)
        yield self.taint(request, device) is None
        yield request.admin_access or device.id not in allocated.alone
        yield lacking(device, request.capacity, allocated.used(device.id)) is None
        yield not device.counters or allocated.shared(device.id) or self._enough_counters(device)

    def taint(self, request: DeviceRequest, device: Device) -> DeviceTaint | None:
        """Return the taint of a device that a request does not tolerate; None if there is none."""
        return untolerated(device, self._cluster.taint_rules, request.tolerations)

    def _enough_counters(self, device: Device) -> bool:
        pool_id = device.driver, device.pool
        if pool_id not in self._counters:
            pool = next(pool for pool in self.pools if pool.id == pool_id)
            self._counters[pool_id] = PoolCounters(pool, self._cluster.allocated)
        return self._counters[pool_id].lacking(device) is None


def bottleneck(request: DeviceRequest, stops: Sequence[int]) -> int | None:
    """Return the index of the first stage after which too few devices are left; None if enough are left after all.

    A request for all devices needs each that is selected, and at least one.
    """
    stages = stages_of(request)
    selected = 1 + len(request.selectors)
    wanted = request.count
    if request.mode == ALL:
        wanted = max(1, sum(stop > selected for stop in stops))
    return next((index for index in range(len(stages)) if sum(stop > index for stop in stops) < wanted), None)
