# SPDX-License-Identifier: Apache-2.0
"""One review: mutate, validate the result, and put on record what was done and why."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.case import WARNING_LIMIT, Case, Change, Fleet, one_line
from app.admission.mutate import MUTATORS
from app.admission.patch import Operation, put
from app.admission.validate import VALIDATORS
from app.knowledge.tables import Knowledge
from app.pods import DECISION, PREFIX, read_pod
from app.policy.load import PolicySet
from app.policy.match import rule_on
from app.policy.merge import AdmissionRules
from app.reasons import Reason

DECISION_VERSION = 1
MOST_WARNINGS = 3
"""Warnings of one answer; the API server cuts all of them short past about 4,096 characters in sum (ADM-29)."""
EXEMPT_LABELS = (PREFIX + "infrastructure", PREFIX + "ignore")
"""Namespace labels; "true" exempts. A pod's own label never does (F21)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a review happens: the policies in force, the fleet as known now, the fact tables."""

    policies: PolicySet
    fleet: Fleet
    knowledge: Knowledge


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

    @property
    def allowed(self) -> bool:
        """Tell whether the object is let in."""
        return not self.reasons


UNCONCERNED = Verdict(concerned=False)


def mutate(document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], setting: Setting) -> Verdict:
    """Repair a Pod and judge the result. `labels` are the namespace's.

    Raises MalformedPod, QuantityError for shapes that Kubernetes would refuse too.
    """
    case = _open(document, namespace, labels, setting)
    if case is None:
        return UNCONCERNED
    case, changes = _enforce(case, lambda changed: _open(changed, namespace, labels, setting))
    reasons, lenient = _judge(case)
    if reasons:
        return Verdict(True, warnings=_limited(lenient), reasons=reasons, policies=case.ruling.policies)
    warned = _changes_at(case, case.ruling.warned, [])
    audited = _changes_at(case, case.ruling.audited, warned)
    record = (
        *(change.record for change in changes),
        *(f"not done, policy only warns: {change.record}" for change in warned),
        *(f"not done, policy only audits: {change.record}" for change in audited),
    )
    operations = [each for change in changes for each in change.operations]
    written = _decision(case, record, changed=bool(operations))
    warnings = [*lenient, *(change.warning for change in changes if change.warning)]
    warnings += [f"not done, policy only warns: {change.record}" for change in warned]
    warnings += case.ruling.warnings
    if written and DECISION in case.pod.annotations and not _ours(case.document):
        warnings.append(f"{DECISION} did not fit the pod and was rewritten")
    return Verdict(True, (*operations, *written), _limited(warnings), (), record, case.ruling.policies)


def validate(document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], setting: Setting) -> Verdict:
    """Judge a Pod as it is; never a patch.

    Raises MalformedPod, QuantityError.
    """
    case = _open(document, namespace, labels, setting)
    if case is None:
        return UNCONCERNED
    reasons, lenient = _judge(case)
    return Verdict(True, warnings=_limited(lenient), reasons=reasons, policies=case.ruling.policies)


def exempt(namespace: str, labels: Mapping[str, str], knowledge: Knowledge) -> bool:
    """Tell whether a namespace is exempt, by label or as infrastructure by name (INTERFACES §10)."""
    return knowledge.families.infrastructure(namespace) or any(labels.get(key) == "true" for key in EXEMPT_LABELS)


def _open(document: Mapping[str, Any], namespace: str, labels: Mapping[str, str], setting: Setting) -> Case | None:
    """Read the Pod; None if it asks for no GPU (zero is no GPU, F9) or its namespace is exempt."""
    pod = read_pod(document, namespace)
    is_gpu = setting.knowledge.families.of
    asks = any(is_gpu(name) and each.names(name) for each in pod.containers for name in pod.resources())
    if not asks or exempt(pod.namespace, labels, setting.knowledge):
        return None
    ruling = rule_on(pod, labels, setting.policies, setting.knowledge)
    return Case(document, pod, ruling, ruling.enforced, setting.fleet, setting.knowledge)


