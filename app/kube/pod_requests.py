# SPDX-License-Identifier: Apache-2.0
"""Pod requests: the sum of each resource that a pod requests, as kube-scheduler computes it, in whole units.

CPU is in milli-CPU, everything else in bytes or pieces, rounded up, as the NodeResourcesFit plugin counts (fit.go;
framework types.go Resource.Add: MilliValue for cpu, Value for the others).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from app.kube.pod_object import ContainerObject, PodSpec, Resources
from app.values.errors import QuantityError
from app.values.quantity import parse_quantity

Amounts = tuple[tuple[str, int], ...]
"""(resource, units), sorted."""

CPU, PODS = "cpu", "pods"
CORE_MILLI = 1000
"""Milli-CPU of one core."""
LARGEST_KEPT = 1024
"""Characters of a container's amounts that are cached, so that the cache takes 8 MB at most; few have more than 100."""
MOST_SHARED = 16
"""Resources of a pod whose sum is shared with others; real pods have fewer, and the shared sums stay below 16 MB."""


class PodRequests(msgspec.Struct, frozen=True, gc=False):
    """The requests of a bound, unfinished pod for the resources of its node, including GPUs.

    A large cluster has 500,000 pods, and no cycle of references leads through this object: the garbage collector need
    not visit it (docs/decisions/0035-keep-what-is-known-of-pods-out-of-garbage-collection.md).
    """

    node: str
    amounts: Amounts

    @property
    def may_have_gpus(self) -> bool:
        """Tell whether a GPU may be among the resources: every GPU resource has a domain in its name, as in `a.b/c`."""
        return any("/" in name for name, _ in self.amounts)


@lru_cache(maxsize=4096)
def quantity_units(resource: str, text: str) -> int:
    """Convert a quantity to whole units of its resource; one that does not parse counts as 0.

    The API server refuses such a quantity, so that it can only occur in a snapshot file.
    """
    try:
        amount = parse_quantity(text)
    except QuantityError:
        return 0
    return -int(-amount * (1000 if resource == CPU else 1) // 1)


def read_amounts(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """Read a map of quantities, such as a node's allocatable, into units by resource."""
    return {
        name: quantity_units(name, amount if isinstance(amount, str) else str(amount))
        for name, amount in (quantities or {}).items()
    }


def checked_pod_requests(spec: PodSpec) -> Amounts:
    """Check and sum the requests of a pod, at once if its containers have amounts that were met before.

    Raises QuantityError.
    """
    if not (spec.init_containers or spec.resources or spec.overhead):
        try:
            summed = [_known_amounts(container.resources) for container in spec.containers]
        except TypeError:
            summed = []  # a container without requests, or amounts that are no strings
        if len(summed) == 1:
            return summed[0]
        if summed:
            total: dict[str, int] = {}
            for amounts in summed:
                total = _sum(total, dict(amounts))
            return tuple(sorted(total.items()))
    check_requests(spec)
    return sum_pod_requests(spec)


def _known_amounts(resources: Resources | None) -> Amounts:
    """Return the sum for a container. Raises TypeError where an amount is not a string, or for very many amounts."""
    if resources is None or resources.requests is None:
        raise TypeError
    requests, limits = resources.requests, resources.limits or {}
    if len("".join((*requests, *requests.values(), *limits, *limits.values()))) > LARGEST_KEPT:
        raise TypeError
    return _amounts_of_container(tuple(requests.items()), tuple(limits.items()))


@lru_cache(maxsize=4096)
def _amounts_of_container(requests: tuple[tuple[str, str], ...], limits: tuple[tuple[str, str], ...]) -> Amounts:
    resources = Resources(requests=dict(requests), limits=dict(limits))
    spec = PodSpec(containers=(ContainerObject(resources=resources),))
    check_requests(spec)
    return sum_pod_requests(spec)


def check_requests(spec: PodSpec) -> None:
    """Check that a pod requests only amounts that the API server accepts, since a sum of others would be wrong.

    The API server accepts no negative amount, and `pods` is a resource of nodes only
    (pkg/apis/core/validation/validation.go). Raises QuantityError.
    """
    items = (*(container.resources for container in (*spec.init_containers, *spec.containers)), spec.resources)
    for resources in filter(None, items):
        _check(resources.requests)
        _check(resources.limits)
    _check(spec.overhead)


def _check(amounts: Mapping[str, Any] | None) -> None:
    for name, amount in (amounts or {}).items():
        if name == PODS or not is_requestable(str(amount)):
            raise QuantityError(f"{name[:63]}: got {str(amount)[:40]!r}, wants an amount that a pod can request")


@lru_cache(maxsize=4096)
def is_requestable(text: str) -> bool:
    """Tell whether the API server accepts a text as a requested amount."""
    try:
        return parse_quantity(text) >= 0
    except QuantityError:
        return False


def sum_pod_requests(spec: PodSpec) -> Amounts:
    """Sum the requests of a pod: the running containers or the peak of the init containers, and the overhead.

    The rule is PodRequests in k8s.io/component-helpers resource/helpers.go. A limit counts where the request is missing
    (API defaulting). Pod-level requests replace those of the containers.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers:
        total = _sum(running, _requests(container.resources))
        if container.sidecar:
            running = total
        else:
            peak = _larger(peak, total)
    for container in spec.containers:
        running = _sum(running, _requests(container.resources))
    whole = _larger(running, peak) if peak else running
    if spec.resources:
        whole |= _requests(spec.resources)
    if spec.overhead:
        whole = _sum(whole, read_amounts(spec.overhead))
    amounts = tuple(sorted((key, amount) for key, amount in whole.items() if amount))
    return _shared(amounts) if len(amounts) <= MOST_SHARED else amounts


@lru_cache(maxsize=4096)
def _shared(amounts: Amounts) -> Amounts:
    """Return the shared object of equal amounts, of some 200 bytes: pods of one template request the same."""
    return amounts


def _requests(resources: Resources | None) -> dict[str, int]:
    return read_amounts(resources.limits) | read_amounts(resources.requests) if resources else {}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    if not one:
        return dict(other)
    return {**one, **{key: one.get(key, 0) + amount for key, amount in other.items()}}


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {**one, **{key: max(one.get(key, 0), amount) for key, amount in other.items()}}
