# SPDX-License-Identifier: Apache-2.0
"""The part of an object that is reviewed: a pod, a workload's pod template, new ephemeral containers, or new
amounts of CPU and memory (pods/resize).

An UPDATE that leaves the template unchanged is not reviewed: a Deployment must still scale, and a ReplicaSet be
deleted, after a policy has become stricter (docs/reference/admission.md#reviewed-objects).

Annotations of ours are warned of where nothing reads them: on a workload instead of its pod template, or among the
labels. A pod gets the annotations of the template alone (k8s.io/kubernetes pkg/controller GetPodFromTemplate), and
kubectl annotate writes those of the object. What is only kept by an edit is not warned of again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.admission.json_patch import Operation
from app.admission.reviewed_pod import PodForm
from app.kube.pods import PREFIX
from app.policy.annotations import ANNOTATIONS
from app.values.json_members import member, objects

_TEMPLATE = ("spec", "template")
WORKLOADS: Mapping[tuple[str, str], tuple[tuple[str, ...], frozenset[str]]] = {
    ("apps", "deployments"): (_TEMPLATE, frozenset({"CREATE", "UPDATE"})),
    ("apps", "statefulsets"): (_TEMPLATE, frozenset({"CREATE", "UPDATE"})),
    ("apps", "daemonsets"): (_TEMPLATE, frozenset({"CREATE", "UPDATE"})),
    ("apps", "replicasets"): (_TEMPLATE, frozenset({"CREATE", "UPDATE"})),
    ("batch", "jobs"): (_TEMPLATE, frozenset({"CREATE"})),  # and when a queue takes it: queued_jobs.py
    ("batch", "cronjobs"): (("spec", "jobTemplate", *_TEMPLATE), frozenset({"CREATE", "UPDATE"})),
}
"""By (API group, resource): the path of the pod template, and the operations that are reviewed."""
JOBS = ("batch", "jobs")
"""The only one of them that Kueue counts by its template; of the others it counts the pods."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True, slots=True)
class ReviewTarget:
    """A pod, or a pod template, at `path` in the reviewed object.

    `existing_ephemeral`, `old_template` and `queued` are as in ReviewContext; `entering` is true of a template that is
    stored and whose workload gets the label of a queue now.
    """

    document: Mapping[str, Any]
    form: PodForm = PodForm.Pod
    path: tuple[str, ...] = ()
    existing_ephemeral: frozenset[str] = frozenset()
    old_template: Mapping[str, Any] | None = None
    queued: bool = False
    entering: bool = False

    def operation_on_object(self, operation: Operation) -> Operation:
        """Turn an operation on the pod or template into one on the object."""
        return Operation(operation.op, (*self.path, *operation.path), operation.value)


def review_target_of(request: Mapping[str, Any]) -> ReviewTarget | None:
    """Find the part of an AdmissionReview's request to review; None if nothing of it is reviewed.

    Raises MalformedPod.
    """
    resource = request.get("resource") or {}
    group_resource = (str(resource.get("group") or ""), str(resource.get("resource")))
    new, old = request.get("object"), request.get("oldObject")
    if new is None:
        return None
    operation = str(request.get("operation")), str(request.get("subResource") or "")
    if group_resource == ("", "pods") and operation == ("CREATE", ""):
        return ReviewTarget(new)
    if group_resource == ("", "pods") and operation == ("UPDATE", "ephemeralcontainers"):
        return ReviewTarget(new, PodForm.Ephemeral, existing_ephemeral=_ephemeral_names(old or {}))
    if group_resource == ("", "pods") and operation == ("UPDATE", "resize"):
        return ReviewTarget(new, PodForm.Resize) if old is None or new.get("spec") != old.get("spec") else None
    if group_resource in WORKLOADS and operation[1] == "":
        path, reviewed = WORKLOADS[group_resource]
        form = PodForm.DaemonSet if group_resource[1] == "daemonsets" else PodForm.Template
        target = _template(new, old, path, form) if operation[0] in reviewed else None
        return replace(target, queued=True) if target and group_resource == JOBS and is_queued(new) else target
    return None


def is_queued(workload: Mapping[str, Any]) -> bool:
    """Tell whether Kueue queues a workload, whose pods it then lets be made from its templates.

    Raises MalformedPod.
    """
    metadata = member(workload, "metadata", dict, "") or {}
    return bool((member(metadata, "labels", dict, "metadata.") or {}).get(QUEUE_LABEL))


def is_suspended(workload: Mapping[str, Any]) -> bool:
    """Tell whether a workload is suspended and has not started, so that where its pods may run can be changed.

    Raises MalformedPod.
    """
    spec, status = (member(workload, key, dict, "") or {} for key in ("spec", "status"))
    policy = member(spec, "runPolicy", dict, "spec.") or spec
    return policy.get("suspend") is True and status.get("startTime") is None


def _template(
    new: Mapping[str, Any], old: Mapping[str, Any] | None, path: tuple[str, ...], form: PodForm
) -> ReviewTarget | None:
    template = member_at(new, path)
    being_deleted = (member(new, "metadata", dict, "") or {}).get("deletionTimestamp") is not None
    old_template = member_at(old, path) if old is not None else None
    if template is None or being_deleted or old_template == template:
        return None
    return ReviewTarget(template, form, path, old_template=old_template)


def member_at(document: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any] | None:
    """Return the object at a path; None where a member of the path is not there.

    Raises MalformedPod for a member that is no object.
    """
    value: Mapping[str, Any] | None = document
    for depth, key in enumerate(path):
        value = member(value, key, dict, "".join(f"{name}." for name in path[:depth])) if value is not None else None
    return value


def _ephemeral_names(pod: Mapping[str, Any]) -> frozenset[str]:
    spec = member(pod, "spec", dict, "") or {}
    return frozenset(str(container.get("name", "")) for _, container in objects(spec, "ephemeralContainers", "spec."))


KEYS = frozenset(PREFIX + name for name in ANNOTATIONS)
METADATA_PATH = ("metadata",)


def ignored_labels(labels: Mapping[str, str]) -> Iterator[str]:
    """Warn of labels of a pod that have the name of one of our annotations."""
    for key in sorted(KEYS.intersection(labels)):
        yield f"label {key} has no effect; make it an annotation"


def ignored_annotations(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Warn of our annotations on a workload, or on a CronJob's Job, that its pod template lacks.

    Raises MalformedPod.
    """
    resource = request.get("resource") or {}
    workload = WORKLOADS.get((str(resource.get("group") or ""), str(resource.get("resource"))))
    new, old = request.get("object"), request.get("oldObject")
    if workload is None or new is None or request.get("subResource"):
        return ()
    template, kind = workload[0], str(new.get("kind") or "workload")
    in_template = _annotations(new, (*template, *METADATA_PATH))
    warnings = []
    for place, owner in ((METADATA_PATH, kind), (("spec", "jobTemplate", *METADATA_PATH), "jobTemplate")):
        before = _annotations(old or {}, place)
        for key, value in sorted(_annotations(new, place).items()):
            if key in KEYS and key not in in_template and before.get(key) != value:
                where = ".".join((*template, *METADATA_PATH, "annotations"))
                warnings.append(f"{key} on the {owner} itself has no effect; put it in {where}")
    return tuple(warnings)


def _annotations(document: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the annotations of the metadata at a path; a path or annotations that are not there have none."""
    metadata = member_at(document, path) or {}
    return member(metadata, "annotations", dict, "metadata.") or {}
