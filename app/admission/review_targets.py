# SPDX-License-Identifier: Apache-2.0
"""What a review is about: a pod, a workload's template, new ephemeral containers; None for what is let through.

On UPDATE a template that is as it was is nobody's doing now: a Deployment must still scale and a ReplicaSet still go
where a policy has since become stricter (docs/reference/admission.md#reviewed-objects).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.admission.case import PodForm
from app.admission.json_patch import Operation
from app.values.json_members import member, objects

_TEMPLATE = ("spec", "template")
WORKLOADS: Mapping[tuple[str, str], tuple[tuple[str, ...], frozenset[str]]] = {
    ("apps", "deployments"): (_TEMPLATE, frozenset({"CREATE", "UPDATE"})),
    ("apps", "statefulsets"): (_TEMPLATE, frozenset({"CREATE", "UPDATE"})),
    ("apps", "daemonsets"): (_TEMPLATE, frozenset({"CREATE", "UPDATE"})),
    ("apps", "replicasets"): (_TEMPLATE, frozenset({"CREATE", "UPDATE"})),
    ("batch", "jobs"): (_TEMPLATE, frozenset({"CREATE"})),
    ("batch", "cronjobs"): (("spec", "jobTemplate", *_TEMPLATE), frozenset({"CREATE", "UPDATE"})),
}
"""By (group, resource): where the pod template stands, and the operations that are reviewed."""


@dataclass(frozen=True, slots=True)
class ReviewTarget:
    """A pod, or what stands for one. `path`: where it stands in the object; `settled`, `before`: as in Case."""

    document: Mapping[str, Any]
    form: PodForm = PodForm.Pod
    path: tuple[str, ...] = ()
    settled: frozenset[str] = frozenset()
    before: Mapping[str, Any] | None = None

    def placed(self, operation: Operation) -> Operation:
        """Turn an operation on the subject into one on the object."""
        return Operation(operation.op, (*self.path, *operation.path), operation.value)


def subject_of(request: Mapping[str, Any]) -> ReviewTarget | None:
    """Find what a request is about.

    Raises MalformedPod.
    """
    resource = member(request, "resource", dict, "request.") or {}
    found = (str(resource.get("group") or ""), str(resource.get("resource")))
    made, before = member(request, "object", dict, "request."), member(request, "oldObject", dict, "request.")
    if made is None:
        return None
    kind = str(request.get("operation")), str(request.get("subResource") or "")
    if found == ("", "pods") and kind == ("CREATE", ""):
        return ReviewTarget(made)
    if found == ("", "pods") and kind == ("UPDATE", "ephemeralcontainers"):
        return ReviewTarget(made, PodForm.Ephemeral, settled=_ephemeral_names(before or {}))
    if found in WORKLOADS and kind[1] == "":
        path, operations = WORKLOADS[found]
        form = PodForm.DaemonSet if found[1] == "daemonsets" else PodForm.Template
        return _template(made, before, path, form) if kind[0] in operations else None
    return None


def _template(
    made: Mapping[str, Any], before: Mapping[str, Any] | None, path: tuple[str, ...], form: PodForm
) -> ReviewTarget | None:
    template = _at(made, path)
    leaving = (member(made, "metadata", dict, "") or {}).get("deletionTimestamp") is not None
    old = _at(before, path) if before is not None else None
    if template is None or leaving or old == template:
        return None
    return ReviewTarget(template, form, path, before=old)


def _at(document: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = document
    for depth, key in enumerate(path):
        found = member(found, key, dict, "".join(f"{each}." for each in path[:depth])) if found is not None else None
    return found


def _ephemeral_names(pod: Mapping[str, Any]) -> frozenset[str]:
    spec = member(pod, "spec", dict, "") or {}
    return frozenset(str(each.get("name", "")) for _, each in objects(spec, "ephemeralContainers", "spec."))
