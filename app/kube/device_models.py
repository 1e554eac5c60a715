# SPDX-License-Identifier: Apache-2.0
"""The attributes and capacities of devices, and what they say of a GPU: product, driver, memory, MIG profile.

Devices of one product have the same capacities and the same model, and share one object of each. Attribute names are
those of NVIDIA's driver (NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go, mig.go, partitions.go), and of
the drivers of AMD and Intel (ROCm/k8s-gpu-dra-driver, intel/intel-resource-drivers-for-kubernetes).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from operator import itemgetter
from sys import intern
from typing import Annotated, Any, cast

from msgspec import Meta

from app.kube.records import Record, nested, quantity
from app.values.errors import VersionError
from app.values.json_members import json_type
from app.values.versions import Version, parse_version

NVIDIA_DRIVER = "gpu.nvidia.com"
NVIDIA_DOMAIN = f"{NVIDIA_DRIVER}/"
GPU_DRIVER = "gpu."
"""A driver of GPUs is named after its vendor's domain with this before it: gpu.amd.com, gpu.intel.com."""
MEMORY_SLICE = "memory-slice-"
"""The prefix of the counters for the memory slices of a GPU. A MIG device that is created on demand consumes the
counters of the memory slices that it occupies (KEP-4815; partitions.go)."""
PLACEMENT_CAPACITIES = (f"{NVIDIA_DOMAIN}memorySlice", f"{NVIDIA_DOMAIN}{MEMORY_SLICE}")
"""Prefixes of capacities that say where on its GPU a MIG device is (deviceinfo.go MigDeviceInfo.GetDevice)."""
MOST_ENTRIES = 64
"""Attributes, capacities or counters of a device. Kubernetes allows 32 attributes and capacities together, and 32
counters (types.go ResourceSliceMaxAttributesAndCapacitiesPerDevice); a guess at what later versions may allow."""
MODEL_ATTRIBUTES = ("type", "productName", "cudaComputeCapability", "driverVersion", "cudaDriverVersion", "profile",
                    "model", "partitionProfile", "brand", "architecture", "addressingMode")  # fmt: skip
"""What drivers publish of the model of a GPU; the other attributes identify the device, or say where it is
(deviceinfo.go GetDevice)."""
MODELS_KEPT = 1 << 13
"""Combinations of attributes and capacities that are kept; a fleet has dozens of models. A guess, not measured."""


class SemanticVersion(Record, frozen=True):
    """A version as semver 2.0.0 writes it; constraints compare its text, selectors its precedence."""

    text: str

    def __str__(self) -> str:
        return self.text


Attribute = bool | int | str | SemanticVersion | tuple[object, ...]
"""The value of an attribute; a tuple is a list of values (feature gate DRAListTypeAttributes, alpha)."""


class _Layout:
    """The names of a device's attributes, with the domain, by their position among the values.

    `of_model` takes the values of MODEL_ATTRIBUTES, and `of_gpu` those by which a GPU is known; None, the last value of
    each device, for those that are not there.
    """

    def __init__(self, driver: str, names: tuple[str, ...]) -> None:
        """Number the names; one without a domain has that of the driver (types.go QualifiedName).

        Names with a domain win over the same name without it, as in the allocator.
        """
        self.names = names
        order = sorted(enumerate(names), key=lambda entry: "/" in entry[1])
        self.positions = {intern(name if "/" in name else f"{driver}/{name}"): position for position, name in order}
        self.of_model, self.of_gpu = (
            itemgetter(*(self.positions.get(f"{driver}/{name}", -1) for name in wanted))
            for wanted in (MODEL_ATTRIBUTES, ("parentUUID", "uuid"))
        )


_layout = lru_cache(1024)(_Layout)


