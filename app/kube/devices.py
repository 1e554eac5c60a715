# SPDX-License-Identifier: Apache-2.0
"""The devices of ResourceSlices with everything that kube-scheduler's allocator reads of them.

The rules are those of kubernetes v1.36: staging/src/k8s.io/api/resource/v1/types.go for the objects, and
staging/src/k8s.io/dynamic-resource-allocation/structured/internal/incubating for what the allocator makes of them
(docs/reference/dra.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from app.kube.node_selectors import LabelledNode, NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class SemanticVersion:
    """A version as semver 2.0.0 writes it; constraints compare its text, selectors its precedence."""

    text: str

    def __str__(self) -> str:
        return self.text


Attribute = bool | int | str | SemanticVersion | tuple[object, ...]
"""The value of an attribute; a tuple is a list of values (feature gate DRAListTypeAttributes, alpha)."""


class Attributes(Mapping[str, Attribute]):
    """The attributes of one device; devices with the same names share them, which takes a third of what a dict does."""

    __slots__ = ("_positions", "_values")

    def __init__(self, positions: Mapping[str, int], values: tuple[Attribute, ...]) -> None:
        """Take the values, and the position of each name among them; values that no name has are not read."""
        self._positions, self._values = positions, values

    def __getitem__(self, name: str) -> Attribute:
        return self._values[self._positions[name]]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute; `default` for one that is not there."""
        position = self._positions.get(name)
        return default if position is None else self._values[position]

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)


def same(one: Attribute, other: Attribute) -> bool:
    """Tell whether two values are equal in type and value, as constraints compare them; a list equals nothing."""
    return type(one) is type(other) and not isinstance(one, tuple) and one == other


def show(value: object) -> str:
    """Write a value for a person: text in quotes, versions and numbers as they are."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else str(value)


BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects that keep devices from being allocated; others, None among them, are for information."""
NOTHING: Mapping[str, Fraction] = {}


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """A taint of one device; kube-scheduler heeds the effects NoSchedule and NoExecute, and no others."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class CapacityPolicy:
    """How a capacity is consumed by one of several allocations of its device.

    `default` is consumed where a claim names no amount; None for the whole capacity. An amount is rounded up to the
    next of `values`, or to `minimum` plus a multiple of `step`; `maximum` bounds it. All are None, or empty, where the
    policy does not say.
    """

    default: Fraction | None = None
    values: tuple[Fraction, ...] = ()
    minimum: Fraction | None = None
    maximum: Fraction | None = None
    step: Fraction | None = None


@dataclass(frozen=True, slots=True)
class CounterUse:
    """What one device consumes of a set of counters of its pool."""

    counter_set: str
    amounts: Mapping[str, Fraction]


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """The nodes that a slice, or a single device, is for: one by name, all, or those that `terms` select."""

    name: str = ""
    everywhere: bool = False
    terms: tuple[NodeSelectorTerm, ...] | None = None

    def selects(self, node: LabelledNode) -> bool:
        """Tell whether the devices can be reached from the node (pools_incubating.go NodeMatches)."""
        if self.name:
            return node.name == self.name
        return self.everywhere or any(term.selects(node) for term in self.terms or ())


DeviceID = tuple[str, str, str]
"""The driver, the pool and the name of a device, which together are unique in a cluster."""


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device; two objects are equal only if they are the same object.

    `attributes` are keyed by domain/name; the domain of a bare name is the driver. `amounts` are its capacities by the
    names as written, by which claims request them, and `policies` are those of the capacities that have one. `nodes`
    is None where the slice says which nodes can reach the device.
    `waits_for_driver` says that the device has binding conditions: kube-scheduler then takes its pool last.
    """

    driver: str
    pool: str
    name: str
    attributes: Mapping[str, Attribute]
    amounts: Mapping[str, Fraction] = field(default_factory=lambda: NOTHING)
    policies: Mapping[str, CapacityPolicy] | None = None
    counters: tuple[CounterUse, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    nodes: NodeSelection | None = None
    allow_multiple_allocations: bool = False
    waits_for_driver: bool = False

    @property
    def id(self) -> DeviceID:
        """The driver, the pool and the name."""
        return self.driver, self.pool, self.name

    @property
    def capacity(self) -> Mapping[str, Fraction]:
        """The capacities by domain/name, as selectors read them."""
        return {name if "/" in name else f"{self.driver}/{name}": amount for name, amount in self.amounts.items()}


@dataclass(frozen=True, slots=True, eq=False)
class ResourceSlice:
    """One ResourceSlice: a part of a pool of devices, or the counters that the pool's devices share.

    `nodes` is None where each device says it for itself, or nothing known says it. `counter_sets` are the amounts by
    counter set and counter; `size` is the number of slices of the pool's `generation`.
    """

    name: str
    driver: str
    pool: str
    generation: int
    size: int
    nodes: NodeSelection | None
    per_device_nodes: bool = False
    devices: tuple[Device, ...] = ()
    counter_sets: tuple[tuple[str, Mapping[str, Fraction]], ...] = ()

    @property
    def node(self) -> str:
        """The node that the slice names; "" where it does not belong to a single node."""
        return self.nodes.name if self.nodes is not None else ""
