# SPDX-License-Identifier: Apache-2.0
"""One admission review: mutate the object, validate the result, and record what was done and why.

A review reads the pod, and rules on it once and after each change of what it requests. The mutators run in order on
what the earlier ones left, then the validators. Where policies that only warn or audit say more, both run again at that
level, on the pod as what is enforced leaves it. What was changed in a pod is written into its decision annotation. That
is for people; no decision rests on it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from app.admission.claim_review import ReviewedClaim
from app.admission.json_patch import Operation, apply, put
from app.admission.mutators import FOR_QUEUED, REPAIRS, Mutator, is_same_for_mutators, run_mutators
from app.admission.review_targets import ignored_labels
from app.admission.reviewed_pod import (
    RUNNING,
    TEMPLATES,
    PodChange,
    PodForm,
    ReviewContext,
    ReviewedPod,
    begin_review,
    is_exempt,
    limited_warnings,
)
from app.admission.validators import run_validators, warning_of
from app.kube.pod_limits import ANNOTATIONS_BYTES
from app.kube.pods import DECISION, PREFIX, read_pod
from app.policy.match import Ruling
from app.policy.merge import AdmissionRules
from app.policy.schema import Action
from app.values.reasons import Code, Reason, reason

DECISION_VERSION = 1
MOST_ACTIONS = 32
"""Actions in one annotation; a pod with so many containers that it needs more is summed up in the last line."""


def record_decision(review: ReviewedPod, record: tuple[str, ...], changed: bool) -> list[Operation]:
    """Write the decision annotation, unless nothing changed and the present one fits the pod.

    The annotation holds neither a time nor a random value, so that a second call writes the same bytes. Where the API
    server calls again because another webhook changed the pod, the actions of the earlier call are kept.
    """
    fingerprint = _fingerprint(review)
    earlier = present_record(review)
    if not changed and earlier.get("of") == fingerprint:
        return []
    if not changed and not (review.asks_for_gpu and review.has_our_scheduler):
        present = DECISION in review.pod.annotations
        return [Operation("remove", ("metadata", "annotations", DECISION))] if present else []
    actions = earlier["actions"] if earlier and _written_by_us(review.document) else ()
    earlier_actions = (str(action).encode("utf-8", "ignore").decode() for action in actions)  # text that can be sent
    actions = dict.fromkeys([*earlier_actions, *record])
    value = {
        "v": DECISION_VERSION,
        "policies": list(review.ruling.policies),
        "hash": review.ruling.policy_hash[:12],
        "actions": _shortened(list(actions)),
        "of": fingerprint,
    }
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    others = ((key, value) for key, value in review.pod.annotations.items() if key != DECISION)
    if sum(len(part.encode()) for pair in (*others, (DECISION, text)) for part in pair) > ANNOTATIONS_BYTES:
        return []  # the pod's own leave no room for a record
    return [put(review.document, ("metadata", "annotations", DECISION), text)]


def _shortened(actions: list[str]) -> list[str]:
    if len(actions) <= MOST_ACTIONS:
        return actions
    return [*actions[: MOST_ACTIONS - 1], f"and {len(actions) - MOST_ACTIONS + 1} more"]


def present_record(review: ReviewedPod) -> dict[str, Any]:
    """Read the decision annotation that the pod has; empty if it has none of our form."""
    try:
        record = json.loads(review.pod.annotations.get(DECISION) or "null")
    except (ValueError, RecursionError):
        return {}
    readable = (
        isinstance(record, dict) and record.get("v") == DECISION_VERSION and isinstance(record.get("actions"), list)
    )
    return record if readable else {}


def forged(review: ReviewedPod) -> bool:
    """Tell whether the pod has a decision annotation that another client wrote."""
    return DECISION in review.pod.annotations and not _written_by_us(review.document)


def _written_by_us(document: Mapping[str, Any]) -> bool:
    """Tell whether the annotation is from an earlier call of the same request, after which another webhook changed it.

    managedFields name what the requester wrote; on a second call they do not yet name what a webhook's patch added
    (seen on kube-apiserver 1.36). Without managedFields anybody may have written the annotation.
    """
    managers = (document.get("metadata") or {}).get("managedFields")
    if not isinstance(managers, list) or not managers:
        return False
    try:
        return f'"f:{DECISION}"'.encode() not in msgspec.json.encode(managers)  # ten times as fast as json
    except RecursionError:
        return False  # nothing that Kubernetes writes nests so deep


def _fingerprint(review: ReviewedPod) -> str:
    """Hash the parts of the Pod that decisions rest on: 32 hexadecimal digits.

    The rest of the spec is left out: in-tree admission plugins change it after us
    (docs/reference/control-plane.md#after-the-webhook), and an annotation that no longer fits would be rewritten for
    nothing.
    """
    pod = review.pod
    gpu_requests = [
        [
            container.list_name,
            container.name,
            container.image,
            container.env,
            resource,
            *([str(side.get(resource, "")) for side in (container.requests, container.limits)]),
        ]
        for container, resource in review.gpus.named
    ]
    annotations = sorted(
        (key, value) for key, value in pod.annotations.items() if key.startswith(PREFIX) and key != DECISION
    )
    parts = [gpu_requests, annotations, pod.runtime_class_name, pod.scheduler_name]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:32]


NOT_DONE = "not done, "
"""The beginning of the record of a change that a policy keeps from being made."""


@dataclass(frozen=True, slots=True)
class ReviewResult:
    """The result of a review: what admission changes in an object, and why it refuses or warns.

    `concerned` is true where the object asks for a GPU and was judged. `operations` is empty where nothing changes,
    `reasons` where the object is allowed. `record` lists the changes in words, in order. `policies` are the names of
    the policies that matched, and `policy_hash` is that of the policy set. `mutated` is a pod after the mutators, with
    the ruling on it; None where nothing is recorded of it, where it is refused, and for a template. `decision` are the
    last operations, which write the decision annotation. `undone` are those of `record` that change nothing.
    """

    concerned: bool
    operations: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    record: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    policy_hash: str = ""
    undone: tuple[str, ...] = ()
    mutated: ReviewedPod | None = field(default=None, compare=False, repr=False)
    decision: tuple[Operation, ...] = field(default=(), compare=False, repr=False)

    @property
    def allowed(self) -> bool:
        """True where the object is admitted."""
        return not self.reasons

    @property
    def admitted(self) -> ReviewedPod | None:
        """The pod after all operations, with the ruling on it; None where `mutated` is."""
        if self.mutated is None or not self.decision:
            return self.mutated
        return replace(self.mutated, document=apply(self.mutated.document, self.decision))


UNCONCERNED = ReviewResult(concerned=False)


def mutate(
    document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], context: ReviewContext
) -> ReviewResult:
    """Mutate a Pod, a template or new ephemeral containers, and judge the result. `labels` are the namespace's.

    Raises MalformedPod, QuantityError for amounts that Kubernetes would refuse too, and PatchError for a bug of ours: a
    patch that does not apply would make the API server reject the object even under failurePolicy Ignore
    (docs/reference/control-plane.md#answers-to-the-api-server).
    """
    review = _read_review(document, namespace, labels, context)
    return UNCONCERNED if review is None else _mutated(review)


def mutate_reviewed(review: ReviewedPod) -> ReviewResult:
    """Mutate and judge as `mutate` does, for a pod that is read already, with the ruling on it."""
    exempt = is_exempt(review.pod.namespace, review.namespace_labels, review.context.world.knowledge)
    return UNCONCERNED if exempt else _mutated(review)


def _mutated(review: ReviewedPod) -> ReviewResult:
    # 1. What is changed, and why the result is refused; what policies that only warn would change and refuse besides.
    document = review.document
    review, changes = run_mutators(review)
    milder, warned_changes = _run_milder(review, Action.Warn)
    reasons, warned_reasons = run_validators(review, milder)
    if reasons:
        return _result(review, warnings=limited_warnings(warned_reasons), reasons=reasons)
    # 2. The record: the changes, those that milder policies withhold, and the annotation about them.
    applied = [change for mutator, change in changes if _is_applied(review, mutator, change)]
    warned, audited = _withheld("warns", warned_changes, changes), list[str]()
    if review.ruling.audited != review.ruling.warned:
        audit, audited_changes = _run_milder(review, Action.Audit)
        audited = _withheld("audits", audited_changes, changes + warned_changes)
        audited += _audited_refusals(audit, warned_reasons)
    record = (*(change.record for change in applied), *warned, *audited)
    operations = [operation for change in applied for operation in change.operations]
    decision, decision_warnings = _decision(review, record, changed=bool(operations))
    # 3. The answer.
    recorded, of_ruling = _is_recorded(review), _ruling_warnings(review)
    warnings = [
        *warned_reasons,
        *ignored_labels(review.pod.labels),
        *(change.warning for change in applied if change.warning),
        *warned,
        *(of_ruling if recorded else ()),
        *(
            f"{claim} is not known yet, so gpu-usher cannot tell whether the pod claims GPUs"
            for claim in review.ruling.claimed.unknown
        ),
        *decision_warnings,
    ]
    operations += decision
    if not (recorded or operations or warnings or record):
        return UNCONCERNED
    # Of a template's changes some are left out, so that the others are applied once more, by themselves.
    is_template = review.context.form in TEMPLATES
    if is_template:
        apply(document, operations)
    return _result(
        review,
        operations=tuple(operations),
        warnings=limited_warnings(warnings),
        record=record,
        undone=(*(change.record for change in applied if not change.operations), *warned, *audited),
        mutated=None if is_template else review,
        decision=tuple(decision),
    )


def validate(
    document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], context: ReviewContext
) -> ReviewResult:
    """Judge a Pod as it stands, or a template as its pods will be after mutation; the result has no operations.

    Raises MalformedPod, QuantityError.
    """
    review = _read_review(document, namespace, labels, context)
    if review is None:
        return UNCONCERNED
    if review.context.form in TEMPLATES:
        review, _ = run_mutators(review)
        milder, _ = _run_milder(review, Action.Warn)
    else:
        milder = review.at(Action.Warn)
    reasons, warned_reasons = run_validators(review, milder)
    if not (_is_recorded(review) or reasons or warned_reasons):
        return UNCONCERNED
    return _result(review, warnings=limited_warnings(warned_reasons), reasons=reasons)


def _ruling_warnings(review: ReviewedPod) -> tuple[str, ...]:
    """Return the warnings of the ruling; a product that a node of the fleet carries is not unknown."""
    ruling = review.ruling
    if not ruling.unknown_products:
        return ruling.warnings
    carried = {group.node_class.product or "" for group in review.context.world.fleet.node_groups}
    unknown = (
        text for pattern, text in ruling.unknown_products if not any(pattern.matches(product) for product in carried)
    )
    return (*unknown, *ruling.warnings)


def _is_recorded(review: ReviewedPod) -> bool:
    """Tell whether the answer is recorded even where nothing was changed: for GPU pods and their templates."""
    return review.asks_for_gpu and review.context.form not in RUNNING


def _result(review: ReviewedPod, **fields: Any) -> ReviewResult:
    return ReviewResult(True, policies=review.ruling.policies, policy_hash=review.ruling.policy_hash, **fields)


def review_claim(reviewed: ReviewedClaim, verb: str) -> ReviewResult:
    """Restrict a claim or a template to what policies allow every pod of its namespace, and judge it."""
    ruling = reviewed.ruling
    if reviewed.allocating:
        return ReviewResult(True, reasons=tuple(reviewed.denied_devices()), policies=ruling.policies)
    missing = () if verb == "mutate" else reviewed.unrestricted()
    judged = (_too_many(ruling.enforced, ruling), reviewed.no_room(), missing)
    reasons = tuple(problem for problems in judged for problem in problems)
    warned = [f"{one.advice} (warning only)" for one in _too_many(ruling.warned, ruling) if one not in reasons]
    made = list(reviewed.changes(ruling.demand)) if verb == "mutate" and not reasons else []
    if verb == "mutate" and ruling.demand.warned is not None:
        others = reviewed.changes(ruling.demand.warned)
        warned += [f"{NOT_DONE}policy only warns: {one.record}" for one in others if one not in made]
    return ReviewResult(
        True,
        tuple(operation for change in made for operation in change.operations),
        limited_warnings((*(change.record for change in made), *warned)),
        reasons,
        tuple(change.record for change in made),
        ruling.policies,
        ruling.policy_hash,
    )


def _too_many(rules: AdmissionRules, ruling: Ruling) -> tuple[Reason, ...]:
    """Judge the number of GPUs of a claim, since a pod gets all its devices."""
    problem = rules.too_many(0, ruling.claimed.most)
    return (problem,) if problem is not None else ()


def _read_review(
    document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], context: ReviewContext
) -> ReviewedPod | None:
    """Read the Pod; None if its namespace is exempt."""
    pod = read_pod(document, namespace)
    exempt = is_exempt(pod.namespace, labels, context.world.knowledge)
    return None if exempt else begin_review(document, pod, labels, context)


def _is_applied(review: ReviewedPod, mutator: Mutator, change: PodChange) -> bool:
    """Tell whether a change is applied. A template gets repairs, what Kueue reads of it, and warnings."""
    if review.context.form not in TEMPLATES or mutator in REPAIRS or not change.operations:
        return True
    return review.context.queued and review.rules.queued_templates == "Write" and mutator in FOR_QUEUED


def _run_milder(review: ReviewedPod, level: Action) -> tuple[ReviewedPod, list[tuple[Mutator, PodChange]]]:
    """Run the mutators under a milder level too; return what each changes by itself, not after another's change."""
    milder = review.at(level)
    if is_same_for_mutators(milder, review):
        return milder, []
    mutated, changes = run_mutators(milder)
    own = [(mutator, made) for mutator, made in changes if any(made.record == one.record for one in mutator(milder))]
    return mutated, own


def _withheld(
    verb: str, changes: list[tuple[Mutator, PodChange]], stricter: list[tuple[Mutator, PodChange]]
) -> list[str]:
    """Record the changes of a level which no stricter one makes."""
    seen = {change.record for _, change in stricter}
    return [f"{NOT_DONE}policy only {verb}: {change.record}" for _, change in changes if change.record not in seen]


def _audited_refusals(audit: ReviewedPod, warned: list[str]) -> list[str]:
    """Record what policies that only audit would refuse, and none that warns; nothing is refused otherwise."""
    problems = (problem for problem in run_validators(audit, audit)[0] if warning_of(problem) not in warned)
    return [f"{NOT_DONE}policy only audits: refusal: {problem.message}" for problem in problems]


def _decision(review: ReviewedPod, record: tuple[str, ...], changed: bool) -> tuple[list[Operation], list[str]]:
    """Write the decision annotation into a pod; a template that carries one gets a warning. (operations, warnings)."""
    if review.context.form is PodForm.Pod:
        operations = record_decision(review, record, changed)
        if operations and DECISION in review.pod.annotations and forged(review):
            done = "removed" if operations[0].op == "remove" else "rewritten"
            return operations, [f"{DECISION} did not match the pod and was {done}"]
        return operations, []
    if review.context.form in TEMPLATES and DECISION in review.pod.annotations:
        return [], [reason(Code.ReservedAnnotation, f"{DECISION} is reserved: gpu-usher writes it").message]
    return [], []
