# SPDX-License-Identifier: Apache-2.0
"""Compiled policies: the form in which the service holds the GPUPolicy documents.

`in_force` applies their dates: rules that enforce only from a day on, and exceptions that expire. The caller passes in
the day as YYYY-MM-DD in UTC; such days compare as text.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.knowledge.products import ProductPattern
from app.policy.schema import STRICTNESS, Action, Spec
from app.policy.schema_placement import Rule
from app.values.label_requirements import Requirement


@dataclass(frozen=True, slots=True)
class PodSelection:
    """The pods that a policy selects, by requirements on the labels of namespace and pod; None without a selector."""

    namespace: tuple[Requirement, ...] | None
    pod: tuple[Requirement, ...] | None


EVERY_POD = PodSelection(None, None)


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """One compiled policy.

    `origin` is file:line:column of its name, for messages. `workload_classes` is None if the policy does not depend on
    the workload class. `exceptions` are pairs of the selected pods and the rules that are off for them.
    `doubts` are texts about what cannot be meant, and `unknown_products` the patterns that match no product of the
    tables, each with its text, which holds where no node of the fleet has such a product.
    """

    name: str
    origin: str
    spec: Spec
    match: PodSelection
    workload_classes: frozenset[str] | None
    exceptions: tuple[tuple[PodSelection, tuple[Rule, ...]], ...] = ()
    doubts: tuple[str, ...] = ()
    unknown_products: tuple[tuple[ProductPattern, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All policies, highest priority first, and those of equal priority by name.

    `hash` is the SHA-256 of their canonical form, in hexadecimal. `fallback` is the policy for pods that none of them
    matches.
    """

    policies: tuple[CompiledPolicy, ...]
    hash: str
    fallback: CompiledPolicy | None = None


def policy_set_hash(policies: Iterable[CompiledPolicy]) -> str:
    """Hash the content of policies, independent of their order."""
    canonical = {policy.name: policy.spec.model_dump(mode="json", by_alias=True) for policy in policies}
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()


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
