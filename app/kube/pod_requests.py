# SPDX-License-Identifier: Apache-2.0
"""Ordinary resources: what a pod requests of each resource as kube-scheduler sums it, in whole units.

CPU is in milli-CPU, everything else in bytes or pieces, rounded up, as NodeResourcesFit counts (fit.go; framework
types.go Resource.Add: MilliValue for cpu, Value for the others).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.values.errors import QuantityError
from app.values.quantity import parse_quantity

Amounts = tuple[tuple[str, int], ...]
"""(resource, units), sorted."""

CPU, PODS = "cpu", "pods"
CORE_MILLI = 1000
"""Milli-CPU of one core."""


@dataclass(frozen=True, slots=True)
class PodRequests:
    """What a bound, unfinished pod has booked of a node's resources, GPUs among them."""

    node: str
    amounts: Amounts


@lru_cache(maxsize=4096)
def units(resource: str, text: str) -> int:
    """Count a quantity in the units of its resource; one that does not parse is worth nothing.

    The API server refuses such a quantity, so that it can only stand in a file.
    """
    try:
        amount = parse_quantity(text)
    except QuantityError:
        return 0
    return -int(-amount * (1000 if resource == CPU else 1) // 1)


def amounts_of(found: object) -> dict[str, int]:
    """Read a map of quantities, such as allocatable; anything else is empty."""
    if not isinstance(found, dict):
        return {}
    return {name: units(name, amount if isinstance(amount, str) else str(amount)) for name, amount in found.items()}


def check_requests(spec: Mapping[str, Any]) -> None:
    """Check that a pod requests amounts that the API server takes: a sum of others is no sum of what is used.

    pkg/apis/core/validation/validation.go: no negative amounts, and `pods` is a resource of nodes alone. Raises
    QuantityError.
    """
    for container in (*_containers(spec, "initContainers"), *_containers(spec, "containers"), spec):
        resources = container.get("resources")
        for kind in ("requests", "limits"):
            _check(resources.get(kind) if isinstance(resources, dict) else None)
    _check(spec.get("overhead"))


def _check(amounts: object) -> None:
    for name, amount in amounts.items() if isinstance(amounts, dict) else ():
        if name == PODS or not takes(str(amount)):
            raise QuantityError(f"{str(name)[:63]}: got {str(amount)[:40]!r}, wants an amount that a pod can request")


@lru_cache(maxsize=4096)
def takes(text: str) -> bool:
    """Tell whether the API server takes a text as an amount that is requested."""
    try:
        return parse_quantity(text) >= 0
    except QuantityError:
        return False


def requests_of(spec: Mapping[str, Any]) -> Amounts:
    """Sum what a pod requests: the running containers, or the hungriest moment of its start; and the overhead.

    k8s.io/component-helpers resource/helpers.go PodRequests. Where a request is missing the limit counts (API
    defaulting). Requests of the pod as a whole go before those of its containers (KEP-2837).
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in _containers(spec, "initContainers"):
        total = _sum(running, _asked(container))
        if container.get("restartPolicy") == "Always":
            running = total
        else:
            peak = _larger(peak, total)
    for container in _containers(spec, "containers"):
        running = _sum(running, _asked(container))
    whole = _larger(running, peak) if peak else running
    if spec.get("resources"):
        whole |= _asked(spec)
    if spec.get("overhead"):
        whole = _sum(whole, amounts_of(spec["overhead"]))
    return tuple(sorted((key, amount) for key, amount in whole.items() if amount))


def _containers(spec: Mapping[str, Any], list_name: str) -> Iterable[Mapping[str, Any]]:
    found = spec.get(list_name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else ()


def _asked(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return {}
    requests, limits = amounts_of(resources.get("requests")), resources.get("limits")
    return amounts_of(limits) | requests if limits else requests


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    if not one:
        return dict(other)
    return {**one, **{key: one.get(key, 0) + amount for key, amount in other.items()}}


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {**one, **{key: max(one.get(key, 0), amount) for key, amount in other.items()}}
