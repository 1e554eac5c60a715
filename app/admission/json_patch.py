# SPDX-License-Identifier: Apache-2.0
"""JSON Patch (RFC 6902): only the operations that we send, `add`, `replace` and `remove`.

A patch that does not apply rejects the pod even under failurePolicy Ignore
(docs/reference/control-plane.md#answers-to-the-api-server). So each operation is built against the object as it stands
and applied here first. The library jsonpatch is the oracle of the tests; at run time it would cost 167 µs a pod.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.values.errors import UsherError

_INDEX = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
"""RFC 6901 §4: no leading zeros."""


class PatchError(UsherError):
    """An operation does not apply to the object that it was built for, which is a bug of gpu-usher."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `path` are the unescaped reference tokens; a last token `-` appends to a list."""

    op: str
    path: tuple[str, ...]
    value: Any = None

    def as_json(self) -> dict[str, Any]:
        """Return the operation as RFC 6902 writes it."""
        written: dict[str, Any] = {"op": self.op, "path": "".join("/" + escape(token) for token in self.path)}
        if self.op != "remove":
            written["value"] = self.value
        return written


def escape(token: str) -> str:
    """Escape a reference token (RFC 6901 §3)."""
    return token.replace("~", "~0").replace("/", "~1")


def apply(document: Any, operations: Iterable[Operation]) -> Any:
    """Apply operations in order and return the changed copy; untouched parts are shared with the input.

    Raises PatchError.
    """
    for operation in operations:
        document = _apply(document, operation, operation.path)
    return document


def _apply(document: Any, operation: Operation, path: tuple[str, ...]) -> Any:
    if isinstance(document, dict):
        return _apply_to_object(document, operation, path)
    if isinstance(document, list):
        return _apply_to_list(document, operation, path)
    raise PatchError(f"{operation.op} {operation.path}: no object or list on the way")


def _apply_to_object(document: dict[str, Any], operation: Operation, path: tuple[str, ...]) -> dict[str, Any]:
    key, *rest = path
    if (rest or operation.op != "add") and key not in document:
        raise PatchError(f"{operation.op} {operation.path}: {key} is missing")
    if rest:
        return {**document, key: _apply(document[key], operation, tuple(rest))}
    if operation.op == "remove":
        return {name: value for name, value in document.items() if name != key}
    return {**document, key: operation.value}


def _apply_to_list(document: list[Any], operation: Operation, path: tuple[str, ...]) -> list[Any]:
    key, *rest = path
    if key == "-" and not rest and operation.op == "add":
        return [*document, operation.value]
    index = int(key) if _INDEX.fullmatch(key) else len(document)
    if index >= len(document):
        raise PatchError(f"{operation.op} {operation.path}: {key} is out of range")
    changed = list(document)
    if rest:
        changed[index] = _apply(document[index], operation, tuple(rest))
    elif operation.op == "replace":
        changed[index] = operation.value
    elif operation.op == "remove":
        del changed[index]
    else:
        raise PatchError(f"{operation.op} {operation.path}: lists are only appended to, never inserted into")
    return changed


def put(document: Mapping[str, Any], path: tuple[str, ...], value: Any) -> Operation:
    """Build the one operation that sets a member, whichever of its parents exist.

    Missing parents (or null ones) are added as one value, from the highest missing one down.
    """
    parent: Any = document
    for depth, key in enumerate(path[:-1]):
        following = parent[int(key)] if isinstance(parent, list) else parent.get(key)
        if following is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return Operation("add", path[: depth + 1], value)
        parent = following
    present = isinstance(parent, dict) and path[-1] in parent
    return Operation("replace" if present else "add", path, value)


def append_all(document: Mapping[str, Any], path: tuple[str, ...], values: Iterable[Any]) -> tuple[Operation, ...]:
    """Build the operations that append values to a list, of which the first adds the list where it is missing."""
    operations = [Operation("add", (*path, "-"), value) for value in values]
    return (append(document, path, operations[0].value), *operations[1:]) if operations else ()


def append(document: Mapping[str, Any], path: tuple[str, ...], value: Any) -> Operation:
    """Build the one operation that appends to a list, or that adds the list where it is missing."""
    target: Any = document
    for key in path:
        target = target[int(key)] if isinstance(target, list) else target.get(key)
        if target is None:
            return put(document, path, [value])
    return Operation("add", (*path, "-"), value)
