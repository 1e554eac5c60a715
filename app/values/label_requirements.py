# SPDX-License-Identifier: Apache-2.0
"""Label requirements as sets: every selector operator becomes a set of values or the complement of one, with bounds.

The operators are those of Kubernetes label selectors and node affinity
(`In NotIn Exists DoesNotExist Gt Lt`, core/v1 NodeSelectorOperator). One representation makes
intersection four lines of set algebra and `allows` two; the idea is Karpenter's
(pkg/scheduling/requirement.go).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.values.errors import BadInput

_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
"""An integer as Go's strconv.ParseInt reads it, which kube-scheduler uses; longer ones overflow there too."""
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


@dataclass(frozen=True, slots=True)
class Requirement:
    """The condition on the value of one label, `key`.

    The value must be one of `values`, or none of them if `complement` is True. `absent_allowed` says that a node or
    pod without the label qualifies too (operators NotIn and DoesNotExist). `greater_than` and `less_than` are
    exclusive integer bounds; None is no bound.
    """

    key: str
    values: frozenset[str] = frozenset()
    complement: bool = False
    absent_allowed: bool = False
    greater_than: int | None = None
    less_than: int | None = None

    def allows(self, value: str | None) -> bool:
        """Tell whether a label with this value fulfils the requirement; None stands for a missing label."""
        if value is None:
            return self.absent_allowed
        if (value in self.values) is self.complement:
            return False
        return self._within(value)

    def _within(self, value: str) -> bool:
        if self.greater_than is None and self.less_than is None:
            return True
        if not _INTEGER.fullmatch(value):
            return False
        number = int(value)
        above = self.greater_than is None or number > self.greater_than
        return above and (self.less_than is None or number < self.less_than)

    def empty(self) -> bool:
        """Tell whether nothing can fulfil the requirement, neither a value nor a missing label."""
        if self.absent_allowed:
            return False
        if not self.complement:
            return not any(self._within(value) for value in self.values)
        if self.greater_than is None or self.less_than is None:
            return False
        return self.greater_than + 1 >= self.less_than

    def intersection(self, other: "Requirement") -> "Requirement":
        """Combine with another requirement on the same key into one that allows what both allow."""
        if self.complement and other.complement:
            complement, values = True, self.values | other.values
        elif not self.complement and not other.complement:
            complement, values = False, self.values & other.values
        else:
            included, excluded = (self, other) if other.complement else (other, self)
            complement, values = False, included.values - excluded.values
        return Requirement(
            key=self.key,
            values=values,
            complement=complement,
            absent_allowed=self.absent_allowed and other.absent_allowed,
            greater_than=_tighter(max, self.greater_than, other.greater_than),
            less_than=_tighter(min, self.less_than, other.less_than),
        )


def _tighter(choose: Any, left: int | None, right: int | None) -> int | None:
    bounds = [bound for bound in (left, right) if bound is not None]
    return choose(bounds) if bounds else None


def label_requirement(key: str, operator: str, values: Iterable[str] = ()) -> Requirement:
    """Build a requirement from the key, operator and values of a Kubernetes selector.

    Raises BadInput for an unknown operator, or for values that do not suit the operator.
    """
    chosen = frozenset(values)
    if operator == "In" and chosen:
        return Requirement(key, chosen)
    if operator == "NotIn" and chosen:
        return Requirement(key, chosen, complement=True, absent_allowed=True)
    if operator == "Exists" and not chosen:
        return Requirement(key, complement=True)
    if operator == "DoesNotExist" and not chosen:
        return Requirement(key, absent_allowed=True)
    if operator in ("Gt", "Lt") and len(chosen) == 1 and _INTEGER.fullmatch(bound := next(iter(chosen))):
        if operator == "Gt":
            return Requirement(key, complement=True, greater_than=int(bound))
        return Requirement(key, complement=True, less_than=int(bound))
    raise BadInput(f"{key}: got operator {operator!r} with {len(chosen)} values, wants one of {', '.join(OPERATORS)}")


def match_expression(requirement: Requirement) -> dict[str, Any]:
    """Write a requirement without bounds as one of the `matchExpressions` of a node selector term."""
    if requirement.values:
        operator = "NotIn" if requirement.complement else "In"
        return {"key": requirement.key, "operator": operator, "values": sorted(requirement.values)}
    return {"key": requirement.key, "operator": "DoesNotExist" if requirement.absent_allowed else "Exists"}


def selector_requirements(selector: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """Read the requirements of a Kubernetes LabelSelector (`matchLabels`, `matchExpressions`).

    Raises BadInput.
    """
    labels = tuple(label_requirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items())
    expressions = tuple(
        label_requirement(item["key"], item["operator"], item.get("values") or ())
        for item in selector.get("matchExpressions") or ()
    )
    return labels + expressions


def disjoint(one: Iterable[Requirement], other: Iterable[Requirement]) -> bool:
    """Tell whether no set of labels fulfils both lists, because on some key no value is allowed by both."""
    by_key: dict[str, Requirement] = {}
    for requirement in (*one, *other):
        earlier = by_key.get(requirement.key)
        by_key[requirement.key] = earlier.intersection(requirement) if earlier else requirement
    return any(requirement.empty() for requirement in by_key.values())


def all_allow(requirements: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    """Tell whether a set of labels fulfils every requirement; an empty list of requirements allows everything."""
    return all(requirement.allows(labels.get(requirement.key)) for requirement in requirements)
