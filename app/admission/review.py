# SPDX-License-Identifier: Apache-2.0
"""One review: mutate, validate the result, and put on record what was done and why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.case import TEMPLATES, WARNING_LIMIT, PodChange, PodForm, ReviewedPod, one_line
from app.admission.decision_annotation import forged, record_decision
from app.admission.exemptions import EXEMPT_LABELS
from app.admission.fleet_facts import FleetFacts
from app.admission.json_patch import Operation
from app.admission.mutators import AMOUNTS, REPAIRS, Mutator, mutators_of
from app.admission.validators import validators_of
from app.knowledge.tables import Knowledge
from app.kube.pods import DECISION, Pod, read_pod
from app.kube.resource_claims import NOTHING_CLAIMED, ClaimedDevices
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from app.policy.match import Ruling, rule_on
from app.policy.merge_admission import AdmissionRules
from app.values.reasons import Code, Reason, reason

MOST_WARNINGS = 3
"""Warnings of one answer; the API server cuts all of them short past about 4,096 characters in sum (ADM-29)."""
MESSAGE_LIMIT = 512
"""Characters of a denial (ADM-28)."""
OUR_SCHEDULERS = frozenset({"default-scheduler", "gpu-usher-scheduler"})
"""Schedulers whose pods are ours to complete, besides those that policies name; others' are left alone (S14)."""


