# SPDX-License-Identifier: Apache-2.0
"""Node selectors: the terms of a pod's node affinity, of a PersistentVolume, a ResourceSlice or an allocation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.values.errors import BadInput
from app.values.json_members import json_type, objects_if_any
from app.values.label_requirements import Requirement, label_requirement


class LabelledNode(Protocol):
    """What a term reads of a node, whose model is in a higher room."""

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the node."""


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """One term of a node selector.

    `expressions` are (label key, requirement); the requirement is None for an invalid expression, which never holds.
    `names` are the matchFields of metadata.name: (True for In and False for NotIn, node name).
    """

    expressions: tuple[tuple[str, Requirement | None], ...]
    names: tuple[tuple[bool, str], ...]

    def selects(self, node: LabelledNode) -> bool:
        """Tell whether the term selects the node; an empty term selects none (nodeaffinity.go)."""
        if not self.expressions and not self.names:
            return False
        labels = node.labels
        expressions_hold = all(rule is not None and rule.allows(labels.get(key)) for key, rule in self.expressions)
        return expressions_hold and all((name == node.name) is within for within, name in self.names)


class NodeSelector(tuple[NodeSelectorTerm, ...]):
    """The terms of a selector of which any selects a node."""

    __slots__ = ()

    @classmethod
    def from_json(cls, selector: object) -> "NodeSelector":
        """Read a selector. Raises ValueError."""
        if not isinstance(selector, dict):
            raise ValueError(f"got {json_type(selector)}, wants an object")
        return cls(read_terms(selector))

    def selects(self, node: LabelledNode) -> bool:
        """Tell whether a term selects the node."""
        return any(term.selects(node) for term in self)


def read_terms(selector: object) -> tuple[NodeSelectorTerm, ...]:
    """Read the terms of a NodeSelector: of a pod's node affinity, or of a PersistentVolume."""
    return tuple(map(_term, objects_if_any(selector, "nodeSelectorTerms"))) if isinstance(selector, dict) else ()


def _term(term: Mapping[str, Any]) -> NodeSelectorTerm:
    expressions = tuple(
        (str(expression.get("key")), _requirement(expression))
        for expression in objects_if_any(term, "matchExpressions")
    )
    return NodeSelectorTerm(expressions, tuple(map(_name, objects_if_any(term, "matchFields"))))


def _name(field: Mapping[str, Any]) -> tuple[bool, str]:
    """Read a matchFields expression, which the API server allows only as metadata.name In or NotIn one name."""
    return field.get("operator") == "In", next(iter(_values(field)), "")


def _values(expression: Mapping[str, Any]) -> tuple[str, ...]:
    values = expression.get("values")
    return tuple(map(str, values)) if isinstance(values, list) else ()


def _requirement(expression: Mapping[str, Any]) -> Requirement | None:
    try:
        return label_requirement(str(expression.get("key")), str(expression.get("operator")), _values(expression))
    except BadInput:
        return None
