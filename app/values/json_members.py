# SPDX-License-Identifier: Apache-2.0
"""Members of Kubernetes objects, read from JSON with their type; what Kubernetes would refuse is a MalformedPod."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from app.values.errors import MalformedPod, OversizedPod

T = TypeVar("T")


def member(parent: Mapping[str, Any], key: str, kind: type[T], where: str) -> T | None:
    """Read an optional member; JSON null counts as absent. Raises MalformedPod if it has another type."""
    value = parent.get(key)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MalformedPod(f"{where}{key}: got {json_name(value)}, wants {_NAMES[kind]}")
    return value


_NAMES: Mapping[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    bool: "a boolean",
}


def json_name(value: object) -> str:
    """Say what a value is in JSON."""
    return _NAMES.get(type(value), "a number")


def objects(
    parent: Mapping[str, Any], key: str, where: str, most: int | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Iterate an optional list of objects with their positions.

    Raises MalformedPod if it is no list, or an item is no object; OversizedPod for more than `most`.
    """
    for index, item in enumerate(member(parent, key, list, where) or ()):
        if index == most:
            raise OversizedPod(f"{where}{key}: got more, wants at most {most}")
        if not isinstance(item, dict):
            raise MalformedPod(f"{where}{key}[{index}]: got {json_name(item)}, wants an object")
        yield index, item


def strings(parent: Mapping[str, Any], key: str, where: str) -> Mapping[str, str]:
    """Read an optional map of strings, such as labels; absent is empty. Raises MalformedPod."""
    found = member(parent, key, dict, where) or {}
    for name, value in found.items():
        if not isinstance(value, str):
            raise MalformedPod(f"{where}{key}[{name[:80]}]: got {json_name(value)}, wants a string")
    return found
