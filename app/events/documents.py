# SPDX-License-Identifier: Apache-2.0
"""Events as objects of events.k8s.io/v1: their names, their fields, and the patch that renews one."""

from hashlib import sha256
from typing import Any

from app.events.planning import EventWrite
from app.kube.pods import ObjectReference

API_VERSION = "events.k8s.io/v1"
CONTROLLER = "gpu-usher"
ACTION, ACTION_OF_POLICIES = "Scheduling", "Loading"
"""What could not be done: to a pod, in kube-scheduler's word for it (pkg/scheduler/schedule_one.go); to a ConfigMap."""
NAME_LENGTH, INSTANCE_LENGTH = 253, 128
"""Limits of an object's name (DNS subdomain) and of reportingInstance (k8s.io/api events/v1)."""
DIGEST_LENGTH = 16


def events_path(namespace: str) -> str:
    """Return the path of the Events of a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/events"


def event_name(write: EventWrite) -> str:
    """Name an Event by its object and its words: a replica that takes over finds the Event that stands already."""
    text = "\n".join((write.regarding.uid, write.statement.reason, write.statement.words))
    digest = sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{write.regarding.name[: NAME_LENGTH - DIGEST_LENGTH - 1].rstrip('-.')}.{digest}"


def event_document(write: EventWrite, instance: str, timestamp: str) -> dict[str, Any]:
    """Write a new Event. `timestamp` is that of a metav1.MicroTime, `instance` the name of this replica."""
    regarding = write.regarding
    return {
        "apiVersion": API_VERSION,
        "kind": "Event",
        "metadata": {"name": event_name(write), "namespace": regarding.namespace},
        "eventTime": timestamp,
        "type": "Warning",
        "reason": write.statement.reason,
        "note": write.statement.note,
        "action": ACTION_OF_POLICIES if regarding.kind == "ConfigMap" else ACTION,
        "regarding": _reference(regarding),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:INSTANCE_LENGTH],
    }


def series_patch(count: int, timestamp: str) -> dict[str, Any]:
    """Write the merge patch by which an Event goes on: of an Event, only its series may change."""
    return {"series": {"count": count, "lastObservedTime": timestamp}}


def _reference(regarding: ObjectReference) -> dict[str, str]:
    return {
        "apiVersion": regarding.api_version,
        "kind": regarding.kind,
        "namespace": regarding.namespace,
        "name": regarding.name,
        "uid": regarding.uid,
    }
