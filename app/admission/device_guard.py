# SPDX-License-Identifier: Apache-2.0
"""The device guard: GPUs used without a request, by variable, mount, CDI annotation, hostPath or privileged container.

A container runtime with NVIDIA's hook gives a container every GPU that NVIDIA_VISIBLE_DEVICES names, whatever the
scheduler decided, and the pod's own value counts before the device plugin's. Other variables give GPUs, IMEX channels
or control as well (app/knowledge/toolkit_env.yaml). NVIDIA's operands need that; they run in exempt namespaces. The
guard cannot see what `envFrom` and an image's own environment bring, since that is not in the pod.

Privileged containers and hostPath volumes reach every GPU of the node. A volume cannot be removed without its
mounts, so that these are not repaired: the pod is refused, or the user is warned. The matchConditions and the fallback
policy match paths with the same regular expressions.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.admission.json_patch import Operation, append
from app.admission.reviewed_pod import PodChange, PodForm, ReviewedPod
from app.knowledge.container_toolkit import EXPANDED, ToolkitEnv, ToolkitVariable
from app.kube.pods import Container
from app.values.errors import OversizedPod
from app.values.json_members import member
from app.values.reasons import Code, Reason, reason

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
DEVICE_FOLDER = "nvidia-container-devices"
DEVICE_MOUNTS = f"/var/run/{DEVICE_FOLDER}"
"""Mount paths below it are read as a device list (device-list-strategy volume-mounts of the device plugin)."""
MOST_DEVICE_ACCESSES = 512
"""Of one pod; every access is removed by an operation of its own. A guess: eight GPUs in each of 64 containers."""
CDI = "cdi.k8s.io/"
"""Annotations with this prefix name devices for the container runtime (Container Device Interface)."""
HIDDEN = {"name": VISIBLE, "value": "void"}


@dataclass(frozen=True, slots=True)
class DeviceAccess:
    """One way in which a pod takes devices.

    `owner` is the container's name, or "pod". `asks_for_gpu` is true where that container requests a GPU too.
    `path` is the reference token path of the JSON member that takes them, and `setting` the name of that member.
    `hideable` is true where NVIDIA_VISIBLE_DEVICES=void ends the access, so that the member at `path` can stay.
    """

    owner: str
    asks_for_gpu: bool
    path: tuple[str, ...]
    setting: str
    hideable: bool = False

    @property
    def words(self) -> str:
        """Who takes the devices and how, for a refusal."""
        beside = "beside the GPU that it requests" if self.asks_for_gpu else "but requests no GPU"
        if self.path[0] == "metadata":
            return f"the pod has annotation {self.setting} {beside}"
        verb = "mounts" if "volumeMounts" in self.path else "sets"
        hidden = f", without {VISIBLE}: void beside it" if self.hideable else ""
        return f"container {self.owner[:63]} {verb} {self.setting} {beside}{hidden}"


def device_accesses(review: ReviewedPod) -> Iterator[DeviceAccess]:
    """List every way in which the pod takes devices that it was not given; those of one list in its order.

    Raises OversizedPod beyond MOST_DEVICE_ACCESSES.
    """
    for count, access in enumerate(_all_accesses(review)):
        if count == MOST_DEVICE_ACCESSES:
            raise OversizedPod(
                f"devices: taken in more than {MOST_DEVICE_ACCESSES} ways, wants fewer variables and mounts"
            )
        yield access


def _all_accesses(review: ReviewedPod) -> Iterator[DeviceAccess]:
    families = review.context.world.knowledge.families.all
    for key, value in review.pod.annotations.items() if review.context.form is not PodForm.Ephemeral else ():
        if key.startswith(CDI) and any(f"{family.name}.com/" in value for family in families):
            yield DeviceAccess("pod", review.asks_for_gpu, ("metadata", "annotations", key), key[:40])
    spec = review.document.get("spec") or {}  # read_pod has checked that the lists hold objects
    for container in guarded_containers(review):
        raw = spec[container.list_name][container.index]
        where = f"spec.{container.list_name}[{container.index}]."
        yield from _by_variables(review, container, raw.get("env") or ())
        for index, mount in enumerate(raw.get("volumeMounts") or ()):
            path = member(mount, "mountPath", str, f"{where}volumeMounts[{index}].") or ""
            if DEVICE_FOLDER in path and ("/" + posixpath.normpath("/" + path).lstrip("/")).startswith(DEVICE_MOUNTS):
                yield _device_access(review, container, DEVICE_MOUNTS, "volumeMounts", index)


def _by_variables(
    review: ReviewedPod, container: Container, env: Sequence[Mapping[str, Any]]
) -> Iterator[DeviceAccess]:
    """List the variables that give devices which the container was not given; a hideable one only once."""
    table, has_gpu, hideable = review.context.world.knowledge.toolkit_env, asks_for_gpu(review, container), set[str]()
    for index, variable in enumerate(env):
        row = table.get(str(variable.get("name", "")))
        if row is None or not row.is_effective(variable) or (row.beside_gpu and has_gpu):
            continue
        if row.hidden_by and (row.name in hideable or _made_harmless(row, env, table)):
            continue
        hideable.add(row.name)
        yield replace(_device_access(review, container, row.name, "env", index), hideable=bool(row.hidden_by))


def _made_harmless(row: ToolkitVariable, env: Sequence[Mapping[str, Any]], table: ToolkitEnv) -> bool:
    """Tell whether other variables of the container make this one harmless.

    Of a hiding variable that is given twice the last one counts; of the required ones all must have a literal value.
    """
    hiding = [variable for variable in env if variable.get("name") == row.hidden_by]
    required = [variable for variable in env if variable.get("name") == row.required_by]
    hides = bool(hiding) and not table[row.hidden_by].is_effective(hiding[-1])
    values = ["" if one.get("valueFrom") else one.get("value") or "" for one in required]
    return hides or (bool(values) and all(value and EXPANDED not in value for value in values))


def _device_access(review: ReviewedPod, container: Container, setting: str, list_name: str, index: int) -> DeviceAccess:
    return DeviceAccess(
        container.name, asks_for_gpu(review, container), _path(container, list_name, str(index)), setting
    )


def guarded_containers(review: ReviewedPod) -> tuple[Container, ...]:
    """List the containers that the guard looks at: all, or the new ephemeral ones, since others cannot change."""
    if review.context.form is not PodForm.Ephemeral:
        return review.pod.containers
    existing = review.context.existing_ephemeral
    return tuple(container for container in review.pod.ephemeral if container.name not in existing)


def asks_for_gpu(review: ReviewedPod, container: Container) -> bool:
    """Tell whether a container requests a GPU, by its resources or by a claim; an unknown claim counts as one."""
    asked = (container.list_name, container.index) in review.gpus.units
    return (
        asked
        or container.name in review.ruling.claimed.containers
        or bool(container.claims and review.ruling.claimed.unknown)
    )


def guard_devices(review: ReviewedPod) -> Iterator[PodChange]:
    """Remove what takes devices (mode Strip), or set the variable to void where no GPU is requested (mode Void)."""
    mode = review.rules.visible_devices
    if mode not in ("Strip", "Void"):
        return
    for access in reversed(list(device_accesses(review))):  # from the end, so that positions before it stay true
        if access.hideable:
            if mode == "Strip":  # Void hides devices from every container that asks for none
                yield _change(access, Operation("add", (*access.path[:-1], "-"), HIDDEN), f"hidden by {VISIBLE}: void")
        elif mode == "Void" and access.setting == VISIBLE and not access.asks_for_gpu:
            yield _change(access, Operation("replace", access.path, HIDDEN), "set to void")
        else:
            yield _change(access, Operation("remove", access.path), "removed")


def warn_of_runtime_class(review: ReviewedPod) -> Iterator[PodChange]:
    """Warn of the runtime class of a vendor's toolkit in a pod that requests no GPU, where the guard is on.

    The toolkit's runtime reads the image's own variables, which are not in the pod: nothing is refused for them.
    """
    name, classes = review.pod.runtime_class_name or "", review.context.world.fleet.runtime_classes or {}
    handler = classes[name].handler if name in classes else name
    exposed = any(VISIBLE not in dict(container.env) for container in review.pod.containers)
    may_ask = review.asks_for_gpu or review.ruling.claimed.unknown or review.context.form is PodForm.Ephemeral
    guarded = exposed and review.ruling.warned.visible_devices in ("Deny", "Strip")
    if guarded and not may_ask and handler in review.context.world.knowledge.runtimes.handlers.values():
        text = f"runtimeClassName {name} without a GPU: an image that sets {VISIBLE} gets all GPUs of its node"
        yield PodChange((), text, text)


def hide_devices(review: ReviewedPod) -> Iterator[PodChange]:
    """Set NVIDIA_VISIBLE_DEVICES to void where a container requests no GPU, since its image may set it (mode Void)."""
    if review.rules.visible_devices != "Void":
        return
    for container in guarded_containers(review):
        present = any(name == VISIBLE for name, _ in container.env)
        if not present and not asks_for_gpu(review, container):
            operation = append(review.document, _path(container, "env"), HIDDEN)
            yield PodChange((operation,), f"{container.name}: {VISIBLE} set to void")


def _path(container: Container, *rest: str) -> tuple[str, ...]:
    return ("spec", container.list_name, str(container.index), *rest)


def _change(access: DeviceAccess, operation: Operation, action: str) -> PodChange:
    record = f"{access.owner}: {access.setting} {action}"
    return PodChange((operation,), record, f"{record}: ask for the GPU in limits")


GPU_FILES = f"^(/+[.])*/+(dev(/+[.])*/+nvidia.*|.*{DEVICE_FOLDER}.*)$"
"""hostPath of NVIDIA's device files or of device lists; no pod mounts them for anything but a GPU."""
ALL_FILES = "^(/+[.])*(/+(dev(/+[.])*/*)?)?$"
"""hostPath of / or /dev, which contain the device files beside much that pods mount for other reasons."""
LONGEST_PATH = 4096
"""Characters of a path (Linux PATH_MAX); a longer path cannot be mounted."""


