# SPDX-License-Identifier: Apache-2.0
"""The devices of ResourceSlices with everything that kube-scheduler's allocator reads of them.

The rules are those of kubernetes v1.36: staging/src/k8s.io/api/resource/v1/types.go for the objects, and
staging/src/k8s.io/dynamic-resource-allocation/structured/internal/incubating for what the allocator makes of them
(docs/reference/dra.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from app.dra.attributes import Attribute
from app.intree.checks import NodeSelectorTerm
from app.nodes.model import Node

NOTHING: Mapping[str, Fraction] = {}


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """A taint of one device; kube-scheduler heeds the effects NoSchedule and NoExecute, and no others (KEP-5055)."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class CapacityPolicy:
    """How a capacity is consumed by one of several allocations of its device (KEP-5075).

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
    """What one device consumes of a set of counters of its pool (KEP-4815)."""

    counter_set: str
    amounts: Mapping[str, Fraction]


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """The nodes that a slice, or a single device, is for: one by name, all, or those that `terms` select."""

    name: str = ""
    everywhere: bool = False
    terms: tuple[NodeSelectorTerm, ...] | None = None

    def selects(self, node: Node) -> bool:
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
class PoolSlice:
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
