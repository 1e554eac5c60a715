# SPDX-License-Identifier: Apache-2.0
"""The facts about a device that selectors read, and what an evaluation may cost."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from app.dra.cel_quantities import read_quantity
from app.dra.cel_syntax import OverBudget
from app.dra.cel_values import DomainsView, DomainView, parse_semver
from app.kube.devices import Device


class Read(NamedTuple):
    """A fact: an attribute or a capacity by its qualified name, or one of the device's fields, without a name."""

    group: str
    name: str

    def __str__(self) -> str:
        return self.name or f"device.{self.group}"


def qualified(domain: str, name: str) -> str:
    """Make a qualified name; no fact has a domain with a slash in it, and so the result is then empty."""
    return "" if "/" in domain else f"{domain}/{name}"


BUDGET = 20_000
"""What an evaluation for one device may cost, about 10 ms. Kubernetes' limit is 1,000,000 units of its own (resource/v1
types.go, CELSelectorExpressionMaxCost), which no evaluation within ours reaches (tests/dra/test_selectors_go.py)."""
METER = "#meter"
Names = dict[str, Any]
"""The variables of macros by their names, and under METER what the evaluation may still cost."""
Evaluate = Callable[[Device, Names], Any]


def spend(names: Names, cost: int) -> None:
    """Charge an evaluation.

    Raises OverBudget.
    """
    meter = names[METER]
    meter[0] -= cost
    if meter[0] < 0:
        raise OverBudget("the evaluation takes too long")


def read_value(group: str, value: Any) -> Any:
    """Make a fact a value of CEL.

    Raises EvaluationError for a version or a quantity that is none.
    """
    if group == "capacity":
        return read_quantity(value)
    if isinstance(value, tuple):
        return tuple(read_value(group, item) for item in value)
    return value if isinstance(value, (bool, int, str)) else parse_semver(value.text)


def read_fact(device: Device, read: Read) -> Any:
    """Return a fact as it is in `device`, or None if the device does not have it."""
    if read.group in ("attributes", "capacity"):
        entries: Mapping[str, Any] = device.attributes if read.group == "attributes" else device.capacity
        return entries.get(read.name)
    return device.driver if read.group == "driver" else device.allow_multiple_allocations


def group_view(path: tuple[str, ...]) -> Callable[[Device], Any]:
    """Make what gives the attributes or capacities of a device as a map, those of one domain if `path` names it."""
    group = path[0]

    def entries(device: Device) -> Mapping[str, Any]:
        return device.attributes if group == "attributes" else device.capacity

    def convert(value: Any) -> Any:
        return read_value(group, value)

    if len(path) == 1:
        return lambda device: DomainsView(entries(device), convert)
    return lambda device: DomainView(entries(device), path[1], convert)
