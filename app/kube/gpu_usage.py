# SPDX-License-Identifier: Apache-2.0
"""GPU usage: the GPU resources that a bound or nominated pod holds on its node until it finishes."""

from collections.abc import Mapping
from sys import intern
from typing import Any

import msgspec

from app.knowledge.tables import Knowledge
from app.kube.gangs import read_workload
from app.kube.pod_requests import PodRequests, checked_pod_requests
from app.kube.pods import GPU_MEMORY, gpu_amounts, read_pod
from app.values.errors import BadInput
from app.values.json_members import member, objects, strings
from app.values.quantity import parse_mib

FINISHED = ("Succeeded", "Failed")
"""Phases of pods that no longer hold devices; a terminating pod still holds its devices."""


class GPUUsage(msgspec.Struct, frozen=True, gc=False):
    """The GPU resources that an unfinished pod holds on a node; the garbage collector does not visit it (PodRequests).

    `name` is namespace/name of the pod, and `units` are pairs of GPU resource and amount. `memory_mib` is the GPU
    memory that the pod declares to use of each unit, 0 if it declares none. `group` is the key of the workload to which
    the pod belongs (`workload_of`). `bound` is False where preemption has only nominated the node: kube-scheduler
    reserves the units for the pod, and we reserve the declared memory. `priority` is the pod's priority: preemption
    evicts pods of lower priority first. `claims` are the DeviceClasses whose devices a pod that is promised to the node
    will claim, `claimed` of them at most; what pods have claimed is read of their claims.
    """

    uid: str
    node: str
    name: str
    units: tuple[tuple[str, int], ...]
    memory_mib: int = 0
    group: str = ""
    bound: bool = True
    priority: int = 0
    claims: tuple[str, ...] = ()
    claimed: int = 0

    @property
    def all_units(self) -> int:
        """The units that it holds or will claim."""
        return sum(units for _, units in self.units) + self.claimed


def read_gpu_usage(document: Mapping[str, Any], knowledge: Knowledge) -> GPUUsage | None:
    """Read the GPUs that a pod holds; None if it is neither bound nor nominated, is finished, or requests no GPU.

    Raises MalformedPod, QuantityError.
    """
    status = member(document, "status", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    bound = member(spec, "nodeName", str, "spec.")
    node = bound or member(status, "nominatedNodeName", str, "status.")
    if not node or member(status, "phase", str, "status.") in FINISHED or not names_gpus(spec, knowledge):
        return None
    units = _sum_whole_units(spec, knowledge)
    if units is None:
        units = gpu_amounts(read_pod(document), knowledge.families.of)
    if not units:
        return None
    metadata = member(document, "metadata", dict, "") or {}
    name, namespace = (member(metadata, key, str, "metadata.") or "" for key in ("name", "namespace"))
    namespace = namespace or "default"
    uid = member(metadata, "uid", str, "metadata.") or ""
    group = read_workload(namespace, document)
    priority = member(spec, "priority", int, "spec.") or 0
    return GPUUsage(
        uid, intern(node), f"{namespace}/{name}", units, declared_memory_mib(metadata), group, bool(bound), priority
    )


def read_bound_requests(document: Mapping[str, Any]) -> PodRequests | None:
    """Read the requests of a bound pod for resources of every kind; None if it is not bound, or is finished.

    Raises QuantityError for amounts that the API server refuses.
    """
    spec = document.get("spec") or {}
    node = spec.get("nodeName") if isinstance(spec, dict) else None
    status = document.get("status") or {}
    if not isinstance(node, str) or not node or (isinstance(status, dict) and status.get("phase") in FINISHED):
        return None
    return PodRequests(intern(node), checked_pod_requests(spec))


def declared_memory_mib(metadata: Mapping[str, Any]) -> int:
    """Read the GPU memory that a pod declares to use of each unit, in MiB; 0 if it declares none.

    A value that does not parse counts as none: the webhook refuses such a pod, so that it was admitted without us.
    """
    text = strings(metadata, "annotations", "metadata.").get(GPU_MEMORY)
    try:
        return parse_mib(text.removeprefix(">=")) if text else 0
    except BadInput:
        return 0


def _sum_whole_units(spec: Mapping[str, Any], knowledge: Knowledge) -> tuple[tuple[str, int], ...] | None:
    """Sum the GPU requests of a pod without init containers whose amounts are plain whole numbers; None for others.

    It takes a tenth of the time of the exact sum (`Pod.amounts`), with which a test compares it.
    """
    if spec.get("initContainers"):
        return None
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        try:
            resources = container.get("resources") or {}
            amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        except (AttributeError, TypeError):  # the exact reading raises MalformedPod with the path
            return None
        for name, amount in amounts.items():
            if knowledge.families.of(name) is None:
                continue
            if not isinstance(amount, str) or not amount.isdecimal() or len(amount) > 9:
                return None
            total[name] = total.get(name, 0) + int(amount)
    return tuple(sorted((name, units) for name, units in total.items() if units))


def names_gpus(spec: Mapping[str, Any], knowledge: Knowledge) -> bool:
    """Tell whether any container names a GPU resource. Most pods of a cluster name none, and are read no further."""
    for list_name in ("containers", "initContainers"):
        for index, container in objects(spec, list_name, "spec."):
            where = f"spec.{list_name}[{index}]."
            resources = member(container, "resources", dict, where) or {}
            for kind in ("limits", "requests"):
                if any(map(knowledge.families.of, member(resources, kind, dict, f"{where}resources.") or ())):
                    return True
    return False
