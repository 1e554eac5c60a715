# SPDX-License-Identifier: Apache-2.0
"""Merging of all policies that apply, and of annotations, by the rule that each field declares (policy/fields.py).

An AppliedPolicy is a policy that matches the pod, with the actions of its rules. The placement blocks and the
annotations become a Demand, the admission blocks AdmissionRules. See docs/reference/policy.md#merge.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import translate
from itertools import chain
from typing import Any

from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.kube.claimed_devices import ClaimedDevices
from app.kube.numa_zones import device_amounts
from app.kube.pods import Container, Pod
from app.policy.cuda_needs import ImageRow, container_needs, image_builds, image_platforms, minimum_need
from app.policy.demand import DEFAULT_ACCEPT, HEALTH, Demand, HealthRules
from app.policy.fields import MERGE_KEYWORD, Merge, merged, model_in
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
from app.policy.schema_admission import Admission, Defaults, Idle, PerGPU
from app.policy.schema_placement import Rule
from app.values.reasons import Code, Reason, reason
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


Stated = Callable[..., list[Any]]
"""Lists what policies state in a field of the placement block, by its rule and its path, the highest priority first."""


def stated_at(applied: Iterable[AppliedPolicy], level: Action) -> Stated:
    """Read fields in policies, in order of priority, whose rules have the action `level` or a stricter one."""

    def stated(rule: Rule, *path: str) -> list[Any]:
        values: list[Any] = [policy.spec.placement for policy in applied if policy.applies(rule, level)]
        for name in path:
            values = [value for part in values if (value := getattr(part, name)) is not None]
        return values

    return stated


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
    needs = merge_needs(needs for _, needs in source_needs)
    declared = (LEAST_MEMORY.of(needs) for origin, needs in source_needs if origin == ANNOTATION)
    stated = stated_at(applied, level)
    from_image = any(stated(Rule.CUDA, "cuda", "from_image")[:1])
    most = _max_per_container(request.pod, request.resources)
    required, preferred = _cuda_needs(request, applied, source_needs, level, from_image, knowledge)
    return Demand(
        resources=request.resources,
        preferred_products=_preferred(stated(Rule.Products, "products", "prefer")[:1], needs, knowledge),
        cuda=required,
        preferred_cuda=preferred,
        accept=max(
            (AcceptedCompatibility[name] for name in stated(Rule.CUDA, "cuda", "accept")), default=DEFAULT_ACCEPT
        ),
        platforms=tuple(image_platforms(request.pod.containers, knowledge)) if from_image else (),
        builds=tuple(image_builds(request.containers(knowledge), knowledge)) if from_image else (),
        max_per_container=most,
        several_units=_several_units(applied) if any(amount > 1 for _, amount in most) else None,
        declared_mib=next(declared, None) or 0,
        health=_health(stated),
        refuse_unknown="Refuse" in stated(Rule.UnknownFacts, "unknown_facts"),
        device_amounts=device_amounts(request.pod) if needs.get(TOPOLOGY_MANAGER.demand_field) else (),
        scores=tuple((one.name, one.weight) for scores in stated(Rule.Scores, "scores")[:1] for one in scores),
        claims=request.claimed.classes,
        device_requests=request.claimed.requests,
        ranked=stated(Rule.ScoreSpread, "score_spread")[:1] != ["Proportional"],
        **needs,
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


def _health(stated: Stated) -> HealthRules:
    """Take the strictest action for each state of health, and the default where no policy sets one."""
    names = {"ill": "ill", "ailing": "ailing", "withdrawn": "unhealthy_devices", "conditions": "conditions"}
    actions = {name: stated(Rule.Health, "health", path) for name, path in names.items()}
    return replace(HEALTH, **{name: merged(Merge.Strictest, given) for name, given in actions.items() if given})


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


def _preferred(
    names: Iterable[Iterable[str]], needs: Mapping[str, Any], knowledge: Knowledge
) -> tuple[ProductPattern, ...]:
    """Take the preferred products, without those that the merged needs do not allow."""
    allow, deny = (needs.get(need.demand_field, ()) for need in (ALLOWED_PRODUCTS, DENIED_PRODUCTS))
    patterns = map(knowledge.products.pattern, chain(*names))
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


NO_DEFAULTS = Defaults()


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What admission does to a pod; None, False, "Leave" and "Off" mean nothing.

    Only `affinity_keys` is other: None stands for the labels of GFD and of the dialects of the fleet.

    `override` are the fields that also replace values which the pod itself sets. `set_by` names for each field the
    policy of highest priority that sets it to the merged value; it only serves messages.
    """

    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    tolerate: bool = False
    from_node_taints: bool = False
    toleration_keys: tuple[str, ...] = ()
    requests_only: str = "Leave"
    mismatch: str = "Leave"
    fractional: str = "Leave"
    affinity_mode: str = "Off"
    affinity_keys: tuple[str, ...] | None = None
    max_gpus_per_pod: int | None = None
    priority_class_name: str | None = None
    defaults: Defaults = NO_DEFAULTS
    right_sizing: bool = False
    mig_fallback: str | None = None
    convert_to_claims: bool = False
    visible_devices: str = "Leave"
    privileged: str = "Leave"
    bypass: str = "Leave"
    shared_replicas: str = "Leave"
    queued_templates: str | None = None
    memory_requests: str = "Leave"
    per_gpu: PerGPU | None = None
    idle: Idle | None = None
    override: frozenset[str] = frozenset()
    set_by: Mapping[str, str] = field(default_factory=dict, compare=False)

    def by(self, name: str) -> str:
        """Write ` (policy NAME)` for the policy that sets a field; empty where none is known."""
        return f" (policy {self.set_by[name]})" if name in self.set_by else ""

    def too_many(self, units: int, claimed: int | None, by_whom: str = "") -> Reason | None:
        """Refuse more GPUs than a pod may have: units of resources, and GPUs of claims, None for all of a node."""
        allowed = self.max_gpus_per_pod
        if allowed is None or (claimed is not None and units + claimed <= allowed):
            return None
        by = self.by("max_gpus_per_pod")
        most = f"at most {allowed} per pod {'is' if allowed == 1 else 'are'} allowed{by}"
        most = most if allowed else f"none are allowed here{by}"
        if claimed is None and units <= allowed:
            return reason(Code.TooManyGPUs, f"claims all GPUs of a node; {most}")
        return reason(Code.TooManyGPUs, f"asks for {units + (claimed or 0)} GPUs{by_whom}; {most}")


