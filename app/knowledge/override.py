# SPDX-License-Identifier: Apache-2.0
"""An operator's own facts laid over the shipped tables: same file names, same shapes, only what differs (F81)."""

from collections.abc import Mapping
from typing import Any

from app.values.errors import KnowledgeError

IDENTITIES = ("product", "toolkit", "month", "branch", "cuda_major", "package", "xid", "name", "key", "cc", "cuda")
"""What tells rows of a list apart, first that a row has; a row of the same identity replaces the shipped one.

A family of images is told apart by its images and its tags: `cuda` there says how the tag is read.
"""

OF_ANY_ROW = frozenset({"remove", "source", "sources", "note"})
"""Fields that any row may have: the first is read here, the others are for people."""


def overlay(file: str, shipped: Any, own: Any) -> Any:
    """Lay a document over another: mappings merge, rows replace their like or come first, anything else replaces.

    A row with `remove: true` takes the shipped one away. Raises KnowledgeError where shapes differ.
    """
    if isinstance(shipped, Mapping) and isinstance(own, Mapping):
        return {**shipped, **{key: overlay(f"{file}: {key}", shipped.get(key), value) for key, value in own.items()}}
    if isinstance(shipped, list) and isinstance(own, list):
        return _rows(file, shipped, own)
    if shipped is None or not isinstance(shipped, Mapping | list):
        return own
    wanted = "a mapping" if isinstance(shipped, Mapping) else "a list"
    raise KnowledgeError(f"{file}: got {type(own).__name__}, wants {wanted} as in the shipped table")


def _rows(file: str, shipped: list[Any], own: list[Any]) -> list[Any]:
    """Put own rows first, so that they are asked first where order counts."""
    if not all(isinstance(row, Mapping) for row in own):
        return [*own, *(row for row in shipped if row not in own)]
    if any(_identity(row) is None and row.get("remove") for row in own):
        raise KnowledgeError(f"{file}: a row to remove wants one of {', '.join(IDENTITIES)}")
    _known(
        file, {key for row in own for key in row}, {key for row in shipped if isinstance(row, Mapping) for key in row}
    )
    replaced = {_identity(row) for row in own} - {None}
    kept = [row for row in shipped if not isinstance(row, Mapping) or _identity(row) not in replaced]
    by_identity = {_identity(row): row for row in shipped if isinstance(row, Mapping)}
    fresh = [{**by_identity.get(_identity(row), {}), **row} for row in own if not row.get("remove")]
    return [*fresh, *kept]


def _known(file: str, own: set[str], shipped: set[str]) -> None:
    """Refuse a field that no shipped row of the list has: nobody would read it.

    Raises KnowledgeError.
    """
    strange = sorted(map(str, own - shipped - OF_ANY_ROW))
    if strange and shipped:
        wanted = ", ".join(sorted(map(str, shipped | OF_ANY_ROW)))
        raise KnowledgeError(f"{file}: got the field {strange[0][:40]}, wants one of {wanted}")


def _identity(row: Mapping[str, Any]) -> tuple[str, Any] | None:
    if "tag_regex" in row and "images" in row:
        return "images", (tuple(row["images"]), row["tag_regex"])
    return next(((key, row[key]) for key in IDENTITIES if key in row), None)
