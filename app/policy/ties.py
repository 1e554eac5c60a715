# SPDX-License-Identifier: Apache-2.0
"""What is wrong with policies side by side: one name twice, or a tie that chance would decide."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from app.policy.compiled import CompiledPolicy
from app.policy.fields import Merge, merging
from app.policy.schema import Spec
from app.values.label_requirements import disjoint

MOST_TIES = 100
"""Contradictions told of a set: nobody mends more at once."""


def set_problems(policies: list[CompiledPolicy], problems: list[str]) -> Iterator[None]:
    """Add to problems names given twice, and scalars that two policies of one priority set differently.

    In steps: one policy beside all those of its priority before it. At most MOST_TIES problems are told.
    """
    seen: dict[str, CompiledPolicy] = {}
    for policy in policies:
        if policy.name in seen:
            problems.append(f"{policy.origin}: metadata.name: {policy.name} is taken by {seen[policy.name].origin}")
        seen[policy.name] = policy
    ranked = sorted(seen.values(), key=lambda policy: (policy.spec.priority, policy.name))
    told = len(problems) + MOST_TIES
    for _, group in groupby(ranked, key=lambda policy: policy.spec.priority):
        before: list[tuple[CompiledPolicy, dict[str, Any]]] = []
        for policy in group:
            says = _single_values(policy)
            for other, contradicts in before:
                problems.extend(_ties(other, contradicts, policy, says))
            if len(problems) > told:
                del problems[told:]
                problems.append(f"{policy.origin}: more policies contradict each other: mend these first")
                return
            before.append((policy, says))
            yield


def _ties(
    one: CompiledPolicy, says: Mapping[str, Any], other: CompiledPolicy, contradicts: Mapping[str, Any]
) -> Iterable[str]:
    differing = [field for field, value in says.items() if contradicts.get(field, value) != value]
    if not differing or _never_together(one, other):
        return
    for field in differing:
        yield (
            f"{other.origin}: spec.{field}: {other.name} and {one.name} both have priority "
            f"{one.spec.priority} and set it differently, give one a higher priority"
        )


def _never_together(one: CompiledPolicy, other: CompiledPolicy) -> bool:
    """Tell whether no pod can be selected by both."""
    if one.workload_classes and other.workload_classes and not one.workload_classes & other.workload_classes:
        return True
    sides = ((one.match.namespace, other.match.namespace), (one.match.pod, other.match.pod))
    return any(disjoint(left or (), right or ()) for left, right in sides)


SINGLE_VALUED = tuple(path for path, merge, _ in merging(Spec) if merge is Merge.Single)
"""Fields of which the highest priority wins (docs/reference/policy.md#merge), so that a tie would be decided by
chance."""


def _single_values(policy: CompiledPolicy) -> dict[str, Any]:
    """Give what a policy sets of SINGLE_VALUED, by field."""
    values: Any = policy.spec.model_dump(by_alias=True)
    found = {}
    for field in SINGLE_VALUED:
        value = values
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[field] = value
    return found
