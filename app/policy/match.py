# SPDX-License-Identifier: Apache-2.0
"""Which policies are for a pod, with which action each of their rules applies, and what they say together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from app.knowledge.tables import Knowledge
from app.kube.pods import Pod, gpu_amounts
from app.kube.resource_claims import NOTHING_CLAIMED, ClaimedDevices
from app.policy.annotations import Needs, PodAnnotations, read_annotations
from app.policy.applied import AppliedPolicy
from app.policy.compiled import CompiledPolicy, PodSelection, PolicySet
from app.policy.demand import Demand
from app.policy.merge import ANNOTATION, PodGPURequest, Stated, merge_demand, needs_of
from app.policy.merge_admission import AdmissionRules, merge_admission
from app.policy.schema import Action, Rule
from app.policy.schema_placement import SharingWish
from app.values.label_requirements import all_allow, disjoint
from app.values.reasons import Code, Reason, reason


@dataclass(frozen=True, slots=True)
class Ruling:
    """What all policies and annotations say about one pod.

    `policies`: the names that matched, highest priority first. `enforced`, `warned`, `audited`: what admission
    does; what it would do besides if Warn (and then Audit) enforced. `origins`: (field, who set it), for people.
    `conflicts`: contradictions, for which the pod is denied. `invalid`: annotations that do not parse.
    `claimed`: the GPUs that the pod claims through DRA.
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
    origins: tuple[tuple[str, str], ...]
    claimed: ClaimedDevices


@dataclass(frozen=True, slots=True)
class _Sources:
    """All that has a say in what one pod needs: its annotations, and the policies that match it."""

    annotated: PodAnnotations
    applied: list[AppliedPolicy]
    asked: PodGPURequest
    knowledge: Knowledge

    def stated(self, level: Action) -> Stated:
        """List what each source needs where rules of this action apply."""
        policies = ((policy.name, needs_of(policy, level, self.knowledge)) for policy in self.applied)
        return [(ANNOTATION, self.annotated.needs), *policies]

    def invalid(self) -> tuple[Reason, ...]:
        """List the annotations that do not parse, or that contradict the resources asked."""
        return (*self.annotated.invalid, *_profile_mismatch(self.annotated.needs, self.asked.resources))

    def demand(self) -> Demand:
        """Merge and compile what the pod needs of a node."""
        demand, warned = (
            merge_demand(self.asked, self.applied, self.stated(level), level, self.knowledge)
            for level in (Action.Enforce, Action.Warn)
        )
        return replace(demand, warned=warned if warned != demand else None, invalid=next(iter(self.invalid()), None))


def compile_demand(
    pod: Pod,
    namespace_labels: Mapping[str, str],
    policy_set: PolicySet,
    knowledge: Knowledge,
    claimed: ClaimedDevices = NOTHING_CLAIMED,
) -> Demand:
    """Compile what a pod needs of a node: the demand of its ruling, without what admission does to the pod."""
    return _sources(pod, namespace_labels, policy_set, knowledge, claimed).demand()


