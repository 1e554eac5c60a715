# SPDX-License-Identifier: Apache-2.0
"""Validators: why a GPU pod is refused. `no_idle_gpus`, with the idle threshold, judges the use of its namespace.

The table of all validators is at the end. Those of devices without a request are in device_guard.py.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from app.admission.claim_review import claims_restricted, leaves_to_pods
from app.admission.device_guard import devices_asked_for, devices_not_mounted, node_not_reached, unprivileged
from app.admission.reviewed_pod import PodForm, ReviewedPod
from app.knowledge.gpu_resources import Families, is_refused, similar_resources
from app.kube.pod_object import pod_object
from app.kube.pod_requests import CORE_MILLI, sum_pod_requests
from app.kube.pods import Container
from app.nodes.model import SHARED_UNITS
from app.policy.demand import Demand
from app.policy.schema_admission import IDLE_BELOW, Idle
from app.values.quantity import parse_quantity, parse_seconds
from app.values.reasons import Code, Reason, counted, join_with_or, reason
from app.world.fleet_facts import FleetFacts, fitting_groups

DEFAULT_AFTER, DEFAULT_GPUS = "4h", 1


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """The rule with its defaults: `gpus` that were idle for `seconds`, with an activity of at most `below` (of one)."""

    after: str
    seconds: float
    below: float
    gpus: int


def idle_limit(idle: Idle) -> IdleLimit:
    """Fill in what a policy leaves out."""
    after = idle.after or DEFAULT_AFTER
    below = IDLE_BELOW if idle.below is None else idle.below / 100
    return IdleLimit(after, parse_seconds(after) or 0.0, below, idle.gpus or DEFAULT_GPUS)


def no_idle_gpus(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod whose namespace holds too many idle GPUs."""
    if review.rules.idle is None:
        return
    limit = idle_limit(review.rules.idle)
    known = review.context.world.idle_seconds.get(limit.below, {}).get(review.pod.namespace, ())
    idle = sum(seconds >= limit.seconds for seconds in known)
    if idle >= limit.gpus:
        have = "has" if idle == 1 else "have"
        held = f"the namespace holds {counted(idle, 'GPU')} that {have} been idle for {limit.after}"
        allowed = f"fewer than {limit.gpus} may be{review.rules.by('idle')}" if limit.gpus > 1 else "none may be"
        by = "" if limit.gpus > 1 else review.rules.by("idle")
        yield reason(Code.IdleGPUsHeld, f"{held}; {allowed}{by}")


Validator = Callable[[ReviewedPod], Iterator[Reason]]


