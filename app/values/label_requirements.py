# SPDX-License-Identifier: Apache-2.0
"""Label requirements as sets: every selector operator is a set of values or the complement of one, with bounds.

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
"""What Go's strconv.ParseInt reads, as the scheduler does; longer ones overflow there too."""
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one label must be.

    `complement` False: the value is one of `values`. True: it is none of them.
    `absent_allowed`: a missing label is fine too (only NotIn and DoesNotExist allow that).
    `greater_than`, `less_than`: exclusive integer bounds; None is no bound.
    """

    key: str
    values: frozenset[str] = frozenset()
    complement: bool = False
    absent_allowed: bool = False
    greater_than: int | None = None
    less_than: int | None = None

    def allows(self, value: str | None) -> bool:
        """Tell whether a label with this value (None: no such label) fulfils the requirement."""
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
        """Tell whether nothing can fulfil it, neither a value nor a missing label."""
        if self.absent_allowed:
            return False
        if not self.complement:
            return not any(self._within(value) for value in self.values)
        if self.greater_than is None or self.less_than is None:
            return False
        return self.greater_than + 1 >= self.less_than

    def intersection(self, other: "Requirement") -> "Requirement":
        """Combine with another requirement on the same key: what both allow."""
        if self.complement and other.complement:
            complement, values = True, self.values | other.values
        elif not self.complement and not other.complement:
            complement, values = False, self.values & other.values
        else:
            one, rest = (self, other) if other.complement else (other, self)
            complement, values = False, one.values - rest.values
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


def requirement(key: str, operator: str, values: Iterable[str] = ()) -> Requirement:
    """Build from Kubernetes' words.

    Raises BadInput for an unknown operator or values that do not suit it.
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


def expression(wanted: Requirement) -> dict[str, Any]:
    """Write a requirement without bounds as Kubernetes does, in a node selector term."""
    if wanted.values:
        operator = "NotIn" if wanted.complement else "In"
        return {"key": wanted.key, "operator": operator, "values": sorted(wanted.values)}
    return {"key": wanted.key, "operator": "DoesNotExist" if wanted.absent_allowed else "Exists"}


def from_selector(selector: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """Read a Kubernetes LabelSelector (`matchLabels`, `matchExpressions`).

    Raises BadInput.
    """
    labels = tuple(requirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items())
    expressions = tuple(
        requirement(item["key"], item["operator"], item.get("values") or ())
        for item in selector.get("matchExpressions") or ()
    )
    return labels + expressions


def disjoint(one: Iterable[Requirement], other: Iterable[Requirement]) -> bool:
    """Tell whether no set of labels fulfils both lists: on some key nothing fulfils both."""
    by_key: dict[str, Requirement] = {}
    for each in (*one, *other):
        known = by_key.get(each.key)
        by_key[each.key] = known.intersection(each) if known else each
    return any(each.empty() for each in by_key.values())


def all_allow(requirements: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    """Tell whether a set of labels fulfils every requirement; no requirement allows everything."""
    return all(each.allows(labels.get(each.key)) for each in requirements)