_FIELDS = {one.name for one in fields(AdmissionRules)}


def _leaves() -> Iterator[tuple[Rule, str, str, Merge]]:
    """List the fields of the admission block: rule, inner block or none, name, and how values are merged."""
    for name, described_field in Admission.model_fields.items():
        inner = model_in(described_field.annotation)
        for leaf, one in inner.model_fields.items() if inner else [(name, described_field)]:
            extra = one.json_schema_extra
            how = Merge(extra[MERGE_KEYWORD]) if isinstance(extra, dict) else Merge.Own
            if how is not Merge.Own:
                yield Rule(described_field.alias), name if inner else "", leaf, how


_LEAVES = tuple(_leaves())
OVERRIDABLE = {
    "runtime_class_name", "scheduler_name", "priority_class_name",
    "defaults.cpu_per_gpu", "defaults.memory_per_gpu", "defaults.driver_capabilities",
}  # fmt: skip
"""Fields for which a policy can have `override: true`."""


def merge_admission(
    applied: list[AppliedPolicy], level: Action, stricter: AdmissionRules | None = None
) -> AdmissionRules:
    """Merge the admission blocks of the policies whose rules have the action `level` or a stricter one.

    What the rules of a `stricter` level say already is said by the policies that are named there.
    """
    blocks: dict[str, dict[str, Any]] = {}
    set_by, override = dict[str, str](), set[str]()
    for rule, block, leaf, how in _LEAVES:
        admissions = ((policy, policy.spec.admission) for policy in applied if policy.applies(rule, level))
        parts = [(policy, getattr(admission, block) if block else admission) for policy, admission in admissions]
        parts = [(policy, part) for policy, part in parts if part is not None]
        given = [(policy, value) for policy, part in parts if (value := getattr(part, leaf)) is not None]
        if parts:
            of_block = blocks.setdefault(block, {})
            set_by.setdefault(block, parts[0][0].name)
        if given:
            of_block[leaf] = merged(how, [value for _, value in given])
            set_by[leaf] = next((policy.name for policy, value in given if value == of_block[leaf]), "")
            path = f"{block}.{leaf}".removeprefix(".")
            override |= {path} if path in OVERRIDABLE and given[0][0].spec.admission.override else set()
    tolerations, affinity = blocks.get("tolerations"), blocks.get("affinity", {})
    defaults, per_gpu, idle = (blocks.get(name) for name in ("defaults", "per_gpu", "idle"))
    rules = AdmissionRules(
        **blocks.get("", {}),
        **blocks.get("extended_resources", {}),
        tolerate=tolerations is not None,
        from_node_taints=(tolerations or {}).get("from_node_taints", False),
        toleration_keys=tuple(sorted((tolerations or {}).get("keys", ()))),
        affinity_mode=affinity.get("mode", "Off"),
        affinity_keys=affinity.get("keys"),
        defaults=Defaults.model_validate(defaults, by_name=True) if defaults else NO_DEFAULTS,
        per_gpu=PerGPU.model_validate(per_gpu, by_name=True) if per_gpu else None,
        idle=None if idle is None else Idle.model_validate(idle, by_name=True),
        override=frozenset(override),
    )
    set_by = {name: by for name, by in set_by.items() if name in _FIELDS}
    if stricter is not None:
        set_by |= {name: by for name, by in stricter.set_by.items() if getattr(stricter, name) == getattr(rules, name)}
    return replace(rules, set_by=set_by)
