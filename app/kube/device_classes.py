# SPDX-License-Identifier: Apache-2.0
"""DeviceClasses as last seen: the GPUs that they give, and the extended resources by which they are asked for.

A part of State, and of the doctor (S13, F135).
"""

from collections.abc import Iterable

from app.knowledge.families import Families, Family
from app.kube.resource_slices import DeviceClass


class DeviceClassIndex:
    """DeviceClasses by name, and by the extended resource that they serve."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._by_name: dict[str, DeviceClass] = {}
        self._serving: dict[str, str] = {}

    def put(self, found: DeviceClass) -> bool:
        """Take a DeviceClass in; tells whether it is new or changed."""
        if self._by_name.get(found.name) == found:
            return False
        self._by_name[found.name] = found
        self._index()
        return True

    def drop(self, name: str) -> bool:
        """Forget a DeviceClass; tells whether it was known."""
        if self._by_name.pop(name, None) is None:
            return False
        self._index()
        return True

    def all(self) -> Iterable[DeviceClass]:
        """List them."""
        return self._by_name.values()

    def family(self, name: str) -> Family | None:
        """Find the family of a DeviceClass: by its name, its driver, or the extended resource that it serves."""
        known, families = self._by_name.get(name), self._families
        if known is None:
            return families.of_device_class(name)
        by_words = families.of_device_class(name) or families.of_device_class(known.driver or "")
        return by_words or families.of(known.resource or "")

    def serving(self, resource: str) -> str | None:
        """Name the DeviceClass by which a resource is served; None for a vendor's own, which is read from nodes."""
        if "/" not in resource or self._families.of(resource) is not None:
            return None
        return self._families.implicit_class(resource) or self._serving.get(resource)

    def _index(self) -> None:
        """Find who serves what; of several that serve one resource, the first by name that gives GPUs."""
        classes = sorted(self._by_name.values(), key=lambda each: each.name, reverse=True)
        classes.sort(key=lambda each: self.family(each.name) is not None)
        self._serving = {each.resource: each.name for each in classes if each.resource}
