# SPDX-License-Identifier: Apache-2.0
"""Reducing a Pod to the members that some decision reads; the test of the recorder shows that they suffice.

A list of what is kept, not of what is left out: a member that nobody thought of is never written down.
"""

from collections.abc import Mapping
from typing import Any

from app.admission.device_guard import CDI
from app.kube.pods import PREFIX

METADATA = ("name", "generateName", "namespace", "uid", "labels")
SPEC = (
    "affinity", "hostIPC", "nodeName", "nodeSelector", "overhead", "preemptionPolicy", "priority", "priorityClassName",
    "resourceClaims", "resources", "runtimeClassName", "schedulerName", "tolerations",
)  # fmt: skip
CONTAINER = ("name", "image", "resources", "restartPolicy")
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


def reduce_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a Pod, or a pod template, that was read without complaint."""
    metadata, spec, status = (pod.get(key) or {} for key in ("metadata", "spec", "status"))
    kept = {key: metadata[key] for key in METADATA if key in metadata}
    annotations = metadata.get("annotations") or {}
    ours = {key: annotations[key] for key in annotations if key.startswith((PREFIX, CDI))}
    reduced = {key: spec[key] for key in SPEC if key in spec}
    reduced |= {each: [_container(item) for item in spec[each]] for each in CONTAINERS if spec.get(each)}
    if spec.get("volumes"):
        reduced["volumes"] = [{"name": each.get("name", "")} for each in spec["volumes"]]
    nominated = status.get("nominatedNodeName")
    return {
        "metadata": {**kept, **({"annotations": ours} if ours else {})},
        "spec": reduced,
        **({"status": {"nominatedNodeName": nominated}} if nominated else {}),
    }


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a container: of its environment the NVIDIA_* variables, of mounts where they are, whether privileged."""
    kept = {key: container[key] for key in CONTAINER if key in container}
    variables = [each for each in container.get("env") or () if str(each.get("name", "")).startswith("NVIDIA_")]
    if variables:
        kept["env"] = [{**each, **({"valueFrom": {"": {}}} if each.get("valueFrom") else {})} for each in variables]
    if container.get("volumeMounts"):
        kept["volumeMounts"] = [
            {key: each[key] for key in ("name", "mountPath") if key in each} for each in container["volumeMounts"]
        ]
    if (container.get("securityContext") or {}).get("privileged") is True:
        kept["securityContext"] = {"privileged": True}
    return kept
