# SPDX-License-Identifier: Apache-2.0
"""The ruling for a pod: the policies that match it, the action of each of their rules, and the merged result."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from app.knowledge.mig_profiles import profile_of
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.kube.claimed_devices import NO_CLAIMED_DEVICES, ClaimedDevices
from app.kube.pods import Pod, gpu_amounts
from app.policy.annotations import PodAnnotations, read_annotations
from app.policy.compiled import CompiledPolicy, PodSelection, PolicySet
from app.policy.demand import Demand
from app.policy.merge import (
    ANNOTATION,
    AdmissionRules,
    AppliedPolicy,
    PodGPURequest,
    SourceNeeds,
    merge_admission,
    merge_demand,
    policy_needs,
)
from app.policy.needs import (
    ALLOWED_PRODUCTS,
    DENIED_PRODUCTS,
    MIG_PROFILE,
    NEEDS,
    NODE_SELECTOR,
    SHARING,
    WITH_FACT,
    Needs,
)
from app.policy.schema import Action
from app.policy.schema_placement import Rule, SharingWish
from app.values.label_requirements import all_allow, disjoint
from app.values.reasons import Code, Reason, reason


@dataclass(frozen=True, slots=True)
class Ruling:
    """The merged result of all policies and annotations for one pod.

    `policies` are the names of the matching policies, highest priority first, and `policy_hash` is the hash of the
    whole set. `demand` are the needs of the pod. `enforced` is what admission does to the pod; `warned` and `audited`
    are what it would do if rules with action Warn, or Warn and Audit, were enforced too. `conflicts` are
    contradictions between sources, for which the pod is denied, and `invalid` are reasons for annotations that do not
    parse. `warnings` are texts for the user; `unknown_products` are those that hold where no node of the fleet carries
    a product of the pattern (app/policy/annotations.py#PodAnnotations). `origins` are pairs of a policy's field and the
    source that set it, for display. `claimed` are the GPUs that the pod claims through DRA.
    """

    policies: tuple[str, ...]
    policy_hash: str
    demand: Demand
    enforced: AdmissionRules
    warned: AdmissionRules
    audited: AdmissionRules
    conflicts: tuple[Reason, ...]
    invalid: tuple[Reason, ...]
    warnings: tuple[str, ...]
    unknown_products: tuple[tuple[ProductPattern, str], ...]
    origins: tuple[tuple[str, str], ...]
    claimed: ClaimedDevices


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of a pod's needs: its annotations, and the policies that match it."""

    annotated: PodAnnotations
    applied: list[AppliedPolicy]
    request: PodGPURequest
    knowledge: Knowledge

    def source_needs(self, level: Action) -> SourceNeeds:
        """List the needs of each source, for policies those of rules with the action `level` or a stricter one."""
        policies = ((policy.name, policy_needs(policy, level, self.knowledge)) for policy in self.applied)
        return [(ANNOTATION, self.annotated.needs), *policies]

    def invalid(self) -> tuple[Reason, ...]:
        """List reasons for annotations that do not parse, or that contradict the requested resources."""
        return (*self.annotated.invalid, *_profile_mismatch(self.annotated.needs, self.request.resources))

    def demand(self) -> Demand:
        """Merge the needs of all sources into a demand."""
        demand, warned = (
            merge_demand(self.request, self.applied, self.source_needs(level), level, self.knowledge)
            for level in (Action.Enforce, Action.Warn)
        )
        invalid = next(iter(self.invalid()), None) or self.too_many()
        return replace(demand, warned=warned if warned != demand else None, invalid=invalid)

    def too_many(self) -> Reason | None:
        """Give the reason if the claims of the pod are for more GPUs than it may have.

        Admission judged the pod, and its resources stay as they were; what its claims ask for may have come later.
        """
        claimed, units = self.request.claimed, sum(amount for _, amount in self.request.resources)
        rules = merge_admission(self.applied, Action.Enforce) if self.request.pod.claims and claimed.classes else None
        return rules.too_many(units, claimed.most) if rules is not None else None


def compile_demand(
    pod: Pod,
    namespace_labels: Mapping[str, str],
    policy_set: PolicySet,
    knowledge: Knowledge,
    claimed: ClaimedDevices = NO_CLAIMED_DEVICES,
) -> Demand:
    """Compile the demand of a pod as in its ruling, without the admission rules, which the scheduler does not need."""
    return _sources(pod, namespace_labels, policy_set, knowledge, claimed).demand()


def ruling_for(
    pod: Pod,
    namespace_labels: Mapping[str, str],
    policy_set: PolicySet,
    knowledge: Knowledge,
    claimed: ClaimedDevices = NO_CLAIMED_DEVICES,
) -> Ruling:
    """Match the policies with a pod, merge them (docs/reference/policy.md#merge), and compile the result.

    No source widens what another has narrowed. `claimed` are the GPUs that the pod claims through DRA; needs apply to
    them as to those that it requests as resources.
    """
    sources = _sources(pod, namespace_labels, policy_set, knowledge, claimed)
    applied, needs = sources.applied, sources.source_needs(Action.Enforce)
    enforced = merge_admission(applied, Action.Enforce)
    return Ruling(
        policies=tuple(policy.name for policy in applied),
        policy_hash=policy_set.hash,
        demand=sources.demand(),
        enforced=enforced,
        warned=merge_admission(applied, Action.Warn, enforced),
        audited=merge_admission(applied, Action.Audit, enforced),
        conflicts=tuple(_conflicts(needs, knowledge)),
        invalid=sources.invalid(),
        warnings=sources.annotated.warnings,
        unknown_products=sources.annotated.unknown_products,
        origins=tuple(_origins(needs, applied)),
        claimed=claimed,
    )


def _sources(
    pod: Pod,
    namespace_labels: Mapping[str, str],
    policy_set: PolicySet,
    knowledge: Knowledge,
    claimed: ClaimedDevices,
) -> _Sources:
    annotated = read_annotations(pod.annotations, knowledge.products)
    matching = [policy for policy in policy_set.policies if _matches(policy, pod, namespace_labels, annotated)]
    if policy_set.fallback and all(policy.workload_classes is not None for policy in matching):
        matching = [*matching, policy_set.fallback]  # an annotation can add policies, but not replace the fallback
    applied = [AppliedPolicy(policy.name, policy.spec, _actions(policy, pod, namespace_labels)) for policy in matching]
    return _Sources(annotated, applied, PodGPURequest(pod, gpu_amounts(pod, knowledge.families.of), claimed), knowledge)


def _matches(policy: CompiledPolicy, pod: Pod, namespace_labels: Mapping[str, str], annotated: PodAnnotations) -> bool:
    if not _selects(policy.match, pod, namespace_labels):
        return False
    return policy.workload_classes is None or annotated.workload_class in policy.workload_classes


def _selects(selected: PodSelection, pod: Pod, namespace_labels: Mapping[str, str]) -> bool:
    if selected.namespace is not None and not all_allow(selected.namespace, namespace_labels):
        return False
    return selected.pod is None or all_allow(selected.pod, pod.labels)


def selections_by_namespace(policy_set: PolicySet, namespace_labels: Mapping[str, str]) -> tuple[bool, ...]:
    """Tell for each selector of namespaces, of policies and exceptions, whether it selects a namespace.

    Pods that differ in nothing but their namespace get equal demands in namespaces with equal results.
    """
    selected = (
        selection.namespace
        for policy in policy_set.policies
        for selection in (policy.match, *(exception for exception, _ in policy.exceptions))
    )
    return tuple(all_allow(selector, namespace_labels) for selector in selected if selector is not None)


def for_every_pod(policy_set: PolicySet, namespace_labels: Mapping[str, str]) -> PolicySet:
    """Leave what holds for each pod of a namespace, whatever the labels and annotations of the pod.

    A policy that selects pods is left out, and a rule that an exception turns off for some pods is off. The fallback
    holds for each pod only if no policy of the namespace selects pods by labels, since it is not for these.
    """
    every, selective = [], False
    for policy in policy_set.policies:
        if policy.match.pod and policy.workload_classes is None:
            selective = selective or all_allow(policy.match.namespace or (), namespace_labels)
        elif policy.workload_classes is None:
            every.append(_without_excepted(policy))
    fallback = None if selective or policy_set.fallback is None else _without_excepted(policy_set.fallback)
    return replace(policy_set, policies=tuple(every), fallback=fallback)


def _without_excepted(policy: CompiledPolicy) -> CompiledPolicy:
    """Let an exception for some pods of a namespace hold for all of them."""
    exceptions = ((replace(selected, pod=None), rules) for selected, rules in policy.exceptions)
    return replace(policy, exceptions=tuple(exceptions))


def _actions(policy: CompiledPolicy, pod: Pod, namespace_labels: Mapping[str, str]) -> dict[Rule, Action]:
    """Give the action of each rule of a policy for a pod; an exception that selects the pod turns rules off."""
    spec = policy.spec
    actions = {rule: spec.actions.get(rule, spec.action) for rule in Rule}
    for selected, rules in policy.exceptions:
        if _selects(selected, pod, namespace_labels):
            actions.update(dict.fromkeys(rules, Action.Off))
    return actions


def _profile_mismatch(needs: Needs, resources: tuple[tuple[str, int], ...]) -> Iterator[Reason]:
    """Give a reason if the annotation has an exact profile other than the pod's MIG resource.

    See docs/reference/policy.md#annotations.
    """
    profile = MIG_PROFILE.of(needs)
    if profile is None or profile[1]:
        return
    mig_resources = [name for name, _ in resources if profile_of(name) is not None]
    if mig_resources and profile[0] not in map(profile_of, mig_resources):
        yield reason(
            Code.InvalidAnnotation,
            f"gpu-usher.io/mig-profile: {profile[0]} is another slice than {mig_resources[0]}, which the pod requests",
        )


def _conflicts(sources: list[tuple[str, Needs]], knowledge: Knowledge) -> Iterator[Reason]:
    narrowing = [(origin, needs) for origin, needs in sources if ALLOWED_PRODUCTS in needs or DENIED_PRODUCTS in needs]
    if narrowing:
        table = knowledge.products.by_form
        some_left = any(_accepted_by_all(form, narrowing) for form in table)
        patterns = (pattern for _, needs in narrowing for pattern in ALLOWED_PRODUCTS.of(needs) or ())
        all_known = all(any(pattern.matches(form) for form in table) for pattern in patterns)
        if all_known and not some_left:
            yield reason(Code.NoProductLeft, f"{_allow_no([origin for origin, _ in narrowing])} GPU product")
    sharing = {wish: origin for origin, needs in reversed(sources) if (wish := SHARING.of(needs))}
    if SharingWish.Exclusive in sharing and SharingWish.Shared in sharing:
        whole, shared = _source(sharing[SharingWish.Exclusive]), _source(sharing[SharingWish.Shared])
        yield reason(Code.PolicyConflict, f"{whole} wants sharing Exclusive, and {shared} wants Shared")
    yield from _node_conflicts(sources)


def _node_conflicts(sources: list[tuple[str, Needs]]) -> Iterator[Reason]:
    """Give reasons if sources allow no value of a fact together, or if no node can fulfil two of their selectors."""
    for need, fact in WITH_FACT:
        limiting = {origin: needs[need] for origin, needs in sources if isinstance(needs.get(need), frozenset)}
        if limiting and not frozenset.intersection(*limiting.values()):
            yield reason(Code.PolicyConflict, f"{_allow_no(list(limiting))} {fact.name.removeprefix('GPU ')}")
    for (one, left), (other, right) in combinations(sources, 2):
        if disjoint(NODE_SELECTOR.of(left) or (), NODE_SELECTOR.of(right) or ()):
            yield reason(Code.PolicyConflict, f"{_source(one)} and {_source(other)} select different nodes")


def _source(origin: str) -> str:
    """Name a source of needs in a sentence."""
    return "the pod's annotation" if origin == ANNOTATION else f"policy {origin}"


def _allow_no(origins: list[str]) -> str:
    """Begin a sentence about what several sources, or one alone, leave nothing of."""
    named = " and ".join(map(_source, origins))
    return f"{named} together allow no" if len(origins) > 1 else f"{named} allows no"


def _accepted_by_all(form: str, sources: list[tuple[str, Needs]]) -> bool:
    for _, needs in sources:
        allowed, denied = ALLOWED_PRODUCTS.of(needs), DENIED_PRODUCTS.of(needs) or ()
        if allowed is not None and not any(pattern.matches(form) for pattern in allowed):
            return False
        if any(pattern.matches(form) for pattern in denied):
            return False
    return True


_ADMISSION_FIELDS = {
    "spec.admission.runtimeClassName": "runtime_class_name",
    "spec.admission.schedulerName": "scheduler_name",
    "spec.admission.maxGPUsPerPod": "max_gpus_per_pod",
}
"""The fields of a policy's admission block that are shown, by their paths."""


def _origins(sources: list[tuple[str, Needs]], applied: list[AppliedPolicy]) -> Iterator[tuple[str, str]]:
    """List each field that is set, with the source that sets it; several sources may set the same need."""
    for origin, needs in sources:
        yield from ((need.path, origin) for need in NEEDS if need.of(needs))
    for path, name in _ADMISSION_FIELDS.items():
        setter = next((policy.name for policy in applied if getattr(policy.spec.admission, name) is not None), None)
        if setter:
            yield path, setter
