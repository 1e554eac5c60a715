# SPDX-License-Identifier: Apache-2.0
"""Merging of the placement blocks of all policies that apply, and of annotations, field by field.

An AppliedPolicy is a policy that matches the pod, with the actions of its rules; of a field with one value the highest
priority wins. See docs/reference/policy.md#merge.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.kube.claimed_devices import ClaimedDevices
from app.kube.numa_zones import device_amounts
from app.kube.pods import Container, Pod
from app.policy.cuda_needs import ImageRow, container_needs, image_builds, image_platforms, minimum_need
from app.policy.demand import DEFAULT_ACCEPT, HEALTH, Demand, HealthRules
from app.policy.needs import (
    ALLOWED_PRODUCTS,
    DENIED_PRODUCTS,
    LEAST_CUDA,
    LEAST_MEMORY,
    NEEDS,
    TOPOLOGY_MANAGER,
    Needs,
    merge_needs,
)
from app.policy.schema import STRICTNESS, Action, Spec
from app.policy.schema_placement import HealthAction, Rule
from app.values.versions import parse_minimum


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """A policy that matches the pod, with the action of each of its rules for this pod."""

    name: str
    spec: Spec
    actions: Mapping[Rule, Action]

    def applies(self, rule: Rule, level: Action) -> bool:
        """Tell whether the action of a rule is `level` or stricter."""
        return STRICTNESS[self.actions[rule]] >= STRICTNESS[level]


def highest_priority_value(
    applied: Iterable[AppliedPolicy], rule: Rule, level: Action, read: Callable[[Spec], Any]
) -> Any:
    """Give the value of the policy of highest priority that sets it with the action `level` or a stricter one.

    `applied` is in order of priority, and `read` gives the value in a spec, None if it does not set one.
    """
    values = (read(policy.spec) for policy in applied if policy.applies(rule, level))
    return next((value for value in values if value is not None), None)


ANNOTATION = "annotation"
"""The name of the pod's annotations among the sources."""

SourceNeeds = list[tuple[str, Needs]]
"""Pairs of a source, which is ANNOTATION or the name of a policy, and its needs; the annotations come first."""


@dataclass(frozen=True, slots=True)
class PodGPURequest:
    """A pod and the GPUs that it requests: `resources` as sorted pairs of GPU resource and units, and DRA claims."""

    pod: Pod
    resources: tuple[tuple[str, int], ...]
    claimed: ClaimedDevices

    def other_vendors_only(self, knowledge: Knowledge) -> bool:
        """Tell whether the pod requests GPUs, but none that run CUDA."""
        requested = (family for name, _ in self.resources if (family := knowledge.families.of(name)))
        families = (*requested, *self.claimed.families)
        return bool(families) and not any(family.cuda for family in families)

    def containers(self, knowledge: Knowledge) -> tuple[Container, ...]:
        """List the containers that get GPUs that run CUDA, by a resource or by a claim."""
        of, with_cuda = knowledge.families.of, {family.name for family in knowledge.families.all if family.cuda}
        resources = {name for name, _ in self.resources if (family := of(name)) and family.cuda}
        claiming = {container for container, family in self.claimed.container_families if family in with_cuda}
        return tuple(
            container
            for container in self.pod.containers
            if container.name in claiming
            or any(container.requested(name) > 0 for name in resources.intersection(container.resources()))
        )


def policy_needs(applied: AppliedPolicy, level: Action, knowledge: Knowledge) -> Needs:
    """Read the needs that a policy states in rules with the action `level` or a stricter one."""
    values = (
        (need, need.read(applied.spec.placement, knowledge.products))
        for need in NEEDS
        if need.rule and need.read and applied.applies(need.rule, level)
    )
    return {need: value for need, value in values if value is not None}


def merge_demand(
    request: PodGPURequest,
    applied: list[AppliedPolicy],
    source_needs: SourceNeeds,
    level: Action,
    knowledge: Knowledge,
) -> Demand:
    """Merge the needs of all sources into a Demand, by the merge rule of each field."""
    merged = merge_needs(needs for _, needs in source_needs)
    declared = (LEAST_MEMORY.of(needs) for origin, needs in source_needs if origin == ANNOTATION)
    unknown_facts = (
        policy.spec.placement.unknown_facts for policy in applied if policy.applies(Rule.UnknownFacts, level)
    )
    score_spread = highest_priority_value(applied, Rule.ScoreSpread, level, lambda spec: spec.placement.score_spread)
    scores = highest_priority_value(applied, Rule.Scores, level, lambda spec: spec.placement.scores)
    from_image = bool(
        highest_priority_value(
            applied, Rule.CUDA, level, lambda spec: spec.placement.cuda and spec.placement.cuda.from_image
        )
    )
    most = _max_per_container(request.pod, request.resources)
    required, preferred = _cuda_needs(request, applied, source_needs, level, from_image, knowledge)
    return Demand(
        resources=request.resources,
        preferred_products=_preferred(applied, level, merged, knowledge),
        cuda=required,
        preferred_cuda=preferred,
        accept=max(_accepted_compatibilities(applied, level), default=DEFAULT_ACCEPT),
        platforms=tuple(image_platforms(request.pod.containers, knowledge)) if from_image else (),
        builds=tuple(image_builds(request.containers(knowledge), knowledge)) if from_image else (),
        max_per_container=most,
        several_units=_several_units(applied) if any(amount > 1 for _, amount in most) else None,
        declared_mib=next(declared, None) or 0,
        health=_health(applied, level),
        refuse_unknown="Refuse" in unknown_facts,
        device_amounts=device_amounts(request.pod) if merged.get(TOPOLOGY_MANAGER.demand_field) else (),
        scores=tuple((score.name, score.weight) for score in scores or ()),
        claims=request.claimed.classes,
        device_requests=request.claimed.requests,
        ranked=score_spread != "Proportional",
        **merged,
    )


