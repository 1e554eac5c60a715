# SPDX-License-Identifier: Apache-2.0
"""Which policies are for a pod, and what they say together: merged field by field (INTERFACES §4), then compiled.

Needs only tighten: no policy and no annotation can widen what another one narrowed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.knowledge.cuda import Accept, CUDANeed
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.pods import Pod, gpu_amounts, gpu_containers
from app.policy.annotations import Annotated, Needs, read_annotations
from app.policy.cuda import image_needs, minimum_need
from app.policy.demand import Demand
from app.policy.load import Policy, PolicySet
from app.policy.schema import STRICTNESS, Action, Rule, SharingWish
from app.quantity import parse_mib
from app.reasons import Code, Reason, reason
from app.requirements import all_allow
from app.versions import parse_minimum

_LENIENCE = ("Deny", "UseLimits", "CopyToLimits", "Leave")
"""Strictest first (INTERFACES §4)."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What admission does to a pod; None is "nothing"."""

    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    from_node_taints: bool = False
    toleration_keys: tuple[str, ...] = ()
    requests_only: str = "Leave"
    mismatch: str = "Leave"
    fractional: str = "Leave"
    affinity_mode: str = "Off"
    max_gpus_per_pod: int | None = None


@dataclass(frozen=True, slots=True)
class Ruling:
    """What all policies and annotations say about one pod.

    `policies`: the names that matched, highest priority first. `origins`: (field, who set it), for people.
    `conflicts`: contradictions, for which the pod is denied.
    """

    policies: tuple[str, ...]
    policy_hash: str
    demand: Demand
    admission: AdmissionRules
    actions: Mapping[Rule, Action]
    conflicts: tuple[Reason, ...]
    warnings: tuple[str, ...]
    origins: tuple[tuple[str, str], ...]

    def action(self, rule: Rule) -> Action:
        """Say what is done about a rule; Enforce where no policy says otherwise."""
        return self.actions.get(rule, Action.Enforce)


def rule_on(pod: Pod, namespace_labels: Mapping[str, str], policy_set: PolicySet, knowledge: Knowledge) -> Ruling:
    """Match, merge and compile for one pod."""
    annotated = read_annotations(pod.annotations, knowledge.products)
    matching = [policy for policy in policy_set.policies if _matches(policy, pod, namespace_labels, annotated)]
    sources = [(policy.name, policy) for policy in matching]
    hard = [(name, _needs(policy, Action.Enforce, knowledge)) for name, policy in sources]
    soft = [(name, _needs(policy, Action.Warn, knowledge)) for name, policy in sources]
    resources = gpu_amounts(pod, knowledge.families.of)
    demand = _demand(pod, resources, matching, [("annotation", annotated.needs), *hard], knowledge)
    if any(needs != Needs() for _, needs in soft):
        demand = replace(demand, warned=_demand(pod, resources, matching, soft, knowledge))
    invalid = (*annotated.invalid, *_profile_mismatch(annotated.needs, resources))
    if invalid:
        demand = replace(demand, invalid=invalid[0])
    return Ruling(
        policies=tuple(policy.name for policy in matching),
        policy_hash=policy_set.hash,
        demand=demand,
        admission=_admission(matching),
        actions=_actions(matching),
        conflicts=tuple(_conflicts([("annotation", annotated.needs), *hard], knowledge)),
        warnings=annotated.warnings,
        origins=tuple(_origins([("annotation", annotated.needs), *hard], matching)),
    )


def _matches(policy: Policy, pod: Pod, namespace_labels: Mapping[str, str], annotated: Annotated) -> bool:
    if policy.namespace is not None and not all_allow(policy.namespace, namespace_labels):
        return False
    if policy.pod is not None and not all_allow(policy.pod, pod.labels):
        return False
    return policy.workload_classes is None or annotated.workload_class in policy.workload_classes


