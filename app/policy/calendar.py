# SPDX-License-Identifier: Apache-2.0
"""Days in policies: rules that enforce only from a day on, and exceptions that end. The day comes in as an argument."""

from dataclasses import replace

from app.policy.compiled import CompiledPolicy, PolicySet, hash_of
from app.policy.schema import STRICTNESS, Action


def in_force(policy_set: PolicySet, today: str) -> PolicySet:
    """Give the policies as they apply on a day (YYYY-MM-DD, UTC).

    Before `enforceFrom` what says Enforce warns (F138); an exception is inert from the day after `expires` (F80).
    """
    policies = tuple(_on(policy, today) for policy in policy_set.policies)
    return replace(policy_set, policies=policies, hash=hash_of(policies))


def expired(policy_set: PolicySet, today: str) -> tuple[tuple[str, str, str], ...]:
    """List the exceptions that are over: (policy, owner, the day they expired)."""
    return tuple(
        (policy.name, each.owner, each.expires)
        for policy in policy_set.policies
        for each in policy.spec.exceptions
        if each.expires < today
    )


def _on(policy: CompiledPolicy, today: str) -> CompiledPolicy:
    alive = [index for index, each in enumerate(policy.spec.exceptions) if each.expires >= today]
    spec = policy.spec.model_copy(update={"exceptions": tuple(policy.spec.exceptions[index] for index in alive)})
    if spec.enforce_from and today < spec.enforce_from:
        actions = {rule: _at_most_warn(action) for rule, action in spec.actions.items()}
        spec = spec.model_copy(update={"action": _at_most_warn(spec.action), "actions": actions})
    return replace(policy, spec=spec, exceptions=tuple(policy.exceptions[index] for index in alive))


def _at_most_warn(action: Action) -> Action:
    return min(action, Action.Warn, key=STRICTNESS.__getitem__)