@dataclass(frozen=True, slots=True)
class ReviewContext:
    """Where a review happens: the policies in force, the fleet as known now, the fact tables.

    `form`, `settled`, `before`: what the object is, and what of it was there before (see Case).
    `claimed`: says which GPUs a pod claims through DRA. `rule`: rules on a pod.
    """

    policies: PolicySet
    fleet: FleetFacts
    knowledge: Knowledge
    form: PodForm = PodForm.Pod
    settled: frozenset[str] = frozenset()
    before: Mapping[str, Any] | None = None
    claimed: Callable[[Pod], ClaimedDevices] = lambda _pod: NOTHING_CLAIMED
    rule: Callable[[Pod, Mapping[str, str], PolicySet, Knowledge, ClaimedDevices], Ruling] = rule_on

    def ruling(self, pod: Pod, labels: Mapping[str, str]) -> Ruling:
        """Rule on a pod with all that it asks, by resources and by claims. `labels` are its namespace's."""
        return self.rule(pod, labels, self.policies, self.knowledge, self.claimed(pod))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a review. `operations` is empty where nothing changes; `reasons` is empty where it is allowed.

    `concerned`: the object asks for a GPU and was judged. `record`: what was done, in the order it was done.
    """

    concerned: bool
    operations: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    record: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    policy_hash: str = ""

    @property
    def allowed(self) -> bool:
        """Tell whether the object is let in."""
        return not self.reasons


UNCONCERNED = Verdict(concerned=False)


def denial(verdict: Verdict) -> str:
    """Say on one line what is wrong and what to do about it."""
    parts = [f"{each.message} ({each.remedy})" for each in verdict.reasons]
    return one_line(f"gpu-usher: {'; '.join(parts)}", MESSAGE_LIMIT)


def mutate(document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], setting: ReviewContext) -> Verdict:
    """Repair a Pod (or a template, or new ephemeral containers) and judge the result. `labels` are the namespace's.

    Raises MalformedPod, QuantityError for shapes that Kubernetes would refuse too.
    """
    case = _open(document, namespace, labels, setting)
    if case is None:
        return UNCONCERNED
    case, done = _enforce(case, lambda changed: _open(changed, namespace, labels, setting))
    reasons, lenient = _judge(case)
    if reasons:
        return _ruled(case, warnings=_limited(lenient), reasons=reasons)
    kept = [change for mutator, change in done if case.form not in TEMPLATES or _of_template(mutator, change)]
    known = [change for _, change in done]
    warned = _changes_at(case, case.ruling.warned, case.ruling.demand.warned, known)
    more = case.ruling.audited != case.ruling.warned
    audited = _changes_at(case, case.ruling.audited, None, [*known, *warned]) if more else []
    record = (
        *(change.record for change in kept),
        *(f"not done, policy only warns: {change.record}" for change in warned),
        *(f"not done, policy only audits: {change.record}" for change in audited),
    )
    operations = [each for change in kept for each in change.operations]
    warnings = [*lenient, *(change.warning for change in kept if change.warning)]
    warnings += [f"not done, policy only warns: {change.record}" for change in warned]
    warnings += case.ruling.warnings if _ours_to_complete(case) else ()
    warnings += [f"{each} is not known yet: whether it claims GPUs cannot be told" for each in case.claimed.unknown]
    if case.form is PodForm.Pod:
        written = record_decision(case, record, changed=bool(operations))
        operations += written
        if written and forged(case):
            warnings.append(
                f"{DECISION} did not fit the pod and was {'removed' if written[0].op == 'remove' else 'rewritten'}"
            )
    elif case.form in TEMPLATES and DECISION in case.pod.annotations:
        warnings.append(reason(Code.ReservedAnnotation, f"{DECISION} is reserved: gpu-usher writes it").message)
    if not (_ours_to_complete(case) or operations or warnings or record):
        return UNCONCERNED
    return _ruled(case, operations=tuple(operations), warnings=_limited(warnings), record=record)


def validate(document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], setting: ReviewContext) -> Verdict:
    """Judge a Pod as it is, a template as its pods will be; never a patch.

    Raises MalformedPod, QuantityError.
    """
    case = _open(document, namespace, labels, setting)
    if case is None:
        return UNCONCERNED
    if case.form in TEMPLATES:
        case, _ = _enforce(case, lambda changed: _open(changed, namespace, labels, setting))
    reasons, lenient = _judge(case)
    if not (_ours_to_complete(case) or reasons or lenient):
        return UNCONCERNED
    return _ruled(case, warnings=_limited(lenient), reasons=reasons)


def _ours_to_complete(case: ReviewedPod) -> bool:
    """Tell whether an answer is on record even where nothing was done: GPU pods and their templates."""
    return case.asks and case.form is not PodForm.Ephemeral


def _ruled(case: ReviewedPod, **found: Any) -> Verdict:
    return Verdict(True, policies=case.ruling.policies, policy_hash=case.ruling.policy_hash, **found)


def exempt(namespace: str, labels: Mapping[str, str], knowledge: Knowledge) -> bool:
    """Tell whether a namespace is exempt, by label or as infrastructure by name.

    See docs/reference/admission.md#exemptions.
    """
    return knowledge.families.infrastructure(namespace) or any(labels.get(key) == "true" for key in EXEMPT_LABELS)


def _open(
    document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], setting: ReviewContext
) -> ReviewedPod | None:
    """Read the Pod; None if its namespace is exempt. Zero GPUs asked is no GPU pod (F9)."""
    pod = read_pod(document, namespace)
    if exempt(pod.namespace, labels, setting.knowledge):
        return None
    ruling = setting.ruling(pod, labels)
    return ReviewedPod(
        document=document,
        pod=pod,
        ruling=ruling,
        rules=ruling.enforced,
        fleet=setting.fleet,
        knowledge=setting.knowledge,
        form=setting.form,
        asks=bool(ruling.claimed.classes) or _asks(pod, setting.knowledge),
        served=served(pod, ruling, setting.policies),
        namespace_labels=labels,
        settled=setting.settled,
        before=setting.before,
        claimed=ruling.claimed,
    )


def served(pod: Pod, ruling: Ruling, policies: PolicySet) -> bool:
    """Tell whether a pod's scheduler is one that asks us, or the default one; others' pods are left alone (S14)."""
    named = pod.scheduler_name in OUR_SCHEDULERS | _named_schedulers(policies)
    return named or "scheduler_name" in ruling.enforced.override


def _asks(pod: Pod, knowledge: Knowledge) -> bool:
    is_gpu = knowledge.families.of
    return any(is_gpu(name) and each.names(name) for each in pod.containers for name in each.resources())


def _named_schedulers(policies: PolicySet) -> set[str]:
    named = (each.spec.admission.scheduler_name for each in policies.policies)
    return {name for name in named if name}


def _enforce(
    case: ReviewedPod, reopen: Callable[[Mapping[str, Any]], ReviewedPod | None]
) -> tuple[ReviewedPod, list[tuple[Mutator, PodChange]]]:
    """Run the mutators one after another, each on what the earlier ones left; other amounts are ruled on anew."""
    changes: list[tuple[Mutator, PodChange]] = []
    for mutator in mutators_of(case):
        done = list(mutator(case))
        operations = [each for change in done for each in change.operations]
        after = case.after(operations)
        case = (reopen(after.document) or after) if operations and mutator in AMOUNTS else after
        changes += [(mutator, change) for change in done]
    return case, changes


def _of_template(mutator: Mutator, change: PodChange) -> bool:
    """Tell whether a change is for a template: a repair, or word of what its pods will not get (F18)."""
    return mutator in REPAIRS or not change.operations


def _changes_at(
    case: ReviewedPod, rules: AdmissionRules, demand: Demand | None, known: list[PodChange]
) -> list[PodChange]:
    """List what milder rules, and a milder demand, would change besides what is known; nothing of it is applied."""
    if rules == case.rules and demand is None:
        return []
    milder = replace(case, rules=rules, ruling=replace(case.ruling, demand=demand or case.ruling.demand))
    seen = {change.record for change in known}
    return [change for mutator in mutators_of(case) for change in mutator(milder) if change.record not in seen]


def _judge(case: ReviewedPod) -> tuple[tuple[Reason, ...], list[str]]:
    """Run every validator: (reasons to refuse, warnings of what milder rules would refuse)."""
    reasons = tuple(dict.fromkeys(found for validator in validators_of(case) for found in validator(case)))
    if case.ruling.warned == case.rules:
        return reasons, []
    milder = replace(case, rules=case.ruling.warned)
    warned = (found for validator in validators_of(case) for found in validator(milder))
    return reasons, [f"{found.message} (policy only warns)" for found in warned if found not in reasons]


def _limited(warnings: list[str]) -> tuple[str, ...]:
    lines = [one_line(text, WARNING_LIMIT) for text in dict.fromkeys(warnings)]
    if len(lines) <= MOST_WARNINGS:
        return tuple(lines)
    return (*lines[: MOST_WARNINGS - 1], f"and {len(lines) - MOST_WARNINGS + 1} more")