class Attributes(Mapping[str, Attribute]):
    """The attributes of one device; devices with the same names share them, which takes a third of what a dict does."""

    __slots__ = ("_layout", "_values")

    def __init__(self, names: tuple[str, ...], values: tuple[Attribute | None, ...], driver: str = "") -> None:
        self._layout, self._values = _layout(driver, names), (*values, None)

    @classmethod
    def from_json(cls, entries: object) -> "Attributes":
        """Read the attributes of a device, whose driver is not known yet. Raises ValueError."""
        items = _entries(entries)
        values = tuple([
            intern(text) if type(item) is dict and type(text := item.get("string")) is str else _attribute(item)
            for item in items.values()
        ])  # fmt: skip
        if not any([value is None for value in values]):  # noqa: C419  "in" compares versions
            return cls(tuple(items), values)
        known = {name: value for name, value in zip(items, values, strict=True) if value is not None}
        return cls(tuple(known), tuple(known.values()))

    def set_driver(self, driver: str) -> tuple[Any, ...]:
        """Give names without a domain that of the driver; return the values of MODEL_ATTRIBUTES."""
        self._layout = _layout(driver, self._layout.names)
        return cast("tuple[Any, ...]", self._layout.of_model(self._values))

    def gpu_uuid(self) -> str | None:
        """Return the UUID of the GPU that a device is, or is a part of; None where its driver publishes none."""
        parent, uuid = self._layout.of_gpu(self._values)
        return _text(parent) or _text(uuid)

    def __getitem__(self, name: str) -> Attribute:
        return cast("Attribute", self._values[self._layout.positions[name]])

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute; `default` for one that is not there."""
        position = self._layout.positions.get(name)
        return default if position is None else self._values[position]

    def __contains__(self, name: object) -> bool:
        return name in self._layout.positions

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.positions)

    def __len__(self) -> int:
        return len(self._layout.positions)


def _entries(entries: object) -> Mapping[str, Any]:
    """Raise ValueError unless this is a map with no more entries than are read, or null."""
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise ValueError(f"got {json_type(entries)}, wants an object")
    if len(entries) > MOST_ENTRIES:
        raise ValueError(f"got {len(entries)} entries, wants at most {MOST_ENTRIES}")
    return entries


def _attribute(item: object) -> Attribute | None:
    """Read an attribute that is no text; None for a type that is not known, which no constraint can match."""
    if type(item) is not dict:
        return None
    if type(version := item.get("version")) is str:
        return _semantic_version(version)
    for name, kind in (("bool", bool), ("int", int)):
        if type(value := item.get(name)) is kind:
            return value
    lists = (item.get(name) for name in ("bools", "ints", "strings", "versions"))
    plain = (values for values in lists if isinstance(values, list) and values)
    return next((tuple(values) for values in plain if all(isinstance(one, str | int) for one in values)), None)


_semantic_version = lru_cache(4096)(SemanticVersion)


class ValidRange(Record, frozen=True):
    """The amounts that a policy allows: from `min` to `max`, in multiples of `step`; None where it does not say."""

    min: Fraction | None = None
    max: Fraction | None = None
    step: Fraction | None = None


class CapacityPolicy(Record, frozen=True):
    """How a capacity is consumed by one of several allocations of its device.

    `default` is consumed where a claim names no amount; None for the whole capacity. An amount is rounded up to the
    next of `valid_values`, or to the minimum of `valid_range` plus a multiple of its step.
    """

    default: Fraction | None = None
    valid_values: Annotated[tuple[Fraction, ...], Meta(max_length=MOST_ENTRIES)] = ()
    valid_range: ValidRange = ValidRange()


Entry = tuple[str, str | int | Fraction, CapacityPolicy | None]
"""The name of a capacity or a counter, its amount as written, and its policy."""


class Amounts(dict[str, Fraction]):
    """Capacities or counters by the names as written, and the policies of those that have one.

    Names with a domain are last. `of_model` are the entries that are the same for all devices of a model. Equal amounts
    are one object, which is read only.
    """

    __slots__ = ("of_model", "policies")

    def __init__(self, entries: tuple[Entry, ...] = ()) -> None:
        """Parse amounts. Raises ValueError."""
        super().__init__()
        entries = tuple(sorted(entries, key=lambda entry: "/" in entry[0]))
        for name, amount, _ in entries:
            try:
                self[intern(name)] = quantity(amount)
            except ValueError as error:
                raise ValueError(f"[{name[:80]}]: {error}") from error
        self.policies = {name: policy for name, _, policy in entries if policy is not None}
        self.of_model = tuple(sorted(entry for entry in entries if is_of_model(with_domain(entry[0]))))

    @classmethod
    def from_json(cls, entries: object) -> "Amounts":
        """Read quantities by name: as `{value: …, requestPolicy: …}`, or as plain quantities. Raises ValueError."""
        return _shared_amounts(tuple([_entry(name, item) for name, item in _entries(entries).items()]))


def with_domain(name: str) -> str:
    """Give a name without a domain that of NVIDIA's driver."""
    return name if "/" in name else NVIDIA_DOMAIN + name