def names_valid(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse resource names that the API server refuses after us, in words that say what is meant.

    The resources of the pod itself are CPU, memory and huge pages alone (KEP-2837).
    """
    families = review.context.world.knowledge.families
    for name in pod_level_gpus(review.document, families):
        problem = f"spec.resources of the pod names {name[:63]}, which the API server refuses there"
        yield reason(Code.ResourceNameInvalid, problem)
    for container in review.pod.containers:
        for name in sorted(filter(is_refused, {*container.requests, *container.limits})):
            offered = (
                resource for group in review.context.world.fleet.node_groups for resource, _ in group.node_class.offered
            )
            meant = join_with_or(similar_resources(name, offered, families)[:2])
            hint = f"; did you mean {meant}?" if meant else ""
            problem = f"names resource {name[:63]}, which the API server refuses{hint}"
            yield _container_reason(container, Code.ResourceNameInvalid, problem)


def pod_level_gpus(document: Mapping[str, Any], families: Families) -> list[str]:
    """List the GPU resources among the resources of the pod itself."""
    resources = (document.get("spec") or {}).get("resources") or {}  # read_pod has checked the types
    names = (name for kind in ("limits", "requests") for name in resources.get(kind) or ())
    gives_gpus = (families.of, families.implicit_class, families.passthrough_family)
    return [name for name in dict.fromkeys(names) if any(known(name) for known in gives_gpus)]


def amounts_whole(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse fractions and negative amounts, with the alternative in the message."""
    for container, resource in review.gpus.named:
        for amounts in (container.requests, container.limits):
            amount = amounts.get(resource)
            if amount is None:
                continue
            if amount < 0:
                yield _container_reason(container, Code.QuantityNegative, f"asks for a negative amount of {resource}")
            elif amount.denominator != 1 and review.rules.fractional == "Deny":
                problem = f"asks for a fraction of {resource}, which Kubernetes gives only as a whole number"
                yield _container_reason(container, Code.QuantityFractional, problem)


def limits_present(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse requests without limits, where the policy denies them."""
    if review.rules.requests_only != "Deny":
        return
    for container, resource in review.gpus.named:
        if resource not in container.limits and container.has_nonzero(resource):
            problem = f"has {resource} in requests but not in limits{review.rules.by('requests_only')}"
            yield _container_reason(container, Code.RequestsOnly, problem)


def limits_equal_requests(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse requests that differ from limits, where the policy denies them."""
    if review.rules.mismatch != "Deny":
        return
    for container, resource in review.gpus.named:
        both = resource in container.limits and resource in container.requests
        if both and container.limits[resource] != container.requests[resource]:
            problem = f"requests another amount of {resource} than its limit{review.rules.by('mismatch')}"
            yield _container_reason(container, Code.RequestLimitMismatch, problem)


def not_too_many(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod that asks for more GPUs than the policy allows."""
    if review.rules.max_gpus_per_pod is None:
        return
    units = sum(amount for _, amount in (*review.gpus.amounts, *review.gpus.passthrough))
    if (problem := review.rules.too_many(units, review.ruling.claimed.most, _by_whom(review))) is not None:
        yield problem


def _by_whom(review: ReviewedPod) -> str:
    """Name the containers that ask for GPUs, with their amounts; empty for one. Claims belong to the whole pod."""
    asked = {container.name: review.gpus.units_of(container) for container in review.pod.containers}
    shown = [f"{name[:63]} {units}" for name, units in asked.items() if units > 0]
    return f" ({', '.join(shown)})" if len(shown) > 1 else ""


def memory_equals_limits(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse memory requests of GPU pods that are not their limits, where the policy denies them."""
    if review.rules.memory_requests != "Deny":
        return
    for container in review.pod.containers:
        limit, request = container.limits.get("memory"), container.requests.get("memory")
        if limit is None or limit != request:
            found = "has no limit of memory" if limit is None else "requests less memory than its limit"
            yield _container_reason(
                container, Code.MemoryRequestNotLimit, f"{found}{review.rules.by('memory_requests')}"
            )


def amounts_per_gpu_in_bounds(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod whose CPU or memory for each GPU, slice or share is out of the policy's bounds.

    A pod requests what kube-scheduler counts, with pod-level requests and init containers. Claims of devices count as
    they do against maxGPUsPerPod.
    """
    bounds = review.rules.per_gpu
    if bounds is None or not (gpus := review.ruling.demand.gpus):
        return
    requested = dict(sum_pod_requests(pod_object(review.document).spec))
    for resource, unit, least, most in (
        ("cpu", CORE_MILLI, bounds.min_cpu, bounds.max_cpu),
        ("memory", 1, bounds.min_memory, bounds.max_memory),
    ):
        amount = requested.get(resource, 0)
        by = review.rules.by("per_gpu")
        if least is not None and amount < parse_quantity(least) * unit * gpus:
            problem = f"requests less {resource} than {least} for each of {counted(gpus, 'GPU')}{by}"
            yield reason(Code.AmountPerGPUOutOfBounds, problem)
        if most is not None and amount > parse_quantity(most) * unit * gpus:
            problem = f"requests more {resource} than {most} for each of {counted(gpus, 'GPU')}{by}"
            yield reason(Code.AmountPerGPUOutOfBounds, problem)


def annotations_parse(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse annotations that do not parse: a need that cannot be read would silently be ignored."""
    yield from review.ruling.invalid


def policies_agree(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod whose policies and annotations contradict each other."""
    yield from review.ruling.conflicts


def scheduled_by_us(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse pods that bypass the scheduler by spec.nodeName, or that name another scheduler than the policy's."""
    if review.rules.bypass != "Deny":
        return
    if review.pod.node_name:
        by = review.rules.by("bypass")
        yield reason(Code.BypassesScheduling, f"spec.nodeName is set, so that no scheduler checks the node{by}")
    scheduler = review.rules.scheduler_name
    if scheduler is not None and review.pod.scheduler_name != scheduler:
        by = review.rules.by("scheduler_name")
        problem = f"names scheduler {review.pod.scheduler_name[:63]}, where {scheduler} is wanted{by}"
        yield reason(Code.BypassesScheduling, problem)


def replicas_not_gpus(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse several replicas of shared GPUs: replicas may be of one GPU, so that more of them are not more GPU.

    A `.shared` resource is always shared; a plain one counts as shared where every GPU that fits is.
    """
    if review.rules.shared_replicas != "Deny":
        return
    demand = review.ruling.demand
    if not any(amount > 1 for _, amount in demand.max_per_container):
        return
    for container, resource in review.gpus.named:
        amount = container.requested(resource)
        if amount > 1 and (
            resource.endswith(".shared") or _always_shared(demand, review.context.world.fleet, resource)
        ):
            problem = f"asks for {amount} replicas of shared GPUs{review.rules.by('shared_replicas')}"
            yield _container_reason(container, Code.SharedReplicasAskedAsGPUs, problem)


@lru_cache(maxsize=256)
def _always_shared(demand: Demand, fleet: FleetFacts, resource: str) -> bool:
    """Tell whether a resource is a share of a GPU on each node that fits and offers it, and on one at least.

    What the nodes are counts, whether or not they give several units.
    """
    of_one = replace(demand, max_per_container=(), several_units=None)
    classes = [group.node_class for group in fitting_groups(of_one, fleet)]
    shared = [node_class.unit(resource) in SHARED_UNITS for node_class in classes if node_class.allocatable(resource)]
    return bool(shared) and all(shared)


def claims_known(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod that names claims which are not there, where the review of the claims alone would not be enough.

    Whether it claims GPUs is not known, so that it is refused as well for what would be wrong with a GPU pod.
    """
    if not review.ruling.claimed.unknown or review.context.form is not PodForm.Pod:
        return
    if leaves_to_pods(review) or any(True for judge in VALIDATORS if judge not in GUARDS for _ in judge(review)):
        missing = review.ruling.claimed.unknown[0]
        yield reason(Code.ClaimNotKnown, f"{missing} does not exist, and policies restrict the pod's GPUs")


def restricted_claims(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod whose claim was not restricted and may get a device that policies deny."""
    return claims_restricted(review) if review.pod.claims else iter(())


def _container_reason(container: Container, code: Code, problem: str) -> Reason:
    return reason(code, f"container {container.name[:63]} {problem}")


VALIDATORS: tuple[Validator, ...] = (
    names_valid,
    amounts_whole,
    limits_present,
    limits_equal_requests,
    not_too_many,
    claims_known,
    restricted_claims,
    memory_equals_limits,
    amounts_per_gpu_in_bounds,
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

GUARDS: frozenset[Validator] = frozenset(
    {names_valid, claims_known, restricted_claims, devices_asked_for, devices_not_mounted, node_not_reached}
)
"""Validators for every object that reaches the webhook, whether it asks for a GPU or not."""


OF_AMOUNTS: frozenset[Validator] = frozenset({memory_equals_limits, amounts_per_gpu_in_bounds})
"""Validators that read CPU or memory, which can be changed in a running pod (pods/resize)."""


def validators_of(review: ReviewedPod) -> tuple[Validator, ...]:
    """List the validators that apply to the object."""
    if review.context.form is PodForm.Resize:
        concerned = review.asks_for_gpu or review.gpus.passthrough
        return tuple(validator for validator in VALIDATORS if validator in OF_AMOUNTS and concerned)
    if (review.asks_for_gpu or review.gpus.passthrough) and review.context.form is not PodForm.Ephemeral:
        return VALIDATORS
    return tuple(validator for validator in VALIDATORS if validator in GUARDS)


def run_validators(review: ReviewedPod, milder: ReviewedPod) -> tuple[tuple[Reason, ...], list[str]]:
    """Run every validator: (reasons to refuse, warnings of what policies that only warn would refuse)."""
    reasons = tuple(dict.fromkeys(problem for validator in validators_of(review) for problem in validator(review)))
    if milder is review:
        return reasons, []
    warned = (problem for validator in validators_of(milder) for problem in validator(milder))
    return reasons, [warning_of(problem) for problem in warned if problem not in reasons]


def warning_of(problem: Reason) -> str:
    """Write what a policy that only warns would refuse."""
    return f"{problem.advice} (warning only)"
