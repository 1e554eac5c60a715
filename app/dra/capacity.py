# SPDX-License-Identifier: Apache-2.0
"""Consumable capacity: how much of a device an allocation takes, and whether that much is left.

The rules are those of dynamic-resource-allocation/structured/internal/incubating/consumable_capacity.go. They hold for
devices that have only one allocation at a time as well: there a requested amount is the least that the device has.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

from app.kube.devices import NOTHING, CapacityPolicy, Device

NO_POLICY = CapacityPolicy()


def consumption(device: Device, requested: Mapping[str, Fraction] | None) -> dict[str, Fraction]:
    """Return what one allocation consumes of each capacity of a device; it need not be there, nor be allowed."""
    wanted = requested or NOTHING
    return {name: _consumed(device, name, total, wanted.get(name)) for name, total in device.amounts.items()}


def _consumed(device: Device, name: str, total: Fraction, wanted: Fraction | None) -> Fraction:
    policy = (device.policies or {}).get(name, NO_POLICY)
    if wanted is None:
        return total if policy.default is None else policy.default
    if policy.minimum is not None:
        return _rounded_up(wanted, policy.minimum, policy.step)
    return next((value for value in policy.values if wanted <= value), wanted)


def _rounded_up(wanted: Fraction, minimum: Fraction, step: Fraction | None) -> Fraction:
    """Round up to the minimum and a multiple of the step, which are counted in whole units (Quantity.Value)."""
    if wanted < minimum:
        return minimum
    if not step:
        return wanted
    return Fraction(ceil(minimum) + ceil(step) * -(-(ceil(wanted) - ceil(minimum)) // ceil(step)))


def allowed(device: Device, name: str, amount: Fraction) -> bool:
    """Tell whether the policy of a capacity allows an amount."""
    policy = (device.policies or {}).get(name, NO_POLICY)
    if policy.default is not None and amount == policy.default:
        return True
    if policy.minimum is not None or policy.maximum is not None or policy.step is not None:
        over = policy.maximum is not None and amount > policy.maximum
        return not over and not (policy.step and (ceil(amount) - ceil(policy.minimum or 0)) % ceil(policy.step))
    return not policy.values or amount in policy.values


def lacking(
    device: Device,
    requested: Mapping[str, Fraction] | None,
    used: Mapping[str, Fraction] = NOTHING,
    taking: Mapping[str, Fraction] = NOTHING,
) -> str | None:
    """Name a capacity of which a device has not enough left, or that it does not have; None if all will do.

    `used` is what claims have of the device, and `taking` what the allocation under way has taken of it so far.
    """
    unknown = next((name for name in requested or () if name not in device.amounts), None)
    if unknown is not None:
        return unknown
    for name, amount in consumption(device, requested).items():
        left = device.amounts[name] - used.get(name, 0) - taking.get(name, 0)
        if not allowed(device, name, amount) or amount > left:
            return name
    return None
