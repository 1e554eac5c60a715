# SPDX-License-Identifier: Apache-2.0
"""Counts devices, what is allocated of them, and pools, by driver; kept with every change, for the metrics."""

from collections import Counter
from collections.abc import Collection, Iterable

from app.dra.cluster_devices import PoolID
from app.kube.devices import BLOCKING_EFFECTS, ResourceSlice
from app.kube.resource_claims import ResourceClaim

DRIVERS = ("gpu.nvidia.com", "compute-domain.nvidia.com", "gpu.amd.com", "gpu.intel.com", "other")
"""The values of the label `driver`: drivers of GPUs that publish ResourceSlices, and all others together."""
DEVICE_STATES = ("published", "tainted", "allocated")
POOL_STATES = ("complete", "incomplete")
Count = tuple[str, str]
"""A driver of DRIVERS, and a state."""


class DeviceCounts:
    """The number of devices by driver and DEVICE_STATES, and of pools by driver and POOL_STATES.

    `published` devices are of the newest generation of a pool; `tainted` are those of them that their driver taints
    with an effect that keeps claims away (taints of DeviceTaintRules are not counted). `allocated` counts the devices
    of each claim, so that a device of which two claims have shares counts twice.
    """

    def __init__(self) -> None:
        self.devices: Counter[Count] = Counter()
        self.pools: Counter[Count] = Counter()
        self._of_pool: dict[PoolID, tuple[Counter[Count], Count]] = {}
        self._of_claim: dict[str, Counter[Count]] = {}

    def put_pool(self, pool: PoolID, slices: Iterable[ResourceSlice]) -> None:
        """Count a pool anew, from all slices that it has now; it is gone where there are none."""
        devices, state = self._of_pool.pop(pool, (None, None))
        if devices is not None and state is not None:
            self.devices -= devices
            self.pools[state] -= 1
        if present := list(slices):
            driver = label_of(pool[0])
            newest = _newest(present)
            state = driver, "complete" if len(newest) == newest[0].size else "incomplete"
            devices = _count(driver, newest)
            self.devices += devices
            self.pools[state] += 1
            self._of_pool[pool] = devices, state

    def put_claim(self, claim: ResourceClaim) -> None:
        """Count the devices of a claim anew."""
        self.drop_claim(claim.key)
        if claim.allocation is not None:
            allocated = Counter((label_of(result.device[0]), "allocated") for result in claim.allocation.results)
            self.devices += allocated
            self._of_claim[claim.key] = allocated

    def drop_claim(self, key: str) -> None:
        """Count the devices of a claim, by namespace/name, no more."""
        self.devices -= self._of_claim.pop(key, Counter())


def label_of(driver: str) -> str:
    """Return the value of the label `driver` for a driver."""
    return driver if driver in DRIVERS else "other"


def _newest(slices: Collection[ResourceSlice]) -> list[ResourceSlice]:
    generation = max(one.generation for one in slices)
    return [one for one in slices if one.generation == generation]


def _count(driver: str, slices: Iterable[ResourceSlice]) -> Counter[Count]:
    devices = [device for one in slices for device in one.devices]
    tainted = sum(any(taint.effect in BLOCKING_EFFECTS for taint in device.taints) for device in devices)
    return Counter({(driver, "published"): len(devices), (driver, "tainted"): tainted})