def _needs(policy: Policy, action: Action, knowledge: Knowledge) -> Needs:
    """Read the needs that a policy states with one action."""
    placement = policy.spec.placement

    def with_action(rule: Rule, value: Any) -> Any:
        return value if policy.spec.actions.get(rule, policy.spec.action) is action else None

    products = with_action(Rule.Products, placement.products)
    cuda = with_action(Rule.CUDA, placement.cuda and placement.cuda.minimum)
    memory = with_action(Rule.GPUMemory, placement.gpu_memory)
    capability = with_action(Rule.ComputeCapability, placement.compute_capability)
    pattern = knowledge.products.pattern
    return Needs(
        allow=tuple(map(pattern, products.allow)) if products and products.allow is not None else None,
        deny=tuple(map(pattern, products.deny)) if products else (),
        cuda=parse_minimum(cuda) if cuda else None,
        memory_mib=parse_mib(memory) if memory else None,
        compute_capability=parse_minimum(capability) if capability else None,
        sharing=with_action(Rule.Sharing, placement.sharing),
        nvlink=bool(with_action(Rule.Interconnect, placement.interconnect)),
    )


def _demand(
    pod: Pod,
    resources: tuple[tuple[str, int], ...],
    policies: list[Policy],
    sources: list[tuple[str, Needs]],
    knowledge: Knowledge,
) -> Demand:
    needs = [each for _, each in sources]
    required, wished = _cuda(pod, resources, policies, sources, knowledge)
    scores = _first(policies, lambda spec: spec.placement.scores)
    return Demand(
        resources=resources,
        products=tuple(each.allow for each in needs if each.allow is not None),
        denied_products=tuple(pattern for each in needs for pattern in each.deny),
        preferred_products=_preferred(policies, knowledge),
        cuda=required,
        cuda_wishes=wished,
        accept=max(_accepts(policies), default=Accept.MinorVersion),
        memory_mib=max((each.memory_mib or 0 for each in needs), default=0),
        compute_capability=max((each.compute_capability for each in needs if each.compute_capability), default=None),
        sharing=_strictest_sharing(needs),
        mig_profile=next((each.mig_profile for each in needs if each.mig_profile), None),
        nvlink=any(each.nvlink for each in needs),
        refuse_unknown=any(policy.spec.placement.unknown_facts == "Refuse" for policy in policies),
        scores=tuple((score.name, score.weight) for score in scores or ()),
        ranked=_first(policies, lambda spec: spec.placement.score_spread) != "Proportional",
    )


def _accepts(policies: list[Policy]) -> Iterator[Accept]:
    for policy in policies:
        if policy.spec.placement.cuda and policy.spec.placement.cuda.accepted is not None:
            yield policy.spec.placement.cuda.accepted


def _cuda(
    pod: Pod,
    resources: tuple[tuple[str, int], ...],
    policies: list[Policy],
    sources: list[tuple[str, Needs]],
    knowledge: Knowledge,
) -> tuple[tuple[CUDANeed, ...], tuple[CUDANeed, ...]]:
    """Collect (required, wished) needs: stated minimums, and what images say where no annotation speaks first."""
    stated = [(origin, needs.cuda) for origin, needs in sources if needs.cuda]
    required = [minimum_need(cuda, _who(origin), knowledge) for origin, cuda in stated]
    wished: list[CUDANeed] = []
    from_image = _first(policies, lambda spec: spec.placement.cuda.from_image if spec.placement.cuda else None)
    if from_image and not any(origin == "annotation" for origin, _ in stated):
        asking = gpu_containers(pod, (name for name, _ in resources))
        for need, hard in image_needs(asking, knowledge):
            (required if hard else wished).append(need)
    return tuple(dict.fromkeys(required)), tuple(dict.fromkeys(wished))


def _who(origin: str) -> str:
    return "annotation gpu-usher.io/cuda" if origin == "annotation" else f"policy {origin}"


def _strictest_sharing(needs: Iterable[Needs]) -> SharingWish:
    order = list(SharingWish)
    return max((each.sharing or SharingWish.Any for each in needs), key=order.index, default=SharingWish.Any)


def _first(policies: Iterable[Policy], read: Any) -> Any:
    """Take a scalar from the highest priority that sets it."""
    return next((value for policy in policies if (value := read(policy.spec)) is not None), None)


def _preferred(policies: list[Policy], knowledge: Knowledge) -> tuple[ProductPattern, ...]:
    prefer = _first(policies, lambda spec: spec.placement.products.prefer if spec.placement.products else None)
    return tuple(knowledge.products.pattern(name) for name in prefer or ())


