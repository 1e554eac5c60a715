# SPDX-License-Identifier: Apache-2.0
"""Problems between policies of a set: two of one name, or two of one priority that set a field differently."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from app.policy.compiled import CompiledPolicy
from app.policy.fields import Merge, merge_rules
from app.policy.schema import Spec
from app.values.label_requirements import disjoint

MOST_TIES = 100
"""Problems that are reported of a set. A guess; an administrator fixes fewer at once."""


def policy_set_problems(policies: list[CompiledPolicy], problems: list[str]) -> Iterator[None]:
    """Add the problems of a set to `problems`, at most MOST_TIES of them.

    Each step compares one policy with those of the same priority before it.
    """
    seen: dict[str, CompiledPolicy] = {}
    for policy in policies:
        if policy.name in seen:
            problems.append(f"{policy.origin}: metadata.name: {policy.name} is taken by {seen[policy.name].origin}")
        seen[policy.name] = policy
    ranked = sorted(seen.values(), key=lambda policy: (policy.spec.priority, policy.name))
    limit = len(problems) + MOST_TIES
    for _, group in groupby(ranked, key=lambda policy: policy.spec.priority):
        before: list[tuple[CompiledPolicy, dict[str, Any]]] = []
        for policy in group:
            values = _single_values(policy)
            for other, other_values in before:
                problems.extend(_contradictions(other, other_values, policy, values))
            if len(problems) > limit:
                del problems[limit:]
                problems.append(f"{policy.origin}: more policies contradict each other: fix these first")
                return
            before.append((policy, values))
            yield


def _contradictions(
    one: CompiledPolicy, values: Mapping[str, Any], other: CompiledPolicy, other_values: Mapping[str, Any]
) -> Iterable[str]:
    differing = [field for field, value in values.items() if other_values.get(field, value) != value]
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


SINGLE_VALUED = tuple(path for path, merge, _ in merge_rules(Spec) if merge is Merge.Single)
"""Fields of which the value of the highest priority wins (docs/reference/policy.md#merge), which is undefined at equal
priority."""


def _single_values(policy: CompiledPolicy) -> dict[str, Any]:
    """Give the values that a policy sets for SINGLE_VALUED fields."""
    fields: Any = policy.spec.model_dump(by_alias=True)
    single = {}
    for field in SINGLE_VALUED:
        value = fields
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            single[field] = value
    return single
