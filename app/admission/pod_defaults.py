# SPDX-License-Identifier: Apache-2.0
"""The mutators that add what a GPU pod leaves open.

A policy gives the scheduler and the priority class of the pod, and CPU, memory, /dev/shm and driver capabilities of its
GPU containers.
"""

from collections.abc import Iterator
from typing import Any

from app.admission.json_patch import Operation, append, apply, put
from app.admission.reviewed_pod import PodChange, ReviewedPod
from app.kube.pods import Container
from app.values.json_members import member, objects
from app.values.quantity import multiply_quantity, parse_quantity

SHM = "/dev/shm"
SHM_VOLUME = "gpu-usher-shm"
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"


def set_scheduler(review: ReviewedPod) -> Iterator[PodChange]:
    """Set the schedulerName of the policy, unless the pod chose a scheduler itself."""
    name, present = review.rules.scheduler_name, review.pod.scheduler_name
    replaceable = present == "default-scheduler" or "scheduler_name" in review.rules.override
    if name is not None and present != name and replaceable:
        yield PodChange((put(review.document, ("spec", "schedulerName"), name),), f"schedulerName set to {name}")


def set_priority_class(review: ReviewedPod) -> Iterator[PodChange]:
    """Set priorityClassName unless the pod names one.

    The priority that the API server's own plugin computed for a pod without a class must go: beside a class it would
    be refused (docs/reference/control-plane.md#after-the-webhook).
    """
    name = review.rules.priority_class_name
    present = member(review.document["spec"], "priorityClassName", str, "spec.")
    if name is None or present == name or (present and "priority_class_name" not in review.rules.override):
        return
    computed = [key for key in ("priority", "preemptionPolicy") if key in review.document["spec"]]
    removed = [Operation("remove", ("spec", key)) for key in computed]
    operations = (*removed, put(review.document, ("spec", "priorityClassName"), name))
    yield PodChange(operations, f"priorityClassName set to {name}")


def provide_cpu_and_memory(review: ReviewedPod) -> Iterator[PodChange]:
    """Request CPU and memory per GPU for each GPU container, unless the container or the pod as a whole does."""
    document: Any = review.document
    for resource, per_gpu in (
        ("cpu", review.rules.defaults.cpu_per_gpu),
        ("memory", review.rules.defaults.memory_per_gpu),
    ):
        if per_gpu is None or _set_on_pod(review, resource):
            continue
        for container in review.gpu_containers():
            amount = multiply_quantity(per_gpu, review.gpus.units_of(container))
            present = resource in container.requests or resource in container.limits
            if present and (
                not _overrides(review, f"{resource}_per_gpu")
                or container.requests.get(resource) == parse_quantity(amount)
            ):
                continue
            operations = tuple(_request(document, container, resource, amount))
            document = apply(document, operations)
            yield PodChange(operations, f"{container.name}: {resource} request set to {amount}")


def _set_on_pod(review: ReviewedPod, resource: str) -> bool:
    """Tell whether the pod requests or limits the resource for all its containers (spec.resources, KEP-2837)."""
    pod_resources = member(review.document["spec"], "resources", dict, "spec.") or {}
    sides = (member(pod_resources, side, dict, "spec.resources.") or {} for side in ("requests", "limits"))
    return any(resource in side for side in sides)


def _overrides(review: ReviewedPod, field: str) -> bool:
    return f"defaults.{field}" in review.rules.override


def _request(document: Any, container: Container, resource: str, amount: str) -> Iterator[Operation]:
    """Set a container's request; a limit below it is raised, since the API server would refuse the pod."""
    path = ("spec", container.list_name, str(container.index), "resources")
    set_request = put(document, (*path, "requests", resource), amount)
    yield set_request
    limit = container.limits.get(resource)
    if limit is not None and limit < parse_quantity(amount):
        yield put(apply(document, [set_request]), (*path, "limits", resource), amount)


def equalize_memory(review: ReviewedPod) -> Iterator[PodChange]:
    """Make the memory request of each container its limit, and the limit its request where it has none.

    A container with neither is left: nothing says how much it needs.
    """
    if review.rules.memory_requests != "UseLimits":
        return
    document: Any = review.document
    for container in review.pod.containers:
        limit, request = container.limits.get("memory"), container.requests.get("memory")
        if limit == request:
            continue
        source, target = ("limits", "requests") if limit is not None else ("requests", "limits")
        path = ("spec", container.list_name, str(container.index), "resources")
        raw = document["spec"][container.list_name][container.index]["resources"][source]["memory"]
        operation = put(document, (*path, target, "memory"), raw)
        document = apply(document, [operation])
        yield PodChange((operation,), f"{container.name}: memory {target} set to {raw} as in {source}")


def provide_shared_memory(review: ReviewedPod) -> Iterator[PodChange]:
    """Mount memory at /dev/shm in pods of two or more GPUs: NCCL and data loaders need more than the usual 64 MiB."""
    size = review.rules.defaults.shared_memory
    if size is None or sum(units for _, units in review.gpus.amounts) < 2 or review.document["spec"].get("hostIPC"):
        return
    containers = [container for container in review.gpu_containers() if not _mounts(review, container)]
    if not containers:
        return
    operations: list[Operation] = []
    document = review.document
    volumes = member(review.document["spec"], "volumes", list, "spec.") or []
    if not any(isinstance(entry, dict) and entry.get("name") == SHM_VOLUME for entry in volumes):
        volume = {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}}
        operations.append(append(document, ("spec", "volumes"), volume))
    for container in containers:
        path = ("spec", container.list_name, str(container.index), "volumeMounts")
        operations.append(append(document, path, {"name": SHM_VOLUME, "mountPath": SHM}))
    names = ", ".join(container.name for container in containers)
    yield PodChange(tuple(operations), f"{SHM} of {size} mounted in {names}")


def _mounts(review: ReviewedPod, container: Container) -> bool:
    where = f"spec.{container.list_name}[{container.index}]."
    mounts = objects(review.container_object(container), "volumeMounts", where)
    return any(str(mount.get("mountPath")).rstrip("/") == SHM for _, mount in mounts)


def provide_driver_capabilities(review: ReviewedPod) -> Iterator[PodChange]:
    """Set NVIDIA_DRIVER_CAPABILITIES, the driver libraries to mount, where the container does not set it."""
    capabilities = review.rules.defaults.driver_capabilities
    if capabilities is None:
        return
    for container in review.gpu_containers():
        present = any(name == CAPABILITIES for name, _ in container.env)
        if present and (
            not _overrides(review, "driver_capabilities") or container.variable(CAPABILITIES) == capabilities
        ):
            continue
        record = f"{container.name}: {CAPABILITIES} set to {capabilities}"
        yield PodChange(tuple(_set_variable(review, container, {"name": CAPABILITIES, "value": capabilities})), record)


def _set_variable(review: ReviewedPod, container: Container, variable: dict[str, str]) -> Iterator[Operation]:
    """Set an environment variable at every entry of its name, since the last of several counts; else append it."""
    path = ("spec", container.list_name, str(container.index), "env")
    present = review.container_object(container).get("env") or ()
    indices = [str(index) for index, entry in enumerate(present) if entry.get("name") == variable["name"]]
    if not indices:
        yield append(review.document, path, variable)
    yield from (Operation("replace", (*path, index), variable) for index in indices)
