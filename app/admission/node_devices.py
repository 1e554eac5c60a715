# SPDX-License-Identifier: Apache-2.0
"""The node's devices: privileged containers and hostPath volumes reach every GPU without a request.

A volume cannot be removed without its mounts, so that nothing here is repaired: the pod is refused, or the user is
warned. The matchConditions and the fallback policy match paths with the same regular expressions (RE2).
"""

import re
from collections.abc import Iterator

from app.admission.device_guard import DEVICE_FOLDER, guarded_containers
from app.admission.reviewed_pod import PodForm, ReviewedPod
from app.kube.pods import Container
from app.values.json_members import member, objects
from app.values.reasons import Code, Reason, reason

GPU_FILES = f"^(/+[.])*/+(dev(/+[.])*/+nvidia.*|.*{DEVICE_FOLDER}.*)$"
"""hostPath of NVIDIA's device files or of device lists; no pod mounts them for anything but a GPU."""
ALL_FILES = "^(/+[.])*(/+(dev(/+[.])*/*)?)?$"
"""hostPath of / or /dev, which contain the device files beside much that pods mount for other reasons."""
LONGEST_PATH = 4096
"""Characters of a path (Linux PATH_MAX); a longer path cannot be mounted."""


def devices_not_mounted(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse hostPath volumes of GPU device files, whether or not the pod requests a GPU."""
    if review.rules.visible_devices == "Leave":
        return
    for path in _host_paths(review):
        if re.match(GPU_FILES, path):
            by = review.rules.by("visible_devices")
            problem = f"a volume has hostPath {path[:63]}, which reaches GPUs that the pod did not request{by}"
            yield reason(Code.VisibleDevicesForbidden, problem)


def node_not_reached(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse privileged pods without a GPU request, and pods that mount all devices: they see every GPU."""
    if review.rules.privileged != "Deny":
        return
    if not (review.asks_for_gpu or review.passthrough_amounts) or review.context.form is PodForm.Ephemeral:
        for container in guarded_containers(review):
            if is_privileged(review, container):
                by = review.rules.by("privileged")
                problem = f"container {container.name[:63]} has privileged: true, by which it can use every GPU"
                yield reason(Code.NodeDevicesReached, f"{problem} of its node{by}")
    for path in _host_paths(review):
        if re.match(ALL_FILES, path):
            by = review.rules.by("privileged")
            problem = f"a volume has hostPath {path[:63]}, which reaches every GPU of the node{by}"
            yield reason(Code.NodeDevicesReached, problem)


def is_privileged(review: ReviewedPod, container: Container) -> bool:
    """Tell whether a container is privileged."""
    where = f"spec.{container.list_name}[{container.index}]."
    context = member(review.container_object(container), "securityContext", dict, where) or {}
    return context.get("privileged") is True


def _host_paths(review: ReviewedPod) -> Iterator[str]:
    """List the paths of the pod's hostPath volumes."""
    if review.context.form is PodForm.Ephemeral:
        return
    spec = member(review.document, "spec", dict, "") or {}
    for index, volume in objects(spec, "volumes", "spec."):
        host = member(volume, "hostPath", dict, f"spec.volumes[{index}].")
        if host:
            yield (member(host, "path", str, f"spec.volumes[{index}].hostPath.") or "")[:LONGEST_PATH]
