# SPDX-License-Identifier: Apache-2.0
"""A policy as it applies to one pod, and the merge of several by which the highest priority wins."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.policy.schema import STRICTNESS, Action, Rule, Spec


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """A policy that matches the pod, with the action of each of its rules for this pod."""

    name: str
    spec: Spec
    actions: Mapping[Rule, Action]

    def applies(self, rule: Rule, level: Action) -> bool:
        """Tell whether the action of a rule is `level` or stricter."""
        return STRICTNESS[self.actions[rule]] >= STRICTNESS[level]


def highest_priority_value(
    applied: Iterable[AppliedPolicy], rule: Rule, level: Action, read: Callable[[Spec], Any]
) -> Any:
    """Give the value of the policy of highest priority that sets it with the action `level` or a stricter one.

    `applied` is in order of priority, and `read` gives the value in a spec, None if it does not set one.
    """
    values = (read(policy.spec) for policy in applied if policy.applies(rule, level))
    return next((value for value in values if value is not None), None)
