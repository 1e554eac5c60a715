# SPDX-License-Identifier: Apache-2.0
"""Dates in policies: rules that enforce only from a day on, and exceptions that expire.

The caller passes in the day as YYYY-MM-DD in UTC; such days compare as text.
"""

from dataclasses import replace

from app.policy.compiled import CompiledPolicy, PolicySet, policy_set_hash
from app.policy.schema import STRICTNESS, Action


def in_force(policy_set: PolicySet, today: str) -> PolicySet:
    """Give the policies as they apply on a day.

    Before `enforceFrom` the action Enforce counts as Warn. An exception has no effect from the day after
    `expires`.
    """
    policies = tuple(_policy_on(policy, today) for policy in policy_set.policies)
    return replace(policy_set, policies=policies, hash=policy_set_hash(policies))


def expired_exceptions(policy_set: PolicySet, today: str) -> tuple[tuple[str, str, str], ...]:
    """List the exceptions that have expired before a day, as (policy, owner, last day)."""
    return tuple(
        (policy.name, exception.owner, exception.expires)
        for policy in policy_set.policies
        for exception in policy.spec.exceptions
        if exception.expires < today
    )


def _policy_on(policy: CompiledPolicy, today: str) -> CompiledPolicy:
    remaining = [index for index, exception in enumerate(policy.spec.exceptions) if exception.expires >= today]
    spec = policy.spec.model_copy(update={"exceptions": tuple(policy.spec.exceptions[index] for index in remaining)})
    if spec.enforce_from and today < spec.enforce_from:
        actions = {rule: _at_most_warn(action) for rule, action in spec.actions.items()}
        spec = spec.model_copy(update={"action": _at_most_warn(spec.action), "actions": actions})
    return replace(policy, spec=spec, exceptions=tuple(policy.exceptions[index] for index in remaining))


def _at_most_warn(action: Action) -> Action:
    return min(action, Action.Warn, key=STRICTNESS.__getitem__)
