# SPDX-License-Identifier: Apache-2.0
"""A policy as it applies to one pod, and the simplest merge of several: the highest priority wins."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.policy.schema import STRICTNESS, Action, Rule, Spec


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """A policy that is for the pod, and the action with which each of its rules applies."""

    name: str
    spec: Spec
    actions: Mapping[Rule, Action]

    def at(self, rule: Rule, level: Action) -> bool:
        """Tell whether a rule of the policy applies with this action or a stricter one."""
        return STRICTNESS[self.actions[rule]] >= STRICTNESS[level]


def first(applied: Iterable[AppliedPolicy], rule: Rule, level: Action, read: Callable[[Spec], Any]) -> Any:
    """Take a single value from the highest priority that sets it with this action or a stricter one."""
    found = (read(each.spec) for each in applied if each.at(rule, level))
    return next((value for value in found if value is not None), None)