def _admission(policies: list[Policy]) -> AdmissionRules:
    specs = [policy.spec.admission for policy in policies]
    limits = [spec.max_gpus_per_pod for spec in specs if spec.max_gpus_per_pod is not None]
    tolerations = [spec.tolerations for spec in specs if spec.tolerations]
    resources = [spec.extended_resources for spec in specs if spec.extended_resources]

    def strictest(field: str) -> str:
        return min((getattr(each, field) or "Leave" for each in resources), key=_LENIENCE.index, default="Leave")

    return AdmissionRules(
        runtime_class_name=_first(policies, lambda spec: spec.admission.runtime_class_name),
        scheduler_name=_first(policies, lambda spec: spec.admission.scheduler_name),
        from_node_taints=bool(
            next((each.from_node_taints for each in tolerations if each.from_node_taints is not None), False)
        ),
        toleration_keys=tuple(sorted({key for each in tolerations for key in each.keys})),
        requests_only=strictest("requests_only"),
        mismatch=strictest("mismatch"),
        fractional=strictest("fractional"),
        affinity_mode=_first(policies, lambda spec: spec.admission.affinity and spec.admission.affinity.mode) or "Off",
        max_gpus_per_pod=min(limits, default=None),
    )


def _actions(policies: list[Policy]) -> dict[Rule, Action]:
    """Take the strictest action of the policies that set a rule's field."""
    actions: dict[Rule, Action] = {}
    for policy in policies:
        spec = policy.spec
        for part in (spec.admission, spec.placement):
            set_fields = {type(part).model_fields[name].alias for name in part.model_fields_set}
            for rule in Rule:
                if rule.value in set_fields:
                    action = spec.actions.get(rule, spec.action)
                    actions[rule] = max(actions.get(rule, Action.Off), action, key=STRICTNESS.__getitem__)
    return actions


def _profile_mismatch(needs: Needs, resources: tuple[tuple[str, int], ...]) -> Iterator[Reason]:
    """An exact profile beside another slice resource contradicts itself (INTERFACES §7)."""
    if needs.mig_profile is None or needs.mig_profile[1]:
        return
    named = [name for name, _ in resources if name.startswith("nvidia.com/mig-")]
    wanted = "nvidia.com/mig-" + needs.mig_profile[0]
    if named and wanted not in {name.removesuffix(".shared") for name in named}:
        yield reason(Code.InvalidAnnotation, "gpu-usher.io/mig-profile differs from the resource asked", named[0])


def _conflicts(sources: list[tuple[str, Needs]], knowledge: Knowledge) -> Iterator[Reason]:
    narrowing = [(origin, needs) for origin, needs in sources if needs.allow is not None or needs.deny]
    if narrowing:
        left = [form for form in knowledge.products.by_form if _all_accept(form, narrowing)]
        known = all(knowledge.products.known(each) for _, needs in narrowing for each in needs.allow or ())
        if not left and known:
            who = " and ".join(origin for origin, _ in narrowing)
            yield reason(Code.NoProductLeft, f"no GPU product is left by {who}")
    wishes = {needs.sharing: origin for origin, needs in reversed(sources) if needs.sharing}
    if SharingWish.Exclusive in wishes and SharingWish.Shared in wishes:
        who = f"{wishes[SharingWish.Exclusive]} wants Exclusive, {wishes[SharingWish.Shared]} wants Shared"
        yield reason(Code.PolicyConflict, f"sharing contradicts itself: {who}")


def _all_accept(form: str, sources: list[tuple[str, Needs]]) -> bool:
    for _, needs in sources:
        if needs.allow is not None and not any(pattern.matches(form) for pattern in needs.allow):
            return False
        if any(pattern.matches(form) for pattern in needs.deny):
            return False
    return True


def _origins(sources: list[tuple[str, Needs]], policies: list[Policy]) -> Iterator[tuple[str, str]]:
    """Say who asked for what; several may have asked for the same."""
    for origin, needs in sources:
        for name in (
            "allow",
            "deny",
            "cuda",
            "memory_mib",
            "compute_capability",
            "sharing",
            "mig_profile",
            "nvlink",
        ):
            if getattr(needs, name):
                yield name, origin
    for name in ("runtime_class_name", "scheduler_name", "max_gpus_per_pod"):
        setter = next((policy.name for policy in policies if getattr(policy.spec.admission, name) is not None), None)
        if setter:
            yield name, setter
