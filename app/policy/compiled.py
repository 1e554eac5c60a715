# SPDX-License-Identifier: Apache-2.0
"""Policies, compiled: what the service keeps of the documents that people write."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from app.policy.schema import Rule, Spec
from app.values.label_requirements import Requirement


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which pods: requirements on the namespace's and on the pod's labels, None where there is no selector."""

    namespace: tuple[Requirement, ...] | None
    pod: tuple[Requirement, ...] | None


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """One policy, compiled. `exceptions`: which pods, and which rules are off for them."""

    name: str
    origin: str
    spec: Spec
    match: PodSelection
    workload_classes: frozenset[str] | None
    exceptions: tuple[tuple[PodSelection, tuple[Rule, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All policies, highest priority first, equal ones by name.

    `hash`: SHA-256 of their canonical form, in hex. `fallback`: for pods that none of them is for.
    """

    policies: tuple[CompiledPolicy, ...]
    hash: str
    fallback: CompiledPolicy | None = None


def hash_of(policies: Iterable[CompiledPolicy]) -> str:
    """Hash what policies say, whatever order their files came in."""
    canonical = {policy.name: policy.spec.model_dump(mode="json", by_alias=True) for policy in policies}
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()
