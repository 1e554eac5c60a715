# SPDX-License-Identifier: Apache-2.0
"""The decision annotation: what was changed in a pod and why. It is for people; no decision rests on it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from app.admission.json_patch import Operation, put
from app.admission.reviewed_pod import ReviewedPod
from app.kube.pod_limits import ANNOTATIONS_BYTES
from app.kube.pods import DECISION, PREFIX

DECISION_VERSION = 1
MOST_ACTIONS = 32
"""Actions in one annotation; a pod with so many containers that it needs more is summed up in the last line."""


def record_decision(review: ReviewedPod, record: tuple[str, ...], changed: bool) -> list[Operation]:
    """Write the decision annotation, unless nothing changed and the present one fits the pod.

    The annotation holds neither a time nor a random value, so that a second call writes the same bytes. Where the API
    server calls again because another webhook changed the pod, the actions of the earlier call are kept.
    """
    fingerprint = _fingerprint(review)
    earlier = _present_record(review)
    if not changed and earlier.get("of") == fingerprint:
        return []
    if not changed and not (review.asks_for_gpu and review.has_our_scheduler):
        present = DECISION in review.pod.annotations
        return [Operation("remove", ("metadata", "annotations", DECISION))] if present else []
    earlier_actions = map(_as_text, earlier["actions"]) if earlier and _written_by_us(review.document) else ()
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


def _as_text(action: Any) -> str:
    """Read an action of an earlier annotation; whatever its JSON type is, it becomes text that can be sent."""
    return str(action).encode("utf-8", "ignore").decode()


def _shortened(actions: list[str]) -> list[str]:
    if len(actions) <= MOST_ACTIONS:
        return actions
    return [*actions[: MOST_ACTIONS - 1], f"and {len(actions) - MOST_ACTIONS + 1} more"]


def _present_record(review: ReviewedPod) -> dict[str, Any]:
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
        for container in pod.containers
        for resource in review.gpu_resources_of(container)
    ]
    annotations = sorted(
        (key, value) for key, value in pod.annotations.items() if key.startswith(PREFIX) and key != DECISION
    )
    parts = [gpu_requests, annotations, pod.runtime_class_name, pod.scheduler_name]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:32]
