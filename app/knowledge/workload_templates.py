# SPDX-License-Identifier: Apache-2.0
"""The workloads and operators of other projects.

Where workloads have their pod templates, and how many pods of each, by kind (workload_templates.yaml), and operators
whose own pods admission leaves alone (operators.yaml).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from app.values.errors import KnowledgeError

EACH_ITEM, EACH_VALUE = "[]", "{}"
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of the number of pods of a template: the first number at `paths`, `default` where there is none.

    It is no more than the number at `at_most`; what `less` has is subtracted from that, or from the factor.
    """

    paths: tuple[Path, ...]
    default: int = 1
    at_most: Path = ()
    less: Path = ()

    def value(self, document: Any, place: Path) -> int:
        """Read the factor for the template at a place of a workload."""
        numbers = (_number_at(document, path, place) for path in self.paths)
        number = next((number for number in numbers if number is not None), self.default)
        less = (_number_at(document, self.less, place) or 0) if self.less else 0
        most = _number_at(document, self.at_most, place) if self.at_most else None
        return max(0, number - less if most is None else min(number, most - less))


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """One kind of workload, with the paths of its pod templates, and of whole objects of other kinds in it.

    `late` says that affinity of its templates can change while it is suspended. `replicas` are the factors of the
    number of pods by template; a template without factors makes one, and without any `replicas` it is not known.
    """

    kind: str
    templates: tuple[Path, ...] = ()
    objects: tuple[Path, ...] = ()
    late: bool = False
    replicas: Mapping[Path, tuple[Factor, ...]] = field(default_factory=dict)


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
    templates, objects = (tuple(map(read_path, row.get(name) or ())) for name in ("templates", "objects"))
    replicas = {read_path(path): tuple(map(_factor, factors)) for path, factors in (row.get("replicas") or {}).items()}
    if not templates and not objects and not replicas:
        raise KnowledgeError(f"workload_templates.yaml: {row['key']}: got no path, wants templates or objects")
    return WorkloadKind(row["kind"], templates, objects, row.get("late") is True, replicas)


def _factor(text: str | Mapping[str, Any]) -> Factor:
    if isinstance(text, str):
        return Factor((read_path(text),))
    bounds = (read_path(text[name]) if name in text else () for name in ("at_most", "less"))
    return Factor(tuple(map(read_path, text["of"])), text.get("default", 1), *bounds)


def read_path(text: str) -> Path:
    """Read a path: members separated by dots, of which each may end in [] or {}."""
    return tuple(text.replace(EACH_ITEM, f".{EACH_ITEM}").replace(EACH_VALUE, f".{EACH_VALUE}").split("."))


def resource_of(document: Mapping[str, Any]) -> tuple[str, str]:
    """Give (API group, resource) of an object by its kind."""
    return str(document.get("apiVersion") or "").rpartition("/")[0], f"{str(document.get('kind') or '').lower()}s"


def number_of_pods(document: Mapping[str, Any], place: Path, workloads: Workloads) -> int | None:
    """Give how many pods a workload wants at once of the template at a place; None where that is not known."""
    row = resource_of(document)
    if row == ("", "pods"):
        return 1
    kind = workloads.get(row)
    for path in kind.objects if kind else ():
        for where, wrapped in values_at(document, path):
            if place[: len(where)] == where:
                return number_of_pods(wrapped, place[len(where) :], workloads)
    if kind is None or not kind.replicas:
        return None
    for path, factors in kind.replicas.items():
        steps = zip(place, path, strict=False)
        if len(place) == len(path) and all(step in (key, EACH_ITEM, EACH_VALUE) for key, step in steps):
            return prod(factor.value(document, place) for factor in factors)
    return 1


def _number_at(document: Any, path: Path, place: Path) -> int | None:
    """Read the number at a path, in the items of lists and mappings in which a place is; 1 for an object there."""
    for depth, step in enumerate(path):
        key: Any = place[depth] if step in (EACH_ITEM, EACH_VALUE) else step
        if isinstance(document, list) and str(key).isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            document = document.get(key) if isinstance(document, Mapping) else None
    if isinstance(document, Mapping):
        return 1
    return document if isinstance(document, int) and not isinstance(document, bool) else None


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


APP = "app"
"""The label by which operators distinguish their pods."""


@dataclass(frozen=True, slots=True)
class Right:
    """A right in the whole cluster: a verb on a subresource of a resource."""

    verb: str
    group: str
    resource: str
    subresource: str

    @property
    def words(self) -> str:
        """The right as RBAC's documentation writes it."""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}/{self.subresource}"


@dataclass(frozen=True, slots=True)
class Operator:
    """A program whose own pods admission leaves alone (operators.yaml).

    `pods` are the values of APP of those that it creates with spec.nodeName, and `right` is what it may do and no
    tenant may. `owners` are the (group, kind) of the objects that own its DaemonSets and pods.
    """

    name: str
    pods: tuple[str, ...]
    right: Right | None
    owners: frozenset[tuple[str, str]]


def load_operators(rows: Iterable[Mapping[str, Any]]) -> tuple[Operator, ...]:
    """Read the rows of the table.

    Raises KnowledgeError for pods without a right: anybody may write their label.
    """
    operators = []
    for row in rows:
        if bool(row.get("pods")) != bool(row.get("right")):
            raise KnowledgeError(f"operators.yaml: {row['name']}: wants pods together with the right of their creator")
        owners = frozenset((group, kind) for group, _, kind in (owner.rpartition("/") for owner in row["owners"]))
        right = Right(**row["right"]) if row.get("right") else None
        operators.append(Operator(row["name"], tuple(row.get("pods", ())), right, owners))
    return tuple(operators)
