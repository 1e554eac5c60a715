# SPDX-License-Identifier: Apache-2.0
"""Operators whose own pods admission leaves alone (operators.yaml)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.values.errors import KnowledgeError

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
    """A program with pods of its own.

    `pods` are the values of APP of those that it creates with spec.nodeName, and `right` is what it may do and no
    tenant may. `owners` are the (group, kind) of the objects that own its DaemonSets and pods.
    """

    name: str
    pods: tuple[str, ...]
    right: Right | None
    owners: frozenset[tuple[str, str]]


def load_operators(rows: Sequence[Mapping[str, Any]]) -> tuple[Operator, ...]:
    """Read the rows of the table.

    Raises KnowledgeError for pods without a right: anybody may write their label.
    """
    return tuple(map(_operator, rows))


def _operator(row: Mapping[str, Any]) -> Operator:
    if bool(row.get("pods")) != bool(row.get("right")):
        raise KnowledgeError(f"operators.yaml: {row['name']}: wants pods together with the right of who creates them")
    owners = (owner.rpartition("/") for owner in row["owners"])
    right = Right(**row["right"]) if row.get("right") else None
    return Operator(row["name"], tuple(row.get("pods", ())), right, frozenset((one[0], one[2]) for one in owners))
