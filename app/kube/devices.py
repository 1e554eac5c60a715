# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices and their devices, with everything that kube-scheduler's allocator reads of them.

The rules are those of kubernetes v1.36: staging/src/k8s.io/api/resource/v1/types.go for the objects, and
staging/src/k8s.io/dynamic-resource-allocation/structured/internal/incubating for what the allocator makes of them
(docs/reference/dra.md).
"""

from collections.abc import Mapping
from fractions import Fraction
from sys import intern
from typing import Annotated

from msgspec import Meta, field
from msgspec.structs import force_setattr, replace

from app.kube.device_models import (
    MEMORY_SLICE,
    MOST_ENTRIES,
    NO_GPU,
    NOTHING,
    Amounts,
    Attribute,
    Attributes,
    DeviceModel,
    model_of,
)
from app.kube.node_selectors import LabelledNode, NodeSelector, NodeSelectorTerm
from app.kube.records import KubeObject, Record

MOST_DEVICES = 128
MOST_TAINTS = 16
"""Of a slice, and of a device (types.go ResourceSliceMaxDevices, DeviceTaintsMaxLength)."""
MOST_COUNTER_SETS = 256
"""Counter sets of a slice. Kubernetes allows 8 in v1.36 and 32 counters in all before; a guess above both."""
BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects that keep devices from being allocated; others, None among them, are for information."""
DeviceID = tuple[str, str, str]
"""The driver, the pool and the name of a device, which together are unique in a cluster."""


def same(one: Attribute, other: Attribute) -> bool:
    """Tell whether two values are equal in type and value, as constraints compare them; a list equals nothing."""
    return type(one) is type(other) and not isinstance(one, tuple) and one == other


