# SPDX-License-Identifier: Apache-2.0
"""Evaluation of NVIDIA_REQUIRE_* variables as NVIDIA's container toolkit does before it starts a container.

In a value, spaces separate alternatives, and commas separate clauses that must all hold. All variables must hold
(NVIDIA/nvidia-container-toolkit internal/requirements). In its mode jit-cdi the toolkit does not look at them
(docs/decisions/0026-judge-images-as-the-container-toolkit-does.md).
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from app.values.versions import Version, parse_version

_CLAUSE = re.compile(r"([a-z]+)(>=|<=|!=|=|<|>)([A-Za-z0-9.]+)")
_COMPARE: Mapping[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
CONSUMER_BRANDS = ("geforce", "titan")
"""Prefixes of the brands of consumer GPUs, as NVML names them (libnvidia-container src/nvc_info.c)."""


@dataclass(frozen=True, slots=True)
class RequireClause:
    """One comparison; `version` is None for a brand, and for a value that is not a version, which never holds."""

    subject: str
    comparison: str
    value: str
    version: Version | None


RequireExpression = tuple[tuple[tuple[RequireClause, ...], ...], ...]
"""The requirement of a container: variables, which are alternatives, which are clauses that must all hold."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts about a node with which clauses are compared; a comparison with an unknown fact, None, holds.

    `datacenter` says that the GPU is not of a consumer brand (GeForce, TITAN).
    """

    driver: Version | None
    cuda: Version | None
    capability: Version | None
    datacenter: bool | None


def parse_require(values: Iterable[str]) -> RequireExpression:
    """Read the values of all NVIDIA_REQUIRE_* variables of a container, without empty ones.

    A clause that does not parse never holds: the toolkit refuses to start such a container. Their number is not limited
    here, since a pod with more clauses than MOST_CLAUSES of kube/pod_limits.py is not read at all.
    """
    return tuple(
        tuple(tuple(_clause(text) for text in group.split(",")) for group in value.split())
        for value in values
        if value.strip()
    )


def _clause(text: str) -> RequireClause:
    match = _CLAUSE.fullmatch(text)
    if match is None:
        return RequireClause("invalid", "=", text[:40], None)
    subject, comparison, value = match.groups()
    numeric = re.fullmatch(r"\d{1,6}(?:\.\d{1,6}){0,3}", value)
    return RequireClause(subject, comparison, value, parse_version(value) if numeric else None)


def requirement_holds(expression: RequireExpression, host: HostFacts) -> bool:
    """Tell whether a container with these variables would start on a host."""
    return all(any(all(_holds(clause, host) for clause in group) for group in variable) for variable in expression)


def _holds(clause: RequireClause, host: HostFacts) -> bool:
    if clause.subject == "invalid":
        return False
    if clause.subject == "brand":
        if host.datacenter is None:
            return True
        consumer = clause.value.lower().startswith(CONSUMER_BRANDS)
        return (consumer is not host.datacenter) is (clause.comparison != "!=")
    facts = {"cuda": host.cuda, "driver": host.driver, "arch": host.capability}
    if clause.subject not in facts:
        return True  # the toolkit skips properties that it does not know
    fact = facts[clause.subject]
    if clause.version is None:
        return False
    return fact is None or _COMPARE[clause.comparison](fact, clause.version)


def lowest_cuda(expression: RequireExpression) -> Version | None:
    """Give the least CUDA version that the container requires; None if it requires none.

    It is the highest over all variables of the lowest `cuda>=` in each.
    """
    lows = []
    for variable in expression:
        bounds = [
            clause.version
            for group in variable
            for clause in group
            if clause.subject == "cuda" and clause.comparison in (">=", "=", ">") and clause.version
        ]
        if bounds:
            lows.append(min(bounds))
    return max(lows, default=None)