def _enforce(case: Case, reopen: Callable[[Mapping[str, Any]], Case | None]) -> tuple[Case, list[Change]]:
    """Run the mutators one after another, each on what the earlier ones left; another amount is ruled on anew."""
    changes: list[Change] = []
    for mutator in MUTATORS:
        done = list(mutator(case))
        after = case.after([each for change in done for each in change.operations])
        case = after if after.amounts() == case.amounts() else reopen(after.document) or after
        changes += done
    return case, changes


def _changes_at(case: Case, rules: AdmissionRules, known: list[Change]) -> list[Change]:
    """List what milder rules would change besides what is done and known; nothing of it is applied."""
    if rules == case.rules:
        return []
    milder = replace(case, rules=rules)
    enforced = [change.record for mutator in MUTATORS for change in mutator(case)]
    seen = {*enforced, *(change.record for change in known)}
    return [change for mutator in MUTATORS for change in mutator(milder) if change.record not in seen]


def _judge(case: Case) -> tuple[tuple[Reason, ...], list[str]]:
    """Run every validator: (reasons to refuse, warnings of what milder rules would refuse)."""
    reasons = tuple(dict.fromkeys(found for validator in VALIDATORS for found in validator(case)))
    if case.ruling.warned == case.rules:
        return reasons, []
    milder = replace(case, rules=case.ruling.warned)
    warned = (found for validator in VALIDATORS for found in validator(milder))
    return reasons, [f"{found.message} (policy only warns)" for found in warned if found not in reasons]


def _limited(warnings: list[str]) -> tuple[str, ...]:
    lines = [one_line(text, WARNING_LIMIT) for text in dict.fromkeys(warnings)]
    if len(lines) <= MOST_WARNINGS:
        return tuple(lines)
    return (*lines[: MOST_WARNINGS - 1], f"and {len(lines) - MOST_WARNINGS + 1} more")


def _decision(case: Case, record: tuple[str, ...], changed: bool) -> list[Operation]:
    """Write the decision annotation, unless nothing changed and the one there fits the pod.

    A record for people; nothing reads it to decide. No time and no random value, so that it is idempotent. Where the
    API server calls again because another webhook changed the pod, what the earlier pass did stays on record.
    """
    of = _fingerprint(case)
    earlier = _record(case)
    if not changed and earlier.get("of") == of:
        return []
    done = dict.fromkeys([*(earlier["actions"] if earlier and _ours(case.document) else ()), *record])
    value = {
        "v": DECISION_VERSION,
        "policies": list(case.ruling.policies),
        "hash": case.ruling.policy_hash[:12],
        "actions": list(done),
        "of": of,
    }
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return [put(case.document, ("metadata", "annotations", DECISION), text)]


def _record(case: Case) -> dict[str, Any]:
    """Read the record that is there; empty if there is none of our form."""
    try:
        found = json.loads(case.pod.annotations.get(DECISION) or "null")
    except (ValueError, RecursionError):
        return {}
    ours = isinstance(found, dict) and found.get("v") == DECISION_VERSION and isinstance(found.get("actions"), list)
    return found if ours else {}


def _ours(document: Mapping[str, Any]) -> bool:
    """Tell whether the record is from an earlier call about the same request, after which another webhook spoke.

    managedFields name what the requester wrote; what a webhook's patch added is not in them on the next call (seen on
    kube-apiserver 1.36). Without managedFields anybody may have written it.
    """
    managers = (document.get("metadata") or {}).get("managedFields")
    if not isinstance(managers, list) or not managers:
        return False
    return not any(f'"f:{DECISION}"' in json.dumps(each) for each in managers)


def _fingerprint(case: Case) -> str:
    """Hash the parts of the Pod that decisions rest on.

    Not the whole spec: in-tree admission plugins change that after us (CONTROL_PLANE §2.4), and a record that
    no longer fits would be rewritten for nothing.
    """
    pod = case.pod
    asked = [
        [
            each.list_name,
            each.name,
            each.image,
            each.env,
            name,
            *([str(side.get(name, "")) for side in (each.requests, each.limits)]),
        ]
        for each in pod.containers
        for name in case.gpu_resources()
    ]
    ours = sorted((key, value) for key, value in pod.annotations.items() if key.startswith(PREFIX) and key != DECISION)
    parts = [asked, ours, pod.runtime_class_name, pod.scheduler_name]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:32]
