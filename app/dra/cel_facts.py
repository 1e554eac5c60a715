# SPDX-License-Identifier: Apache-2.0
"""The facts about a device that selectors read."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from app.dra.cel_syntax import EvaluationError, Path
from app.dra.cel_values import read_semver
from app.kube.devices import Device

Evaluate = Callable[[Device], Any]


class Read(NamedTuple):
    """A fact: an attribute or a capacity by its qualified name, or one of the device's fields, without a name."""

    group: str
    name: str

    def __str__(self) -> str:
        return self.name or f"device.{self.group}"


def read_of(path: Path) -> Read | None:
    """Return the fact at the end of a path, or None where it ends before one.

    No fact has a domain with a slash in it, so that such a name is empty.
    """
    if len(path) == 3:
        return Read(path[0], "" if "/" in path[1] else f"{path[1]}/{path[2]}")
    return Read(path[0], "") if path in (("driver",), ("allowMultipleAllocations",)) else None


def read_fact(device: Device, read: Read) -> Any:
    """Return a fact as it is in `device`, or None if the device does not have it."""
    if read.group in ("attributes", "capacity"):
        entries: Mapping[str, Any] = device.attributes if read.group == "attributes" else device.capacity
        return entries.get(read.name)
    return device.driver if read.group == "driver" else device.allow_multiple_allocations


def reader(path: Path) -> tuple[Read, Evaluate] | None:
    """Return the fact at the end of a path with what reads it as a value of CEL, or None where it ends before one."""
    read = read_of(path)
    if read is None:
        return None

    def look_up(device: Device) -> Any:
        value = read_fact(device, read)
        if value is None:
            raise EvaluationError(f"no such key: {path[-1]}")
        return _value(value)

    return read, look_up


def _value(value: Any) -> Any:
    """Make a fact a value of CEL; a version that is none raises EvaluationError."""
    if isinstance(value, (str, bool, int, Fraction)):
        return value
    return tuple(map(_value, value)) if isinstance(value, tuple) else read_semver(value.text)
