# SPDX-License-Identifier: Apache-2.0
"""The node's own devices: privileged containers and hostPath volumes reach every GPU without asking for one (F12, F14).

A volume cannot be taken away without its mounts, so that nothing here is repaired: it is refused, or told of. The
matchConditions and the fallback read paths by the same regular expressions (RE2).
"""

import re
from collections.abc import Iterator

from app.admission.case import PodForm, ReviewedPod
from app.admission.device_guard import DEVICE_FOLDER, guarded
from app.kube.pods import Container
from app.values.json_members import member, objects
from app.values.reasons import Code, Reason, reason

GPU_FILES = f"^(/+[.])*/+(dev(/+[.])*/+nvidia.*|.*{DEVICE_FOLDER}.*)$"
"""hostPath of NVIDIA's device files, and of lists of devices; nobody mounts them for anything but a GPU."""
ALL_FILES = "^(/+[.])*(/+(dev(/+[.])*/*)?)?$"
"""hostPath of the root or of /dev, which have the device files in them, and much else that people mount them for."""
LONGEST_PATH = 4096
"""Characters of a path (Linux PATH_MAX); no longer one can be mounted."""


def devices_not_mounted(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse volumes of the GPUs' device files, whether the pod asks for a GPU or not (F12)."""
    if case.rules.visible_devices == "Leave":
        return
    for path in _host_paths(case):
        if re.match(GPU_FILES, path):
            yield reason(Code.VisibleDevicesForbidden, f"hostPath {path[:40]}", "no such volume")


def node_not_reached(case: ReviewedPod) -> Iterator[Reason]:
    """Refuse pods without a GPU that are privileged or mount all devices: they see every GPU of the node (F14)."""
    if case.rules.privileged != "Deny":
        return
    if not (case.asks or case.handed_on) or case.form is PodForm.Ephemeral:
        for container in guarded(case):
            if is_privileged(case, container):
                wrong = f"container {container.name[:24]}: privileged, sees every GPU"
                yield reason(Code.NodeDevicesReached, wrong, "privileged: false")
    for path in _host_paths(case):
        if re.match(ALL_FILES, path):
            yield reason(Code.NodeDevicesReached, f"hostPath {path[:40]} has every GPU in it", "no such volume")


def is_privileged(case: ReviewedPod, container: Container) -> bool:
    """Tell whether a container is privileged."""
    where = f"spec.{container.list_name}[{container.index}]."
    context = member(case.raw(container), "securityContext", dict, where) or {}
    return context.get("privileged") is True


def _host_paths(case: ReviewedPod) -> Iterator[str]:
    """List the folders and files of the node that the pod's volumes are."""
    if case.form is PodForm.Ephemeral:
        return
    spec = member(case.document, "spec", dict, "") or {}
    for index, volume in objects(spec, "volumes", "spec."):
        host = member(volume, "hostPath", dict, f"spec.volumes[{index}].")
        if host:
            yield (member(host, "path", str, f"spec.volumes[{index}].hostPath.") or "")[:LONGEST_PATH]
