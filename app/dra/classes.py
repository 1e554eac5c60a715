# SPDX-License-Identifier: Apache-2.0
"""DeviceClasses with their selectors, and DeviceTaintRules, which taint devices from outside of their slices."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.dra.claims import DeviceToleration
from app.dra.devices import Device, DeviceTaint

BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects that keep devices from being allocated; others, None among them, are for information (KEP-5055)."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass: CEL expressions that all hold for its devices, and the extended resource that it serves, or "".

    `created` is its creationTimestamp, which decides between classes that serve one resource; "" where it has none.
    """

    name: str
    selectors: tuple[str, ...] = ()
    extended_resource: str = ""
    created: str = ""


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """A taint for the devices of a driver, a pool, a name; None of the three restricts nothing (tracker.go).

    `partly_read` says that it selects devices by more than that, as the alpha versions can by class and by CEL.
    """

    name: str
    taint: DeviceTaint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    partly_read: bool = False

    def applies(self, device: Device) -> bool:
        """Tell whether the rule taints a device; a rule that is read in part taints none."""
        wanted = ((self.driver, device.driver), (self.pool, device.pool), (self.device, device.name))
        return not self.partly_read and all(want is None or want == value for want, value in wanted)


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Tell whether a toleration covers a taint (resourceclaim/devicetoleration.go ToleratesTaint)."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.operator == "Equal" and toleration.value == taint.value)


def untolerated(
    device: Device, rules: Iterable[DeviceTaintRule], tolerations: Iterable[DeviceToleration]
) -> DeviceTaint | None:
    """Return the first taint, its own or of a rule, that keeps a device from being allocated; None if none does."""
    by_rules = (rule.taint for rule in rules if rule.applies(device))
    blocking = (taint for taint in (*device.taints, *by_rules) if taint.effect in BLOCKING_EFFECTS)
    accepted = tuple(tolerations)
    return next((taint for taint in blocking if not any(tolerates(toleration, taint) for toleration in accepted)), None)
