# SPDX-License-Identifier: Apache-2.0
"""Validators: why a GPU pod is refused. They judge the object alone; the tuple at the foot is the product."""

from collections.abc import Callable, Iterator

from app.admission.case import PodForm, ReviewedPod
from app.admission.device_guard import takings
from app.admission.fleet_facts import serving
from app.admission.node_devices import devices_not_mounted, is_privileged, node_not_reached
from app.kube.pods import Container
from app.nodes.model import REPLICAS
from app.values.quantity import whole
from app.values.reasons import Code, Reason, reason

Validator = Callable[[ReviewedPod], Iterator[Reason]]


def amounts_whole(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse fractions and negatives in words that name the alternative (F8)."""
    for container in case.pod.containers:
        for resource in case.gpus_of(container):
            for amounts in (container.requests, container.limits):
                amount = amounts.get(resource)
                if amount is None:
                    continue
                if amount < 0:
                    yield _about(container, Code.QuantityNegative, f"negative {resource}", "zero or more")
                elif not whole(amount) and case.rules.fractional == "Deny":
                    yield _about(container, Code.QuantityFractional, f"a fraction of {resource}", "a whole number")


def limits_present(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse requests without limits, where the policy says so (F7)."""
    if case.rules.requests_only != "Deny":
        return
    for container in case.pod.containers:
        for resource in case.gpus_of(container):
            if resource not in container.limits and container.names(resource):
                yield _about(container, Code.RequestsOnly, f"{resource} in requests only", "limits too")


def limits_equal_requests(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse requests that differ from limits, where the policy says so (F7)."""
    if case.rules.mismatch != "Deny":
        return
    for container in case.pod.containers:
        for resource in case.gpus_of(container):
            both = resource in container.limits and resource in container.requests
            if both and container.limits[resource] != container.requests[resource]:
                yield _about(
                    container,
                    Code.RequestLimitMismatch,
                    f"{resource} requests differ from limits",
                    "one number",
                )


def not_too_many(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse more GPUs than the policy allows a pod (F26)."""
    allowed, claims = case.rules.max_gpus_per_pod, case.claimed.classes
    if allowed is None:
        return
    asked = sum(amount for _, amount in (*case.amounts(), *case.handed_on)) + sum(count or 0 for _, count in claims)
    if asked > allowed:
        yield reason(Code.TooManyGPUs, f"{asked} GPUs asked", f"at most {allowed} per pod")
    elif any(count is None for _, count in claims):
        yield reason(Code.TooManyGPUs, "all GPUs of a node claimed", f"at most {allowed} per pod")


def annotations_parse(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse annotations that do not parse: a need nobody understands would be no need."""
    yield from case.ruling.invalid


def policies_agree(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod for which policies and annotations contradict each other."""
    yield from case.ruling.conflicts


def devices_asked_for(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse GPUs that are taken through the environment or a mount instead of being asked for (F12)."""
    if case.rules.visible_devices != "Deny":
        return
    for taking in takings(case):
        beside = "beside a GPU" if taking.given else "without a GPU"
        who = "pod" if taking.path[0] == "metadata" else f"container {taking.who[:24]}"
        yield reason(Code.VisibleDevicesForbidden, f"{who}: {taking.word} {beside}", taking.wants)


def unprivileged(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse privileged containers in GPU pods: they see every GPU of the node (F14)."""
    if case.rules.privileged != "Deny":
        return
    for container in case.pod.containers:
        if is_privileged(case, container):
            yield _about(container, Code.PrivilegedGPUPod, "privileged in a GPU pod", "privileged: false")


def scheduled_by_us(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse pods that go around the scheduler: to a node of their choice, or to one that the policy does not name."""
    if case.rules.bypass != "Deny":
        return
    if case.pod.node_name:
        yield reason(Code.BypassesScheduling, "spec.nodeName is set", "none, so that the scheduler chooses")
    wanted = case.rules.scheduler_name
    if wanted is not None and case.pod.scheduler_name != wanted:
        yield reason(Code.BypassesScheduling, "another scheduler than the policy's", f"schedulerName {wanted}")


def replicas_not_gpus(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse several replicas of shared GPUs, which may all be of one GPU: more are not more of it (F68).

    A `.shared` resource says so itself; a plain one does where every GPU that would do is shared.
    """
    if case.rules.shared_replicas != "Deny":
        return
    kinds = [group.node_class for group in serving(case.ruling.demand, case.fleet)]
    for container in case.pod.containers:
        for resource in case.gpus_of(container):
            asked = container.asks(resource)
            only = [kind.unit(resource) in REPLICAS for kind in kinds if kind.allocatable(resource)]
            if asked > 1 and (resource.endswith(".shared") or (only and all(only))):
                yield _about(container, Code.SharedReplicasAskedAsGPUs, f"{asked} replicas of shared GPUs", "1 of them")


def _about(container: Container, code: Code, wrong: str, wants: str) -> Reason:
    return reason(code, f"container {container.name[:24]}: {wrong}", wants)


VALIDATORS: tuple[Validator, ...] = (
    amounts_whole,
    limits_present,
    limits_equal_requests,
    not_too_many,
    annotations_parse,
    policies_agree,
    devices_asked_for,
    devices_not_mounted,
    node_not_reached,
    unprivileged,
    scheduled_by_us,
    replicas_not_gpus,
)
"""All of them run, so that one answer names everything."""

GUARDS: frozenset[Validator] = frozenset({devices_asked_for, devices_not_mounted, node_not_reached})
"""Those for whatever reaches us, whether it asks for a GPU or not."""


def validators_of(case: ReviewedPod) -> tuple[Validator, ...]:
    """List the validators that an object is for."""
    if (case.asks or case.handed_on) and case.form is not PodForm.Ephemeral:
        return VALIDATORS
    return tuple(each for each in VALIDATORS if each in GUARDS)
