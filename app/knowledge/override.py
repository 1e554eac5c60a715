# SPDX-License-Identifier: Apache-2.0
"""Overriding of the shipped fact tables by an operator's own files, which contain only what differs.

They have the file names and the structure of the shipped tables.
"""

from collections.abc import Mapping
from typing import Any

from app.values.errors import KnowledgeError

IDENTITIES = (
    "board",
    "product",
    "toolkit",
    "month",
    "branch",
    "cuda_major",
    "package",
    "xid",
    "name",
    "key",
    "cc",
    "cuda",
    "vendor",
)
"""The fields that identify a row of a list; the first of them that a row has counts.

A row replaces the shipped row of the same identity. A family of images is identified by its images and its tags, since
its field `cuda` says how the tag is read.
"""

OF_ANY_ROW = frozenset({"remove", "source", "sources", "note"})
"""Fields that any row may have: `remove` takes the shipped row away, and the others are documentation."""


def overlay(file: str, shipped: Any, own: Any) -> Any:
    """Override the `shipped` document by the operator's `own`.

    Mappings are merged. Rows of a list replace the shipped row of the same identity, or else come first. Any other
    value replaces the shipped one. A row with `remove: true` takes the shipped row away.
    Raises KnowledgeError if the structure differs.
    """
    if isinstance(shipped, Mapping) and isinstance(own, Mapping):
        return {**shipped, **{key: overlay(f"{file}: {key}", shipped.get(key), value) for key, value in own.items()}}
    if isinstance(shipped, list) and isinstance(own, list):
        return _overlay_rows(file, shipped, own)
    if shipped is None or not isinstance(shipped, Mapping | list):
        return own
    expected = "a mapping" if isinstance(shipped, Mapping) else "a list"
    raise KnowledgeError(f"{file}: got {type(own).__name__}, wants {expected} as in the shipped table")


def _overlay_rows(file: str, shipped: list[Any], own: list[Any]) -> list[Any]:
    """Put the operator's rows before the shipped ones, so that they come first in tables whose first match counts."""
    if not all(isinstance(row, Mapping) for row in own):
        return [*own, *(row for row in shipped if row not in own)]
    if any(_identity(row) is None and row.get("remove") for row in own):
        raise KnowledgeError(f"{file}: a row to remove wants one of {', '.join(IDENTITIES)}")
    shipped_rows = [row for row in shipped if isinstance(row, Mapping)]
    _check_fields(file, {key for row in own for key in row}, {key for row in shipped_rows for key in row})
    replaced = {_identity(row) for row in own} - {None}
    unchanged = [row for row in shipped if not isinstance(row, Mapping) or _identity(row) not in replaced]
    by_identity = {_identity(row): row for row in shipped_rows}
    new_rows = [{**by_identity.get(_identity(row), {}), **row} for row in own if not row.get("remove")]
    return [*new_rows, *unchanged]


def _check_fields(file: str, own: set[str], shipped: set[str]) -> None:
    """Raise KnowledgeError for a field that no shipped row of the list has, since nothing would read it."""
    unknown = sorted(map(str, own - shipped - OF_ANY_ROW))
    if unknown and shipped:
        allowed = ", ".join(sorted(map(str, shipped | OF_ANY_ROW)))
        raise KnowledgeError(f"{file}: got the field {unknown[0][:40]}, wants one of {allowed}")


def _identity(row: Mapping[str, Any]) -> tuple[str, Any] | None:
    if "tag_regex" in row and "images" in row:
        return "images", (tuple(row["images"]), row["tag_regex"])
    return next(((key, row[key]) for key in IDENTITIES if key in row), None)
