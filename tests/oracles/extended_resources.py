# SPDX-License-Identifier: Apache-2.0
"""Oracle: what kube-apiserver would refuse in a Pod, above all its extended resources.

Written from pkg/apis/core/validation/validation.go and pkg/apis/core/v1/helper (v1.34), as the fact tables quote them.
It is complete only for what an admission webhook may change.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.oracles.pod_validity import other_problems, qualified
from tests.oracles.quantities import milli, quantity

Found = Iterator[str]


def problems(pod_document: Mapping[str, Any]) -> list[str]:
    """List what the API server would refuse, one line each, starting with the path; empty if it accepts the Pod."""
    return [*resource_problems(pod_document), *other_problems(pod_document)]


def resource_problems(pod_document: Mapping[str, Any]) -> list[str]:
    """List only the problems with amounts of resources."""
    spec = pod_document.get("spec") or {}
    messages = list(_pod_level(spec.get("resources") or {}))
    for list_name in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(list_name) or []):
            messages += _container(f"spec.{list_name}[{index}].resources", container.get("resources") or {})
    for index, container in enumerate(spec.get("ephemeralContainers") or []):
        if container.get("resources"):
            messages.append(f"spec.ephemeralContainers[{index}].resources: not allowed for ephemeral containers")
    return messages


def is_extended(name: str) -> bool:
    """Tell whether requests must equal limits, as for any name with a domain other than kubernetes.io."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def _container(where: str, resources: Mapping[str, Any]) -> Found:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for side, amounts in (("requests", requests), ("limits", limits)):
        for name, written in amounts.items():
            yield from _amount(f"{where}.{side}[{name}]", name, written)
    for name, written in requests.items():
        if not is_extended(name):
            continue
        if name not in limits:
            yield f"{where}.limits: {name}: Limit must be set for non overcommitable resources"
        elif quantity(written) != quantity(limits[name]):
            yield f"{where}.requests: must be equal to {name} limit of {limits[name]}"


def _amount(where: str, name: str, written: Any) -> Found:
    value = quantity(written)
    if is_extended(name) and not (qualified(name) and qualified(f"requests.{name}")):
        yield f"{where}: doesn't follow extended resource name standard"
    if value is None:
        yield f"{where}: {written!r} is no quantity"
    elif value < 0:
        yield f"{where}: must be greater than or equal to 0"
    elif is_extended(name) and milli(value) % 1000 != 0:
        yield f"{where}: must be an integer"


def _pod_level(resources: Mapping[str, Any]) -> Found:
    for side in ("requests", "limits"):
        for name in resources.get(side) or {}:
            if is_extended(name):
                yield f"spec.resources.{side}[{name}]: pod-level resources take no extended resource"


def change_problems(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """List the problems of a webhook's change to a Pod, though the Pod may be valid before and after it."""
    messages = []
    old, new = before.get("spec") or {}, after.get("spec") or {}
    named = new.get("priorityClassName") and not old.get("priorityClassName")
    if named and new.get("priority") is not None:
        messages.append("spec.priority: must not be provided beside a priorityClassName that was added")
    tolerations = old.get("tolerations") or []
    if (new.get("tolerations") or [])[: len(tolerations)] != tolerations:
        messages.append("spec.tolerations: the user's are gone or moved")
    for key in ("nodeName", "nodeSelector", "resourceClaims", "ephemeralContainers", "status"):
        if old.get(key) != new.get(key):
            messages.append(f"spec.{key}: changed")
    for key in ("name", "generateName", "namespace", "labels", "ownerReferences", "finalizers"):
        if (before.get("metadata") or {}).get(key) != (after.get("metadata") or {}).get(key):
            messages.append(f"metadata.{key}: changed")
    return messages
