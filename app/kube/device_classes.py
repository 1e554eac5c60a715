# SPDX-License-Identifier: Apache-2.0
"""DeviceClasses, DeviceTaintRules, and an index of the classes: the GPU family and the resource of each.

The cluster state and the doctor each keep such an index.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from app.knowledge.gpu_resources import Families, Family
from app.kube.device_models import DeviceModel
from app.kube.devices import BLOCKING_EFFECTS, Device, DeviceTaint
from app.kube.records import KubeObject, Metadata, Record
from app.kube.resource_claims import DeviceToleration, Expressions

_TYPE = re.compile(r"""\.type\s*==\s*['"](gpu|mig)['"]""")
"""The device type in a CEL selector, as in `device.attributes['gpu.nvidia.com'].type == 'mig'`
(NVIDIA/k8s-dra-driver-gpu deployments/helm, deviceclass-*.yaml). Only kube-scheduler evaluates other expressions."""
_DRIVER = re.compile(r"""device\.driver\s*==\s*['"]([a-z0-9.-]+)['"]""")


@lru_cache(1024)
def _match(pattern: re.Pattern[str], selectors: tuple[str, ...]) -> str | None:
    return next((match[1] for match in map(pattern.search, selectors) if match), None)


class _ClassMetadata(Metadata, frozen=True):
    creation_timestamp: str = ""


class _ClassSpec(Record, frozen=True):
    selectors: Expressions = Expressions()
    extended_resource_name: str = ""


class DeviceClass(KubeObject, frozen=True):
    """A DeviceClass: CEL expressions that all hold for its devices, and the extended resource that it serves, or ""."""

    metadata: _ClassMetadata = _ClassMetadata()
    spec: _ClassSpec = _ClassSpec()

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.metadata.name

    @property
    def created(self) -> str:
        """When it was created, which decides between classes that serve one resource; "" where that is not known."""
        return self.metadata.creation_timestamp

    @property
    def selectors(self) -> tuple[str, ...]:
        """The expressions."""
        return self.spec.selectors

    @property
    def extended_resource(self) -> str:
        """The extended resource that the class serves, or ""."""
        return self.spec.extended_resource_name

    @property
    def type(self) -> str | None:
        """The type that a selector names, gpu or mig; None unless it has the form that NVIDIA's chart writes."""
        return _match(_TYPE, self.selectors)

    @property
    def driver(self) -> str | None:
        """The DRA driver that a selector names; None unless it has that form."""
        return _match(_DRIVER, self.selectors)

    def selects(self, model: DeviceModel) -> bool:
        """Tell whether the class selects devices of a model, as far as its type says; no other selector is read."""
        return self.type is None or self.type == ("mig" if model.mig_profile else "gpu")


class _RuleSpec(Record, frozen=True):
    taint: DeviceTaint = DeviceTaint()
    device_selector: dict[str, str | list[Any] | None] | None = None


class DeviceTaintRule(KubeObject, frozen=True):
    """A taint for the devices of a driver, a pool, a name; what is not set restricts nothing (tracker.go).

    One that selects devices by more, as the alpha versions can by class and by CEL, taints none here.
    """

    spec: _RuleSpec = _RuleSpec()

    @property
    def selector(self) -> Mapping[str, Any]:
        """What it selects devices by."""
        return {key: value for key, value in (self.spec.device_selector or {}).items() if value is not None}

    def applies(self, device: Device) -> bool:
        """Tell whether the rule taints a device."""
        of_device = {"driver": device.driver, "pool": device.pool, "device": device.name}
        return self.selector.items() <= of_device.items()


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Tell whether a toleration covers a taint (resourceclaim/devicetoleration.go ToleratesTaint)."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and toleration.value == taint.value)


def untolerated(
    device: Device, rules: Iterable[DeviceTaintRule], tolerations: Iterable[DeviceToleration]
) -> DeviceTaint | None:
    """Return the first taint, its own or of a rule, that keeps a device from being allocated; None if none does."""
    by_rules = (rule.spec.taint for rule in rules if rule.applies(device))
    blocking = (taint for taint in (*device.taints, *by_rules) if taint.effect in BLOCKING_EFFECTS)
    accepted = tuple(tolerations)
    return next((taint for taint in blocking if not any(tolerates(toleration, taint) for toleration in accepted)), None)


class DeviceClassIndex:
    """DeviceClasses by name, and their names by the extended resource that each serves."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self.by_name: dict[str, DeviceClass] = {}
        self.by_resource: dict[str, str] = {}

    def put(self, device_class: DeviceClass) -> bool:
        """Store a DeviceClass; the result is True if it is new or has changed."""
        before = self.by_name.get(device_class.name)
        if before and (before.spec, before.created) == (device_class.spec, device_class.created):
            return False
        self.by_name[device_class.name] = device_class
        self._index()
        return True

    def drop(self, name: str) -> bool:
        """Remove a DeviceClass; the result is True if it was in the index."""
        if self.by_name.pop(name, None) is None:
            return False
        self._index()
        return True

    def family(self, name: str) -> Family | None:
        """Find the GPU family of a DeviceClass by its name, its driver, or the extended resource that it serves.

        None for a DeviceClass that gives no GPUs, or of which none of the three is known.
        """
        device_class, families = self.by_name.get(name), self._families
        if device_class is None:
            return families.of_device_class(name)
        by_name = families.of_device_class(name) or families.of_device_class(device_class.driver or "")
        return by_name or families.of(device_class.extended_resource)

    def of_family(self, family: Family) -> set[str]:
        """Name the DeviceClasses that give GPUs of a family, and those that its driver's chart installs."""
        return {*family.device_classes, *(name for name in self.by_name if self.family(name) is family)}

    def may_give_gpus(self, name: str) -> bool:
        """Tell whether a DeviceClass may give GPUs: not if it names the driver of other devices."""
        device_class = self.by_name.get(name)
        return device_class is None or device_class.driver is None or self.family(name) is not None

    def serving(self, resource: str) -> str | None:
        """Name the DeviceClass that serves an extended resource; None if there is none.

        It is None also for a resource of a GPU vendor, since each node shows who serves that one: its device plugin by
        allocatable, or the DRA driver by ResourceSlices.
        """
        if "/" not in resource or self._families.of(resource) is not None:
            return None
        return self._families.implicit_class(resource) or self.by_resource.get(resource)

    def _index(self) -> None:
        """Index by extended resource; of several DeviceClasses for one, the first by name that gives GPUs counts.

        Later entries of a dict replace earlier ones, so that the preferred DeviceClass is sorted last.
        """
        classes = sorted(self.by_name.values(), key=lambda device_class: device_class.name, reverse=True)
        classes.sort(key=lambda device_class: self.family(device_class.name) is not None)
        self.by_resource = {
            device_class.extended_resource: device_class.name
            for device_class in classes
            if device_class.extended_resource
        }
