# SPDX-License-Identifier: Apache-2.0
"""Caches of what policies say of a pod, by pod template: pods of one template get one ruling and one demand."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Generic, TypeVar

from app.knowledge.tables import Knowledge
from app.kube.claimed_devices import NO_CLAIMED_DEVICES, ClaimedDevices
from app.kube.pods import PREFIX, Pod
from app.policy.compiled import PolicySet
from app.policy.match import Ruling, ruling_for
from app.world.device_state import DeviceState

T = TypeVar("T")
RULINGS_KEPT = 1024
"""Distinct pod templates in a cache; a ruling costs about 150 µs to make and 2 kB to keep."""
LARGEST_KEPT = 1 << 14
"""Characters of the largest template that is cached, so that all take 16 MB at most: a review may have 3 MiB of labels
that the API server has not refused yet. The largest recorded one has 331."""


class TemplateCache(Generic[T]):
    """The results of `make` for the last pod templates, at most RULINGS_KEPT of them."""

    def __init__(self, make: Callable[[Pod, Mapping[str, str], PolicySet, Knowledge, ClaimedDevices], T]) -> None:
        self._make = make
        self._by_template: dict[Any, T] = {}

    def of(
        self,
        pod: Pod,
        labels: Mapping[str, str],
        policies: PolicySet,
        devices: DeviceState,
    ) -> T:
        """Return the result for a Pod in a namespace with these labels, and with what it claims of the devices."""
        claimed, knowledge = _claimed(pod, devices), devices.knowledge
        key = (policies.hash, tuple(sorted(labels.items())), claimed, _template(pod))
        remembered = self._by_template.get(key)
        if remembered is not None:
            return remembered
        made = self._make(pod, labels, policies, knowledge, claimed)
        if len(str(key)) <= LARGEST_KEPT:
            if len(self._by_template) >= RULINGS_KEPT:
                del self._by_template[next(iter(self._by_template))]
            self._by_template[key] = made
        return made


class RulingCache(TemplateCache[Ruling]):
    """The rulings that admission needs."""

    def __init__(self) -> None:
        super().__init__(ruling_for)


def _claimed(pod: Pod, devices: DeviceState) -> ClaimedDevices:
    """Return the GPUs that a pod claims; most have no claim, and name no resource that a DeviceClass serves."""
    serving, prefix = devices.classes.by_resource, devices.knowledge.families.device_class_prefix
    names = (name for container in pod.containers for name in (*container.requests, *container.limits))
    if pod.claims or any(name in serving or name.startswith(prefix) for name in names):
        return devices.claimed(pod)
    return NO_CLAIMED_DEVICES


def _template(pod: Pod) -> tuple[Any, ...]:
    """Return the part of a pod that a ruling depends on, as a hashable key; its claims are a separate key."""
    ours = tuple(sorted((key, value) for key, value in pod.annotations.items() if key.startswith(PREFIX)))
    containers = tuple(
        (
            container.name,
            container.list_name,
            container.sidecar,
            container.image,
            container.env,
            *map(_items, (container.requests, container.limits)),
        )
        for container in pod.containers
    )
    return (tuple(sorted(pod.labels.items())), ours, containers)


def _items(amounts: Mapping[str, Fraction]) -> tuple[tuple[str, int, int], ...]:
    """Return amounts as integers, because hashing a Fraction costs as much as the rest of the key."""
    return tuple(sorted((name, amount.numerator, amount.denominator) for name, amount in amounts.items()))