def rule_on(
    pod: Pod,
    namespace_labels: Mapping[str, str],
    policy_set: PolicySet,
    knowledge: Knowledge,
    claimed: ClaimedDevices = NOTHING_CLAIMED,
) -> Ruling:
    """Match, merge (docs/reference/policy.md#merge) and compile for one pod; nothing widens what another narrowed.

    `claimed`: the GPUs that it claims through DRA; needs hold for them as for those that it asks as resources.
    """
    sources = _sources(pod, namespace_labels, policy_set, knowledge, claimed)
    applied, enforced = sources.applied, sources.stated(Action.Enforce)
    return Ruling(
        policies=tuple(policy.name for policy in applied),
        policy_hash=policy_set.hash,
        demand=sources.demand(),
        enforced=merge_admission(applied, Action.Enforce),
        warned=merge_admission(applied, Action.Warn),
        audited=merge_admission(applied, Action.Audit),
        conflicts=tuple(_conflicts(enforced, knowledge)),
        invalid=sources.invalid(),
        warnings=sources.annotated.warnings,
        origins=tuple(_origins(enforced, applied)),
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
        matching = [*matching, policy_set.fallback]  # a pod's own word picks policies, and takes none away
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


def _actions(policy: CompiledPolicy, pod: Pod, namespace_labels: Mapping[str, str]) -> dict[Rule, Action]:
    """Say with which action each rule of a policy applies to a pod; an exception that selects it turns rules off."""
    spec = policy.spec
    actions = {rule: spec.actions.get(rule, spec.action) for rule in Rule}
    for selected, rules in policy.exceptions:
        if _selects(selected, pod, namespace_labels):
            actions.update(dict.fromkeys(rules, Action.Off))
    return actions


def _profile_mismatch(needs: Needs, resources: tuple[tuple[str, int], ...]) -> Iterator[Reason]:
    """An exact profile beside another slice resource contradicts itself (docs/reference/policy.md#annotations)."""
    if needs.mig_profile is None or needs.mig_profile[1]:
        return
    named = [name for name, _ in resources if name.startswith("nvidia.com/mig-")]
    wanted = "nvidia.com/mig-" + needs.mig_profile[0]
    if named and wanted not in {name.removesuffix(".shared") for name in named}:
        yield reason(Code.InvalidAnnotation, "gpu-usher.io/mig-profile differs from the resource asked", named[0])


def _conflicts(sources: list[tuple[str, Needs]], knowledge: Knowledge) -> Iterator[Reason]:
    narrowing = [(origin, needs) for origin, needs in sources if needs.allow is not None or needs.deny]
    if narrowing:
        left = any(_all_accept(form, narrowing) for form in knowledge.products.by_form)
        known = all(knowledge.products.known(each) for _, needs in narrowing for each in needs.allow or ())
        if known and not left:
            who = " and ".join(origin for origin, _ in narrowing)
            yield reason(Code.NoProductLeft, f"no GPU product is left by {who}")
    wishes = {needs.sharing: origin for origin, needs in reversed(sources) if needs.sharing}
    if SharingWish.Exclusive in wishes and SharingWish.Shared in wishes:
        who = f"{wishes[SharingWish.Exclusive]} wants Exclusive, {wishes[SharingWish.Shared]} wants Shared"
        yield reason(Code.PolicyConflict, f"sharing contradicts itself: {who}")
    yield from _nodes_left(sources)


def _nodes_left(sources: list[tuple[str, Needs]]) -> Iterator[Reason]:
    """Tell of form factors of which none is left, and of selectors that no node can fulfil together."""
    wanting = [(origin, each.form_factors) for origin, each in sources if each.form_factors is not None]
    if wanting and not frozenset.intersection(*(each for _, each in wanting)):
        yield reason(Code.PolicyConflict, f"no form factor is left by {' and '.join(origin for origin, _ in wanting)}")
    for (one, left), (other, right) in combinations(sources, 2):
        if disjoint(left.node_selector, right.node_selector):
            yield reason(Code.PolicyConflict, f"{one} and {other} select different nodes")


def _all_accept(form: str, sources: list[tuple[str, Needs]]) -> bool:
    for _, needs in sources:
        if needs.allow is not None and not any(pattern.matches(form) for pattern in needs.allow):
            return False
        if any(pattern.matches(form) for pattern in needs.deny):
            return False
    return True


_NEED_FIELDS = (
    "allow",
    "deny",
    "cuda",
    "memory_mib",
    "compute_capability",
    "sharing",
    "mig_profile",
    "nvlink",
    "form_factors",
    "node_selector",
)
_ADMISSION_FIELDS = ("runtime_class_name", "scheduler_name", "max_gpus_per_pod")


def _origins(sources: list[tuple[str, Needs]], applied: list[AppliedPolicy]) -> Iterator[tuple[str, str]]:
    """Say who asked for what; several may have asked for the same."""
    for origin, needs in sources:
        for name in _NEED_FIELDS:
            if getattr(needs, name):
                yield name, origin
    for name in _ADMISSION_FIELDS:
        setter = next((each.name for each in applied if getattr(each.spec.admission, name) is not None), None)
        if setter:
            yield name, setter
