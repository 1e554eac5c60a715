# SPDX-License-Identifier: Apache-2.0
"""Where workloads have their pod templates, by kind (workload_templates.yaml)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.values.errors import KnowledgeError

EACH_ITEM, EACH_VALUE = "[]", "{}"
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """One kind of workload, with the paths of its pod templates, and of whole objects of other kinds in it.

    `late` says that affinity of its templates can change while it is suspended.
    """

    kind: str
    templates: tuple[Path, ...] = ()
    objects: tuple[Path, ...] = ()
    late: bool = False


Workloads = Mapping[tuple[str, str], WorkloadKind]
"""Kinds by (API group, resource)."""


def load_workloads(rows: Sequence[Mapping[str, Any]]) -> Workloads:
    """Read the rows of the table.

    Raises KnowledgeError for a row without a path.
    """
    return {_group_resource(row["key"]): _kind(row) for row in rows}


def _group_resource(key: str) -> tuple[str, str]:
    group, slash, resource = key.rpartition("/")
    if not slash:
        raise KnowledgeError(f"workload_templates.yaml: got the key {key[:60]}, wants GROUP/RESOURCE")
    return group, resource


def _kind(row: Mapping[str, Any]) -> WorkloadKind:
    templates, objects = (tuple(map(read_path, row.get(field) or ())) for field in ("templates", "objects"))
    if not templates and not objects:
        raise KnowledgeError(f"workload_templates.yaml: {row['key']}: got no path, wants templates or objects")
    return WorkloadKind(row["kind"], templates, objects, row.get("late") is True)


def read_path(text: str) -> Path:
    """Read a path: members separated by dots, of which each may end in [] or {}."""
    return tuple(text.replace(EACH_ITEM, f".{EACH_ITEM}").replace(EACH_VALUE, f".{EACH_VALUE}").split("."))


def values_at(document: Any, path: Path, place: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the objects at a path of a document, each with its own place; what is absent or no object is left out."""
    if not path:
        if isinstance(document, Mapping):
            yield place, document
        return
    for key, child in _children(document, path[0]):
        yield from values_at(child, path[1:], (*place, str(key)))


def _children(document: Any, step: str) -> Iterable[tuple[Any, Any]]:
    if step == EACH_ITEM:
        return enumerate(document) if isinstance(document, list) else ()
    if not isinstance(document, Mapping):
        return ()
    return document.items() if step == EACH_VALUE else ((step, document.get(step)),)
