# SPDX-License-Identifier: Apache-2.0
"""An index of the cluster's DeviceClasses: the GPU family of each, and the extended resource that it serves.

The cluster state and the doctor each keep one (S13, F135).
"""

from collections.abc import Iterable

from app.knowledge.gpu_resources import Families, Family
from app.kube.resource_slices import DeviceClass


class DeviceClassIndex:
    """DeviceClasses by name, and by the extended resource that each serves (KEP-5004)."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._by_name: dict[str, DeviceClass] = {}
        self._serving: dict[str, str] = {}

    def put(self, device_class: DeviceClass) -> bool:
        """Store a DeviceClass; the result is True if it is new or has changed."""
        if self._by_name.get(device_class.name) == device_class:
            return False
        self._by_name[device_class.name] = device_class
        self._index()
        return True

    def drop(self, name: str) -> bool:
        """Remove a DeviceClass; the result is True if it was in the index."""
        if self._by_name.pop(name, None) is None:
            return False
        self._index()
        return True

    def all(self) -> Iterable[DeviceClass]:
        """List the DeviceClasses of the index."""
        return self._by_name.values()

    def family(self, name: str) -> Family | None:
        """Find the GPU family of a DeviceClass by its name, its driver, or the extended resource that it serves.

        None for a DeviceClass that gives no GPUs, or of which none of the three is known.
        """
        device_class, families = self._by_name.get(name), self._families
        if device_class is None:
            return families.of_device_class(name)
        by_name = families.of_device_class(name) or families.of_device_class(device_class.driver or "")
        return by_name or families.of(device_class.resource or "")

    def of_family(self, family: Family) -> set[str]:
        """Name the DeviceClasses that give GPUs of a family, and those that its driver's chart installs."""
        return {*family.device_classes, *(name for name in self._by_name if self.family(name) is family)}

    def may_give_gpus(self, name: str) -> bool:
        """Tell whether a DeviceClass gives GPUs, or whether that cannot be told; False if it names another driver."""
        device_class = self._by_name.get(name)
        return device_class is None or device_class.driver is None or self.family(name) is not None

    def serving(self, resource: str) -> str | None:
        """Name the DeviceClass that serves an extended resource; None if there is none.

        It is None also for a resource of a GPU vendor, since each node shows who serves that one: its device plugin by
        allocatable, or the DRA driver by ResourceSlices.
        """
        if "/" not in resource or self._families.of(resource) is not None:
            return None
        return self._families.implicit_class(resource) or self._serving.get(resource)

    def _index(self) -> None:
        """Index by extended resource; of several DeviceClasses for one, the first by name that gives GPUs counts.

        Later entries of a dict replace earlier ones, so that the preferred DeviceClass is sorted last.
        """
        classes = sorted(self._by_name.values(), key=lambda device_class: device_class.name, reverse=True)
        classes.sort(key=lambda device_class: self.family(device_class.name) is not None)
        self._serving = {device_class.resource: device_class.name for device_class in classes if device_class.resource}
