# SPDX-License-Identifier: Apache-2.0
"""Node selectors: the terms of a pod's node affinity, of a PersistentVolume, a ResourceSlice or an allocation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from app.kube.records import Record, read_record
from app.values.errors import BadInput
from app.values.json_members import json_type
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


class MatchExpression(Record, frozen=True):
    """An expression of a selector of labels or of nodes."""

    key: str | None = None
    operator: str | None = None
    values: tuple[str, ...] | None = None

    def requirement(self) -> Requirement:
        """Read what it wants. Raises BadInput for values that do not suit the operator."""
        return label_requirement(str(self.key), str(self.operator), self.values or ())

    def requirement_if_valid(self) -> Requirement | None:
        try:
            return self.requirement()
        except BadInput:
            return None


class DeclaredTerm(Record, frozen=True):
    """A term of a node selector as it is written."""

    match_expressions: tuple[MatchExpression, ...] | None = None
    match_fields: tuple[MatchExpression, ...] | None = None

    def read(self) -> NodeSelectorTerm:
        """Read the term; of matchFields the API server allows only metadata.name In or NotIn one name."""
        return NodeSelectorTerm(
            tuple((str(one.key), one.requirement_if_valid()) for one in self.match_expressions or ()),
            tuple((one.operator == "In", next(iter(one.values or ()), "")) for one in self.match_fields or ()),
        )


class NodeSelectorObject(Record, frozen=True):
    """A node selector as it is written."""

    node_selector_terms: tuple[DeclaredTerm, ...] = ()


class NodeSelector(tuple[NodeSelectorTerm, ...]):
    """The terms of a selector of which any selects a node."""

    __slots__ = ()

    @classmethod
    def from_json(cls, selector: object) -> "NodeSelector":
        """Read a selector. Raises ValueError."""
        if not isinstance(selector, dict):
            raise ValueError(f"got {json_type(selector)}, wants an object")
        try:
            return cls(read_terms(selector))
        except BadInput as error:
            raise ValueError(str(error)) from error

    def selects(self, node: LabelledNode) -> bool:
        """Tell whether a term selects the node."""
        return any(term.selects(node) for term in self)


def read_terms(selector: object) -> tuple[NodeSelectorTerm, ...]:
    """Read the terms of a NodeSelector, or of one that is not yet converted, of a PersistentVolume or of an allocation.

    Raises MalformedPod.
    """
    if isinstance(selector, dict):
        selector = read_record(NodeSelectorObject, selector)
    return (
        tuple(term.read() for term in selector.node_selector_terms) if isinstance(selector, NodeSelectorObject) else ()
    )