def is_of_model(capacity: str) -> bool:
    """Tell whether a capacity of NVIDIA's driver is the same for all devices of a model."""
    return capacity.startswith(NVIDIA_DOMAIN) and not capacity.startswith(PLACEMENT_CAPACITIES)


_shared_amounts = lru_cache(4096)(Amounts)
NOTHING = Amounts()


def _entry(name: str, item: object) -> Entry:
    policy = None
    if isinstance(item, dict):
        written, item = item.get("requestPolicy"), item.get("value")
        if written is not None:
            try:
                policy = nested(CapacityPolicy, written)
            except ValueError as error:
                raise ValueError(f"[{name[:80]}].requestPolicy{error}") from error
    if isinstance(item, str) or (isinstance(item, int) and not isinstance(item, bool)):
        return name, item, policy
    raise ValueError(f"[{name[:80]}]: got {json_type(item)}, wants a quantity")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceModel:
    """What devices of one model have in common; two are equal only if they are the same object.

    Facts that are None are unknown. `label` is the product as GPU Feature Discovery writes it, `partition` is AMD's
    partition of compute and memory. It is no GPU (`is_gpu`) for filters if its driver is not named as drivers of GPUs
    are, or if it is passed through to virtual machines, since no container can use it.
    """

    label: str | None = None
    driver: Version | None = None
    cuda: Version | None = None
    compute_capability: Version | None = None
    memory_mib: int | None = None
    mig_profile: str | None = None
    partition: str | None = None
    is_gpu: bool = True

    @property
    def facts(self) -> tuple[Any, ...]:
        """The facts by which filters judge NVIDIA's devices."""
        return self.label, self.driver, self.cuda, self.compute_capability, self.memory_mib, self.mig_profile


NO_GPU = DeviceModel(is_gpu=False)


@lru_cache(MODELS_KEPT)
def model_of(
    driver: str, attributes: tuple[Attribute | None, ...], amounts: tuple[Entry, ...], _shared: bool
) -> DeviceModel:
    """Read a model: the values of MODEL_ATTRIBUTES, the capacities, and whether several claims can have a device.

    Of another vendor's driver only the product, the driver, the memory and the partition are read.
    """
    if not driver.startswith(GPU_DRIVER):
        return NO_GPU
    kind, product, capability, version, cuda, profile, other_product, partition, *_ = map(_text, attributes)
    memory = next((int(quantity(amount) // 2**20) for name, amount, _ in amounts if name == "memory"), None)
    if driver != NVIDIA_DRIVER:
        label = _label(product or other_product)
        return DeviceModel(label, _version(version), memory_mib=memory, partition=partition)
    return DeviceModel(
        label=_label(product),
        driver=_version(version),
        cuda=_version(cuda),
        compute_capability=_version(capability),
        memory_mib=memory,
        mig_profile=profile.replace("+", ".") if profile else None,
        is_gpu=kind in (None, "gpu", "mig"),
    )


def _text(value: Attribute | None) -> str | None:
    """Return an attribute that is a string or a version; None for an empty one, and any other type."""
    if isinstance(value, SemanticVersion):
        value = value.text
    return value if isinstance(value, str) and value else None


def _label(text: str | None) -> str | None:
    return "-".join(text.split()) if text else None


def _version(text: str | None) -> Version | None:
    try:
        return parse_version(text) if text else None
    except VersionError:
        return None
