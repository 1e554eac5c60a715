# SPDX-License-Identifier: Apache-2.0
"""The workload that a pod belongs to: by its owner where the pod is known, else by the form of its name."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.kube.pods import workload_group
from app.values.json_members import member, objects, strings

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


def _owner(pod: Mapping[str, Any]) -> tuple[str, str]:
    metadata = member(pod, "metadata", dict, "") or {}
    namespace = member(metadata, "namespace", str, "metadata.") or "default"
    name = member(metadata, "name", str, "metadata.") or ""
    labels = strings(metadata, "labels", "metadata.")
    key = f"{namespace}/{name}"
    if group := workload_group(namespace, labels):
        return key, group
    for index, owner in objects(metadata, "ownerReferences", "metadata."):
        if owner.get("controller"):
            where = f"metadata.ownerReferences[{index}]."
            kind, owner_name = (member(owner, field, str, where) or "" for field in ("kind", "name"))
            template = labels.get(_TEMPLATE_HASH, "")
            if kind == "ReplicaSet" and template and owner_name.endswith(f"-{template}"):
                kind, owner_name = "Deployment", owner_name.removesuffix(f"-{template}")
            return key, f"{namespace}/{kind}/{owner_name}"
    return key, f"{namespace}/{owner_by_name(name)}"
