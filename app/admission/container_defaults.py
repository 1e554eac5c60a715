# SPDX-License-Identifier: Apache-2.0
"""Provisions: CPU, memory, /dev/shm and driver capabilities for GPU containers that say nothing of them."""

from collections.abc import Iterator
from typing import Any

from app.admission.case import PodChange, ReviewedPod
from app.admission.json_patch import Operation, append, apply, put
from app.kube.pods import Container
from app.values.json_members import member, objects
from app.values.quantity import parse_quantity, times

SHM = "/dev/shm"
SHM_VOLUME = "gpu-usher-shm"
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"


def provide_cpu_and_memory(case: ReviewedPod) -> Iterator[PodChange]:
    """Request CPU and memory for each GPU asked, where the container, or the pod as a whole, requests none."""
    document: Any = case.document
    for resource, per_gpu in (("cpu", case.rules.defaults.cpu_per_gpu), ("memory", case.rules.defaults.memory_per_gpu)):
        if per_gpu is None or _of_pod(case, resource):
            continue
        for container in case.gpu_containers():
            amount = times(per_gpu, case.units(container))
            said = resource in container.requests or resource in container.limits
            if said and (not _overriding(case, f"{resource}_per_gpu") or _equal(container, resource, amount)):
                continue
            operations = tuple(_request(document, container, resource, amount))
            document = apply(document, operations)
            yield PodChange(operations, f"{container.name}: {resource} request set to {amount}")


def _of_pod(case: ReviewedPod, resource: str) -> bool:
    """Tell whether the pod as a whole asks for it (spec.resources, KEP-2837)."""
    whole = member(case.document["spec"], "resources", dict, "spec.") or {}
    sides = (member(whole, side, dict, "spec.resources.") or {} for side in ("requests", "limits"))
    return any(resource in side for side in sides)


def _overriding(case: ReviewedPod, field: str) -> bool:
    return f"defaults.{field}" in case.rules.override


def _equal(container: Container, resource: str, amount: str) -> bool:
    return container.requests.get(resource) == parse_quantity(amount)


def _request(document: Any, container: Container, resource: str, amount: str) -> Iterator[Operation]:
    """Set the request; a limit below it, which the API server would refuse, is raised to it."""
    path = ("spec", container.list_name, str(container.index), "resources")
    first = put(document, (*path, "requests", resource), amount)
    yield first
    limit = container.limits.get(resource)
    if limit is not None and limit < parse_quantity(amount):
        yield put(apply(document, [first]), (*path, "limits", resource), amount)


def provide_shared_memory(case: ReviewedPod) -> Iterator[PodChange]:
    """Mount memory at /dev/shm where GPUs talk through it: NCCL and data loaders need more than the usual 64 MiB."""
    size = case.rules.defaults.shared_memory
    if size is None or sum(units for _, units in case.amounts()) < 2 or case.document["spec"].get("hostIPC"):
        return
    lacking = [each for each in case.gpu_containers() if not _mounts(case, each)]
    if not lacking:
        return
    operations: list[Operation] = []
    document = case.document
    volumes = member(case.document["spec"], "volumes", list, "spec.") or []
    if not any(isinstance(each, dict) and each.get("name") == SHM_VOLUME for each in volumes):
        volume = {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}}
        operations.append(append(document, ("spec", "volumes"), volume))
    for container in lacking:
        path = ("spec", container.list_name, str(container.index), "volumeMounts")
        operations.append(append(document, path, {"name": SHM_VOLUME, "mountPath": SHM}))
    names = ", ".join(each.name for each in lacking)
    yield PodChange(tuple(operations), f"{SHM} of {size} mounted in {names}")


def _mounts(case: ReviewedPod, container: Container) -> bool:
    where = f"spec.{container.list_name}[{container.index}]."
    mounts = objects(case.raw(container), "volumeMounts", where)
    return any(str(each.get("mountPath")).rstrip("/") == SHM for _, each in mounts)


def provide_driver_capabilities(case: ReviewedPod) -> Iterator[PodChange]:
    """Say which driver libraries are mounted, where the container does not."""
    wanted = case.rules.defaults.driver_capabilities
    if wanted is None:
        return
    for container in case.gpu_containers():
        named = any(name == CAPABILITIES for name, _ in container.env)
        if named and (not _overriding(case, "driver_capabilities") or container.variable(CAPABILITIES) == wanted):
            continue
        done = f"{container.name}: {CAPABILITIES} set to {wanted}"
        yield PodChange(tuple(_set_variable(case, container, {"name": CAPABILITIES, "value": wanted})), done)


def _set_variable(case: ReviewedPod, container: Container, variable: dict[str, str]) -> Iterator[Operation]:
    """Set a variable wherever it stands, or append it; of several the last one counts, so all are set."""
    path = ("spec", container.list_name, str(container.index), "env")
    present = case.raw(container).get("env") or ()
    places = [str(index) for index, each in enumerate(present) if each.get("name") == variable["name"]]
    if not places:
        yield append(case.document, path, variable)
    yield from (Operation("replace", (*path, place), variable) for place in places)
