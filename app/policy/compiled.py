# SPDX-License-Identifier: Apache-2.0
"""Compiled policies: the form in which the service holds the GPUPolicy documents."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from app.policy.schema import Rule, Spec
from app.values.label_requirements import Requirement


@dataclass(frozen=True, slots=True)
class PodSelection:
    """The pods that a policy selects, by requirements on the labels of namespace and pod; None without a selector."""

    namespace: tuple[Requirement, ...] | None
    pod: tuple[Requirement, ...] | None


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """One compiled policy.

    `origin` is file:line:column of its name, for messages. `workload_classes` is None if the policy does not depend on
    the workload class. `exceptions` are pairs of the selected pods and the rules that are off for them.
    """

    name: str
    origin: str
    spec: Spec
    match: PodSelection
    workload_classes: frozenset[str] | None
    exceptions: tuple[tuple[PodSelection, tuple[Rule, ...]], ...] = ()


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
