# SPDX-License-Identifier: Apache-2.0
"""Strategic merge patches of the template of a workload, as `kubectl patch` takes them."""

from collections.abc import Mapping
from typing import Any

TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
}
"""Where the template of a Pod is, by kind (Kubernetes API reference). Of other kinds the patch is that of the Pod."""


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
    for key in reversed(TEMPLATES.get(owner, ())):
        patch = {key: patch}
    return patch


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