def _max_per_container(pod: Pod, resources: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Give the largest amount of each resource that one container requests.

    It counts because the kubelet allocates devices for each container separately.
    """
    largest = dict.fromkeys((name for name, _ in resources), 0)
    for container in pod.containers:
        for name in container.resources():
            if name in largest:
                largest[name] = max(largest[name], -int(-container.requested(name) // 1))
    return tuple(largest.items())


def _several_units(applied: list[AppliedPolicy]) -> bool | None:
    """Tell whether policies allow a container several units of a shared GPU; None where none says so.

    Leave allows them, whatever the action of its rule, unless another policy enforces Deny.
    """
    rules = [(policy.spec.admission.shared_replicas, policy) for policy in applied]
    if any(rule == "Deny" and policy.applies(Rule.SharedReplicas, Action.Enforce) for rule, policy in rules):
        return False
    return True if any(rule == "Leave" for rule, _ in rules) else None


def _health(applied: list[AppliedPolicy], level: Action) -> HealthRules:
    """Take the strictest action for each state of health, and the default where no policy sets one."""
    order = list(HealthAction)
    stated = [policy.spec.placement.health for policy in applied if policy.applies(Rule.Health, level)]

    def strictest(field: str, default: HealthAction) -> HealthAction:
        actions = [action for rules in stated if rules and (action := getattr(rules, field)) is not None]
        return max(actions, key=order.index, default=default)

    return HealthRules(
        ill=strictest("ill", HEALTH.ill),
        ailing=strictest("ailing", HEALTH.ailing),
        withdrawn=strictest("unhealthy_devices", HEALTH.withdrawn),
        conditions=strictest("conditions", HEALTH.conditions),
    )


def _cuda_needs(
    request: PodGPURequest,
    applied: list[AppliedPolicy],
    source_needs: SourceNeeds,
    level: Action,
    from_image: bool,
    knowledge: Knowledge,
) -> tuple[tuple[CUDANeed, ...], tuple[CUDANeed, ...]]:
    """Collect the required and the preferred needs: the minimums of all sources, and the need of each container.

    The containers' own needs do not count if the pod's annotation has a minimum. Pods and containers without NVIDIA
    GPUs have no CUDA need.
    """
    if request.other_vendors_only(knowledge):
        return (), ()
    minimums = [(origin, cuda) for origin, needs in source_needs if (cuda := LEAST_CUDA.of(needs))]
    evidence = {ANNOTATION: "annotation gpu-usher.io/cuda"}
    required = [minimum_need(cuda, evidence.get(origin, f"policy {origin}"), knowledge) for origin, cuda in minimums]
    preferred: list[CUDANeed] = []
    if not any(origin == ANNOTATION for origin, _ in minimums):
        rows = tuple(_image_rows(applied, level))
        for need, is_required in container_needs(request.containers(knowledge), rows, from_image, knowledge):
            (required if is_required else preferred).append(need)
    return tuple(dict.fromkeys(required)), tuple(dict.fromkeys(preferred))


def _image_rows(applied: list[AppliedPolicy], level: Action) -> Iterator[ImageRow]:
    for policy in applied:
        cuda = policy.spec.placement.cuda
        if cuda and policy.applies(Rule.CUDA, level):
            for row in cuda.images:
                yield ImageRow(re.compile(translate(row.image)), parse_minimum(row.cuda), policy.name, row.compat)


def _accepted_compatibilities(applied: list[AppliedPolicy], level: Action) -> Iterator[AcceptedCompatibility]:
    for policy in applied:
        cuda = policy.spec.placement.cuda
        if policy.applies(Rule.CUDA, level) and cuda and cuda.accepted is not None:
            yield cuda.accepted


def _preferred(
    applied: list[AppliedPolicy],
    level: Action,
    merged: Mapping[str, Any],
    knowledge: Knowledge,
) -> tuple[ProductPattern, ...]:
    """Take the preferred products of the highest priority, without those that the merged needs do not allow."""
    allow, deny = (merged.get(need.demand_field, ()) for need in (ALLOWED_PRODUCTS, DENIED_PRODUCTS))

    def order(spec: Spec) -> Any:
        return spec.placement.products and spec.placement.products.prefer

    patterns = map(knowledge.products.pattern, highest_priority_value(applied, Rule.Products, level, order) or ())
    return tuple(pattern for pattern in patterns if _allows_some_product(pattern, allow, deny, knowledge))


def _allows_some_product(
    pattern: ProductPattern,
    allow: tuple[tuple[ProductPattern, ...], ...],
    deny: tuple[ProductPattern, ...],
    knowledge: Knowledge,
) -> bool:
    """Tell whether a pattern matches a known product that is allowed, or no known product at all."""
    products = [form for form in knowledge.products.by_form if pattern.matches(form)]
    return not products or any(
        all(any(allowed.matches(form) for allowed in alternatives) for alternatives in allow)
        and not any(denied.matches(form) for denied in deny)
        for form in products
    )
