# SPDX-License-Identifier: Apache-2.0
"""Typed reading of members of Kubernetes objects in JSON; a type that Kubernetes would refuse is a MalformedPod.

In all functions `where` is the path of `parent` with a trailing dot, such as `spec.`, for error messages. The two
functions without it read objects that were accepted before, and skip what has another type.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.values.computations import T
from app.values.errors import MalformedPod, OversizedPod

JSONObject = Mapping[str, Any]
"""An object of Kubernetes, or a part of one, as it was decoded from JSON; it is read only."""
Object = dict[str, Any]
"""The same, which its reader or maker may change."""
JSON = "application/json"


def member(parent: Mapping[str, Any], key: str, kind: type[T], where: str) -> T | None:
    """Read an optional member of type `kind`; JSON null counts as absent. Raises MalformedPod for another type."""
    value = parent.get(key)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MalformedPod(f"{where}{key}: got {json_type(value)}, wants {_NAMES[kind]}")
    return value


_NAMES: Mapping[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    bool: "a boolean",
    type(None): "null",
}


def json_type(value: object) -> str:
    """Name the JSON type of a value, with its article, for error messages."""
    return _NAMES.get(type(value), "a number")


def objects(
    parent: Mapping[str, Any], key: str, where: str, most: int | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Iterate over an optional list of objects as (index, object).

    Raises MalformedPod if the member is not a list or an item is not an object, and OversizedPod if there are more
    than `most` items.
    """
    for index, item in enumerate(member(parent, key, list, where) or ()):
        if index == most:
            raise OversizedPod(f"{where}{key}: got more, wants at most {most}")
        if not isinstance(item, dict):
            raise MalformedPod(f"{where}{key}[{index}]: got {json_type(item)}, wants an object")
        yield index, item


def strings(parent: Mapping[str, Any], key: str, where: str) -> Mapping[str, str]:
    """Read an optional map of strings, such as labels; an absent map is empty. Raises MalformedPod."""
    mapping = member(parent, key, dict, where) or {}
    try:
        "".join(mapping.values())  # a fifth of the time of a loop, as nodes have dozens of labels
    except TypeError:
        for name, value in mapping.items():
            if not isinstance(value, str):
                raise MalformedPod(f"{where}{key}[{name[:80]}]: got {json_type(value)}, wants a string") from None
    return mapping


def object_if_any(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Read an optional object; empty where it is absent or of another type."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def objects_if_any(parent: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    """Read an optional list of objects without items of another type; empty where it is absent or no list."""
    items = parent.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else ()