def devices_asked_for(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse GPUs that are taken through the environment or a mount instead of being requested."""
    if review.rules.visible_devices != "Deny":
        return
    for access in device_accesses(review):
        yield reason(Code.VisibleDevicesForbidden, access.words + review.rules.by("visible_devices"))


def unprivileged(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse privileged containers in GPU pods, which see every GPU of the node."""
    if review.rules.privileged != "Deny":
        return
    for container in review.pod.containers:
        if is_privileged(review, container):
            problem = f"is privileged, which lets it use every GPU of its node{review.rules.by('privileged')}"
            yield reason(Code.PrivilegedGPUPod, f"container {container.name[:63]} {problem}")


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
    if not (review.asks_for_gpu or review.gpus.passthrough) or review.context.form is PodForm.Ephemeral:
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
    context = review.document["spec"][container.list_name][container.index].get("securityContext") or {}
    return context.get("privileged") is True


def _host_paths(review: ReviewedPod) -> Iterator[str]:
    """List the paths of the pod's hostPath volumes."""
    if review.context.form is PodForm.Ephemeral:
        return
    spec = review.document.get("spec") or {}  # read_pod has checked the types
    for volume in spec.get("volumes") or ():
        if host := volume.get("hostPath"):
            yield (host.get("path") or "")[:LONGEST_PATH]