def show(value: object) -> str:
    """Write a value for a person: text in quotes, versions and numbers as they are."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else str(value)


class DeviceTaint(Record, frozen=True):
    """A taint of one device; kube-scheduler heeds the effects NoSchedule and NoExecute, and no others."""

    key: str = ""
    value: str = ""
    effect: str = ""


def show_taint(taint: DeviceTaint) -> str:
    """Write a taint as kubectl does: key=value:effect."""
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


class CounterUse(Record, frozen=True):
    """What one device consumes of a set of counters of its pool."""

    counter_set: str = ""
    amounts: Amounts = field(name="counters", default=NOTHING)


class CounterSet(Record, frozen=True):
    """Counters that the devices of a pool share."""

    name: str = ""
    amounts: Amounts = field(name="counters", default=NOTHING)


class NodeSelection(Record, frozen=True):
    """The nodes that a slice, or a single device, is for: one by name, all, or those that are selected."""

    node_name: str = ""
    all_nodes: bool = False
    node_selector: NodeSelector | None = None

    @property
    def names_nodes(self) -> bool:
        """Whether one of the three fields is set."""
        return bool(self.node_name) or self.all_nodes or self.node_selector is not None

    @property
    def selector(self) -> NodeSelector | None:
        """The nodes as a selector; None for all nodes."""
        if self.node_name:
            return NodeSelector((NodeSelectorTerm((), ((True, self.node_name),)),))
        return None if self.all_nodes else self.node_selector

    def selects(self, node: LabelledNode) -> bool:
        """Tell whether the devices can be reached from the node (pools_incubating.go NodeMatches)."""
        if self.node_name:
            return node.name == self.node_name
        return self.all_nodes or (self.node_selector is not None and self.node_selector.selects(node))


class Device(NodeSelection, frozen=True, eq=False):
    """One device; two objects are equal only if they are the same object.

    `attributes` are keyed by domain/name; the domain of a bare name is the driver. `amounts` are its capacities by the
    names as written, by which claims request them. Only v1beta1 wraps the fields in `basic`, which is None once the
    device is in its slice (resource/v1beta1 types.go BasicDevice). The slice sets the fields whose name in JSON begins
    with a slash, as none of the API does. It names nodes only if the slice leaves that to its devices.
    """

    name: str = ""
    attributes: Attributes = field(default_factory=lambda: Attributes((), ()))
    amounts: Amounts = field(name="capacity", default=NOTHING)
    counters: Annotated[tuple[CounterUse, ...], Meta(max_length=MOST_ENTRIES)] = field(
        name="consumesCounters", default=()
    )
    taints: Annotated[tuple[DeviceTaint, ...], Meta(max_length=MOST_TAINTS)] = ()
    allow_multiple_allocations: bool = False
    binding_conditions: tuple[str, ...] = ()
    basic: "Device | None" = None
    driver: str = field(name="/driver", default="")
    pool: str = field(name="/pool", default="")
    model: DeviceModel = field(name="/model", default=NO_GPU)

    def place(self, driver: str, pool: str, per_device: bool) -> "Device":
        """Put a device that was just decoded into its slice."""
        device = self if self.basic is None else replace(self.basic, name=self.name)
        if not per_device and device.names_nodes:
            device = replace(device, node_name="", all_nodes=False, node_selector=None)
        of_model = device.attributes.set_driver(driver)
        force_setattr(device, "driver", driver)
        force_setattr(device, "pool", pool)
        force_setattr(
            device, "model", model_of(driver, of_model, device.amounts.of_model, device.allow_multiple_allocations)
        )
        return device

    @property
    def id(self) -> DeviceID:
        """The driver, the pool and the name."""
        return self.driver, self.pool, self.name

    @property
    def capacity(self) -> Mapping[str, Fraction]:
        """The capacities by domain/name, as selectors read them."""
        return {name if "/" in name else f"{self.driver}/{name}": amount for name, amount in self.amounts.items()}

    @property
    def gpu(self) -> str:
        """The GPU of a device on its node: the counter set that it consumes, or else a UUID or the device's name."""
        counter_set = self._memory_slices[0] if self.counters else ""
        return counter_set or self.attributes.gpu_uuid() or self.name

    @property
    def start(self) -> int | None:
        """The first memory slice that a MIG device occupies; None if it is not created on demand."""
        return self._memory_slices[1] if self.model.mig_profile else None

    @property
    def tainted(self) -> bool:
        """Whether a taint of the device keeps new pods off."""
        return bool(self.taints) and any(taint.effect in BLOCKING_EFFECTS for taint in self.taints)

    @property
    def _memory_slices(self) -> tuple[str, int | None]:
        """The counter set that the device consumes, and its first memory slice; "" and None if it consumes none."""
        for use in self.counters:
            numbers = [name.removeprefix(MEMORY_SLICE) for name in use.amounts if name.startswith(MEMORY_SLICE)]
            slices = [int(number) for number in numbers if number.isdecimal() and len(number) < 3]
            if slices:
                return use.counter_set, min(slices)
        return "", None


class ResourcePool(Record, frozen=True):
    """The pool of a slice; `size` is the number of slices of the pool's `generation`."""

    name: str = ""
    generation: int = 0
    size: int = field(name="resourceSliceCount", default=0)


class SliceSpec(NodeSelection, frozen=True, eq=False):
    """The spec of a ResourceSlice."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    devices: Annotated[tuple[Device, ...], Meta(max_length=MOST_DEVICES)] | None = None
    shared_counters: Annotated[tuple[CounterSet, ...], Meta(max_length=MOST_COUNTER_SETS)] | None = None
    per_device_node_selection: bool = False

    def __post_init__(self) -> None:
        driver, pool, per_device = intern(self.driver), self.pool.name, self.per_device_node_selection
        force_setattr(self, "driver", driver)
        force_setattr(self, "devices", tuple([one.place(driver, pool, per_device) for one in self.devices or ()]))


class ResourceSlice(KubeObject, frozen=True, eq=False):
    """One ResourceSlice: a part of a pool of devices, or the counters that the pool's devices share."""

    spec: SliceSpec = SliceSpec()

    @property
    def name(self) -> str:
        """The name of the slice."""
        return self.metadata.name

    @property
    def driver(self) -> str:
        """The driver that publishes the slice."""
        return self.spec.driver

    @property
    def pool(self) -> str:
        """The name of the pool."""
        return self.spec.pool.name

    @property
    def generation(self) -> int:
        """The generation of the pool."""
        return self.spec.pool.generation

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the slice."""
        return self.spec.devices or ()

    @property
    def node(self) -> str:
        """The node that the slice names; "" where it does not belong to a single node."""
        return self.spec.node_name
