# SPDX-License-Identifier: Apache-2.0
"""The decision annotation: what was done to a pod and why, for people; nothing reads it to decide (F15, F25)."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from app.admission.case import ReviewedPod
from app.admission.json_patch import Operation, put
from app.kube.pod_limits import ANNOTATIONS_BYTES
from app.kube.pods import DECISION, PREFIX

DECISION_VERSION = 1
MOST_ACTIONS = 32
"""Actions on record; a pod of more containers than a person reads needs no more."""


def record_decision(case: ReviewedPod, record: tuple[str, ...], changed: bool) -> list[Operation]:
    """Write the decision annotation, unless nothing changed and the one there fits the pod.

    A record for people; nothing reads it to decide. No time and no random value, so that it is idempotent. Where the
    API server calls again because another webhook changed the pod, what the earlier pass did stays on record.
    """
    of = _fingerprint(case)
    earlier = _record(case)
    if not changed and earlier.get("of") == of:
        return []
    if not changed and not (case.asks and case.served):
        known = DECISION in case.pod.annotations
        return [Operation("remove", ("metadata", "annotations", DECISION))] if known else []
    before = map(_text, earlier["actions"]) if earlier and _ours(case.document) else ()
    done = dict.fromkeys([*before, *record])
    value = {
        "v": DECISION_VERSION,
        "policies": list(case.ruling.policies),
        "hash": case.ruling.policy_hash[:12],
        "actions": _shortened(list(done)),
        "of": of,
    }
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    others = ((key, each) for key, each in case.pod.annotations.items() if key != DECISION)
    if sum(len(part.encode()) for pair in (*others, (DECISION, text)) for part in pair) > ANNOTATIONS_BYTES:
        return []  # the pod's own leave no room for a record
    return [put(case.document, ("metadata", "annotations", DECISION), text)]


def _text(action: Any) -> str:
    """Read an action of an earlier record; whatever it is, it becomes text that can be sent."""
    return str(action).encode("utf-8", "ignore").decode()


def _shortened(actions: list[str]) -> list[str]:
    if len(actions) <= MOST_ACTIONS:
        return actions
    return [*actions[: MOST_ACTIONS - 1], f"and {len(actions) - MOST_ACTIONS + 1} more"]


def _record(case: ReviewedPod) -> dict[str, Any]:
    """Read the record that is there; empty if there is none of our form."""
    try:
        found = json.loads(case.pod.annotations.get(DECISION) or "null")
    except (ValueError, RecursionError):
        return {}
    ours = isinstance(found, dict) and found.get("v") == DECISION_VERSION and isinstance(found.get("actions"), list)
    return found if ours else {}


def forged(case: ReviewedPod) -> bool:
    """Tell whether a record is there that we did not write."""
    return DECISION in case.pod.annotations and not _ours(case.document)


def _ours(document: Mapping[str, Any]) -> bool:
    """Tell whether the record is from an earlier call about the same request, after which another webhook spoke.

    managedFields name what the requester wrote; what a webhook's patch added is not in them on the next call (seen on
    kube-apiserver 1.36). Without managedFields anybody may have written it.
    """
    managers = (document.get("metadata") or {}).get("managedFields")
    if not isinstance(managers, list) or not managers:
        return False
    try:
        return f'"f:{DECISION}"'.encode() not in msgspec.json.encode(managers)  # ten times as fast as json
    except RecursionError:
        return False  # nothing that Kubernetes writes nests so deep


def _fingerprint(case: ReviewedPod) -> str:
    """Hash the parts of the Pod that decisions rest on.

    Not the whole spec: in-tree admission plugins change that after us
    (docs/reference/control-plane.md#after-the-webhook), and a record that no longer fits would be rewritten for
    nothing.
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
        for name in case.gpus_of(each)
    ]
    ours = sorted((key, value) for key, value in pod.annotations.items() if key.startswith(PREFIX) and key != DECISION)
    parts = [asked, ours, pod.runtime_class_name, pod.scheduler_name]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:32]
