# SPDX-License-Identifier: Apache-2.0
"""Redaction of a Pod to the members that some decision reads; the recorder's test shows that they suffice.

The lists name what is kept, not what is left out, so that an unforeseen member is never written to a log.
"""

from collections.abc import Mapping
from typing import Any

from app.admission.device_guard import CDI
from app.knowledge.pod_security import CONTAINERS
from app.kube.pods import PREFIX, VARIABLES

METADATA_KEPT = ("name", "generateName", "namespace", "uid", "labels")
SPEC = (
    "affinity", "hostIPC", "nodeName", "nodeSelector", "overhead", "preemptionPolicy", "priority", "priorityClassName",
    "resourceClaims", "resources", "runtimeClassName", "schedulerName", "tolerations",
)  # fmt: skip
CONTAINER = ("name", "image", "resources", "restartPolicy")


def redact_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Redact a Pod, or a pod template, that was read without an error."""
    metadata, spec, status = (pod.get(key) or {} for key in ("metadata", "spec", "status"))
    kept_metadata = {key: metadata[key] for key in METADATA_KEPT if key in metadata}
    annotations = metadata.get("annotations") or {}
    ours = {key: annotations[key] for key in annotations if key.startswith((PREFIX, CDI))}
    reduced = {key: spec[key] for key in SPEC if key in spec}
    reduced |= {
        list_name: [_container(container) for container in spec[list_name]]
        for list_name in CONTAINERS
        if spec.get(list_name)
    }
    if spec.get("volumes"):
        reduced["volumes"] = [{"name": volume.get("name", "")} for volume in spec["volumes"]]
    nominated = status.get("nominatedNodeName")
    return {
        "metadata": {**kept_metadata, **({"annotations": ours} if ours else {})},
        "spec": reduced,
        **({"status": {"nominatedNodeName": nominated}} if nominated else {}),
    }


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    """Redact a container: keep the VARIABLES that are read, the paths of its mounts, and whether it is privileged."""
    redacted = {key: container[key] for key in CONTAINER if key in container}
    variables = [
        variable for variable in container.get("env") or () if str(variable.get("name", "")).startswith(VARIABLES)
    ]
    if variables:
        redacted["env"] = [
            {**variable, **({"valueFrom": {"": {}}} if variable.get("valueFrom") else {})} for variable in variables
        ]
    if container.get("volumeMounts"):
        redacted["volumeMounts"] = [
            {key: mount[key] for key in ("name", "mountPath") if key in mount} for mount in container["volumeMounts"]
        ]
    if (container.get("securityContext") or {}).get("privileged") is True:
        redacted["securityContext"] = {"privileged": True}
    return redacted
