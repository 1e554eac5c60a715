# SPDX-License-Identifier: Apache-2.0
"""Validators: why a GPU pod is refused. They judge the object alone. The table of all validators stands at the end."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from app.admission.device_guard import device_accesses
from app.admission.fleet_facts import fitting_groups
from app.admission.idle_guard import no_idle_gpus
from app.admission.node_devices import devices_not_mounted, is_privileged, node_not_reached
from app.admission.reviewed_pod import PodForm, ReviewedPod
from app.knowledge.resource_names import is_refused, similar_resources
from app.kube.pods import Container
from app.nodes.model import REPLICAS
from app.values.quantity import is_whole
from app.values.reasons import Code, Reason, join_with_or, reason

Validator = Callable[[ReviewedPod], Iterator[Reason]]


def names_valid(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse resource names that the API server refuses after us, in words that say what is meant (F8)."""
    families = review.context.knowledge.families
    for container in review.pod.containers:
        for name in filter(is_refused, container.resources()):
            offered = (
                resource for group in review.context.fleet.node_groups for resource, _ in group.node_class.offered
            )
            meant = join_with_or(similar_resources(name, offered, families)[:2])
            problem = f"the API server refuses resource {name[:24]}"
            wants = meant or "cpu, memory or a name with a domain"
            yield _container_reason(container, Code.ResourceNameInvalid, problem, wants)


def amounts_whole(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse fractions and negative amounts, with the alternative in the message (F8)."""
    for container in review.pod.containers:
        for resource in review.gpu_resources_of(container):
            for amounts in (container.requests, container.limits):
                amount = amounts.get(resource)
                if amount is None:
                    continue
                if amount < 0:
                    yield _container_reason(container, Code.QuantityNegative, f"negative {resource}", "zero or more")
                elif not is_whole(amount) and review.rules.fractional == "Deny":
                    yield _container_reason(
                        container, Code.QuantityFractional, f"a fraction of {resource}", "a whole number"
                    )


def limits_present(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse requests without limits, where the policy denies them (F7)."""
    if review.rules.requests_only != "Deny":
        return
    for container in review.pod.containers:
        for resource in review.gpu_resources_of(container):
            if resource not in container.limits and container.has_nonzero(resource):
                yield _container_reason(container, Code.RequestsOnly, f"{resource} in requests only", "limits too")


def limits_equal_requests(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse requests that differ from limits, where the policy denies them (F7)."""
    if review.rules.mismatch != "Deny":
        return
    for container in review.pod.containers:
        for resource in review.gpu_resources_of(container):
            both = resource in container.limits and resource in container.requests
            if both and container.limits[resource] != container.requests[resource]:
                yield _container_reason(
                    container,
                    Code.RequestLimitMismatch,
                    f"{resource} requests differ from limits",
                    "one number",
                )


def not_too_many(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod that asks for more GPUs than the policy allows (F26)."""
    allowed, claims = review.rules.max_gpus_per_pod, review.ruling.claimed.classes
    if allowed is None:
        return
    total = sum(amount for _, amount in (*review.gpu_amounts(), *review.passthrough_amounts)) + sum(
        count or 0 for _, count in claims
    )
    if total > allowed:
        yield reason(Code.TooManyGPUs, f"{total} GPUs asked{_by_whom(review)}", f"at most {allowed} per pod")
    elif any(count is None for _, count in claims):
        yield reason(Code.TooManyGPUs, "all GPUs of a node claimed", f"at most {allowed} per pod")


def _by_whom(review: ReviewedPod) -> str:
    """Name the containers that ask for GPUs, with their amounts; empty for one. Claims belong to the whole pod."""
    asked = {
        container.name: sum(-int(-container.requested(name) // 1) for name in review.gpu_resources_of(container))
        for container in review.pod.containers
    }
    shown = [f"{name[:24]} {units}" for name, units in asked.items() if units > 0]
    return f" ({', '.join(shown)})" if len(shown) > 1 else ""


def annotations_parse(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse annotations that do not parse: a need that cannot be read would silently be ignored."""
    yield from review.ruling.invalid


def policies_agree(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod whose policies and annotations contradict each other."""
    yield from review.ruling.conflicts


def devices_asked_for(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse GPUs that are taken through the environment or a mount instead of being requested (F12)."""
    if review.rules.visible_devices != "Deny":
        return
    for access in device_accesses(review):
        beside = "beside a GPU" if access.asks_for_gpu else "without a GPU"
        owner = "pod" if access.path[0] == "metadata" else f"container {access.owner[:24]}"
        yield reason(Code.VisibleDevicesForbidden, f"{owner}: {access.setting} {beside}", access.alternative)


def unprivileged(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse privileged containers in GPU pods, which see every GPU of the node (F14)."""
    if review.rules.privileged != "Deny":
        return
    for container in review.pod.containers:
        if is_privileged(review, container):
            yield _container_reason(container, Code.PrivilegedGPUPod, "privileged in a GPU pod", "privileged: false")


def scheduled_by_us(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse pods that bypass the scheduler by spec.nodeName, or that name another scheduler than the policy's."""
    if review.rules.bypass != "Deny":
        return
    if review.pod.node_name:
        yield reason(Code.BypassesScheduling, "spec.nodeName is set", "none, so that the scheduler chooses")
    scheduler = review.rules.scheduler_name
    if scheduler is not None and review.pod.scheduler_name != scheduler:
        yield reason(Code.BypassesScheduling, "another scheduler than the policy's", f"schedulerName {scheduler}")


def replicas_not_gpus(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse several replicas of shared GPUs: replicas may be of one GPU, so that more of them are not more GPU (F68).

    A `.shared` resource is always shared; a plain one counts as shared where every GPU that fits is.
    """
    if review.rules.shared_replicas != "Deny":
        return
    demand = review.ruling.demand
    if not any(amount > 1 for _, amount in demand.max_per_container):
        return
    of_one = replace(
        demand, max_per_container=(), several_units=None
    )  # what the nodes are, whether or not they give several units
    classes = [group.node_class for group in fitting_groups(of_one, review.context.fleet)]
    for container in review.pod.containers:
        for resource in review.gpu_resources_of(container):
            amount = container.requested(resource)
            shared = [
                node_class.unit(resource) in REPLICAS for node_class in classes if node_class.allocatable(resource)
            ]
            if amount > 1 and (resource.endswith(".shared") or (shared and all(shared))):
                yield _container_reason(
                    container, Code.SharedReplicasAskedAsGPUs, f"{amount} replicas of shared GPUs", "1 of them"
                )


def _container_reason(container: Container, code: Code, problem: str, wants: str) -> Reason:
    return reason(code, f"container {container.name[:24]}: {problem}", wants)


VALIDATORS: tuple[Validator, ...] = (
    names_valid,
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
    no_idle_gpus,
)
"""All of them run, so that one answer names every reason."""

GUARDS: frozenset[Validator] = frozenset({names_valid, devices_asked_for, devices_not_mounted, node_not_reached})
"""Validators for every object that reaches the webhook, whether it asks for a GPU or not."""


def validators_of(review: ReviewedPod) -> tuple[Validator, ...]:
    """List the validators that apply to the object."""
    if (review.asks_for_gpu or review.passthrough_amounts) and review.context.form is not PodForm.Ephemeral:
        return VALIDATORS
    return tuple(validator for validator in VALIDATORS if validator in GUARDS)
