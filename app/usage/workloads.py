# SPDX-License-Identifier: Apache-2.0
"""The workloads that hold GPUs: which one a pod belongs to, and the patch of its template.

A pod belongs to its owner where the pod is known, else the form of its name tells the workload. Patches are strategic
merge patches, as `kubectl patch` takes them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.kube.pod_object import pod_object
from app.kube.pods import workload_group

_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
"""The characters of generated names (k8s.io/apimachinery pkg/util/rand)."""
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"(.+)-{_RANDOM}{{6,10}}-{_RANDOM}{{5}}",  # a Deployment's: hash of the template, and a generated suffix
        rf"(.+)-\d+-{_RANDOM}{{5}}",  # an indexed Job's
        rf"(.+)-{_RANDOM}{{5}}",  # any other generated name
        r"(.+)-\d+",  # a StatefulSet's
    )
)
_TEMPLATE_HASH = "pod-template-hash"


def owner_by_name(pod: str) -> str:
    """Guess the name of a pod's workload from the name of the pod; the pod's own name where it has no such form."""
    return next((match[1] for form in _FORMS if (match := form.fullmatch(pod))), pod)


def owners_of(pods: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """Map the pods of a cluster, as namespace/name, to their workloads as namespace/kind/name.

    Raises MalformedPod.
    """
    return dict(_owner(pod) for pod in pods)


def _owner(document: Mapping[str, Any]) -> tuple[str, str]:
    pod = pod_object(document)
    labels, owner = pod.metadata.labels or {}, pod.metadata.controller
    if group := workload_group(pod.namespace, labels):
        return pod.key, group
    if owner is None:
        return pod.key, f"{pod.namespace}/{owner_by_name(pod.metadata.name)}"
    kind, name, template = owner.kind or "", owner.name or "", labels.get(_TEMPLATE_HASH, "")
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        kind, name = "Deployment", name.removesuffix(f"-{template}")
    return pod.key, f"{pod.namespace}/{kind}/{name}"


def workload_of(owners: Mapping[str, str]) -> Callable[[str], str | None]:
    """Return what gives the workload of a pod, as namespace/name: for one that is gone that of pods named alike."""
    alike = {_likeness(pod): owner for pod, owner in owners.items()}
    return lambda pod: owners.get(pod) or alike.get(_likeness(pod))


def _likeness(pod: str) -> str:
    namespace, _, name = pod.partition("/")
    return f"{namespace}/{owner_by_name(name)}"


TEMPLATED = frozenset({"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"})
"""Kinds with the template of a Pod in `spec.template` (Kubernetes API reference). Of others the patch is the Pod's."""


def template_patch(before: Mapping[str, Any], after: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Write the patch that makes the edits of a Pod in the template of its workload of kind `owner`.

    Containers are merged by name, and null removes a member. Only annotations and resources are compared.
    """
    patch: dict[str, Any] = {}
    annotations = _changes(_annotations(before), _annotations(after))
    if annotations:
        patch["metadata"] = {"annotations": annotations}
    lists = {name: _containers(before, after, name) for name in ("initContainers", "containers")}
    if changed := {name: containers for name, containers in lists.items() if containers}:
        patch["spec"] = changed
    return {"spec": {"template": patch}} if owner in TEMPLATED else patch


def _annotations(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return (pod.get("metadata") or {}).get("annotations") or {}


def _containers(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    pairs = zip(before["spec"].get(name) or (), after["spec"].get(name) or (), strict=True)
    changed = []
    for old, new in pairs:
        kinds = {kind: _changes(_amounts(old, kind), _amounts(new, kind)) for kind in ("limits", "requests")}
        if resources := {kind: amounts for kind, amounts in kinds.items() if amounts}:
            changed.append({"name": old.get("name"), "resources": resources})
    return changed


def _amounts(container: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return (container.get("resources") or {}).get(kind) or {}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Give what a merge has to set, with null for what it has to remove."""
    removed = {key: None for key in before if key not in after}
    return removed | {key: value for key, value in after.items() if before.get(key) != value}
