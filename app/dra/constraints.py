# SPDX-License-Identifier: Apache-2.0
"""Constraints over the devices of a claim while it is being allocated: one value for all, or another for each.

The rules are those of matchAttributeConstraint and distinctAttributeConstraint in
dynamic-resource-allocation/structured/internal/incubating (allocator_incubating.go, constraint.go), with lists of
values as types of their own that never match, since kube-scheduler v1.36 does not enable them in its allocator.
"""

from app.kube.devices import Attribute, Device, same
from app.kube.resource_claims import Constraint, DeviceRequest


class ConstraintState:
    """One constraint with the values of the devices that were added, in their order.

    kube-scheduler keeps the values of distinctAttribute by request: a request's later device replaces the value of its
    earlier one, so that two devices of one request are compared with the last one only, and a device that is removed
    again takes the value of its request with it.
    """

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self._count = 0
        self._value: Attribute | None = None
        self._by_request: dict[str, Attribute] = {}

    def add(self, request: DeviceRequest, device: Device) -> bool:
        """Add a device if it satisfies the constraint; the result tells whether it does."""
        if not self.constraint.covers(request):
            return True
        value = device.attributes.get(self.constraint.attribute)
        if value is None or (self._count and not self._fits(value)):
            return False
        if self.constraint.distinct:
            self._by_request[request.parent] = value
        elif not self._count:
            self._value = value
        self._count += 1
        return True

    def remove(self, request: DeviceRequest) -> None:
        """Remove the device of a request that was added last."""
        if self.constraint.covers(request):
            self._by_request.pop(request.parent, None)
            self._count -= 1

    def _fits(self, value: Attribute) -> bool:
        if not self.constraint.distinct:
            return self._value is not None and same(value, self._value)
        if isinstance(value, tuple):
            return not self._by_request
        return not any(same(value, other) for other in self._by_request.values())
