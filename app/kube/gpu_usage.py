# SPDX-License-Identifier: Apache-2.0
"""GPU usage: the GPU resources that a bound or nominated pod holds on its node until it finishes."""

from sys import intern

import msgspec

from app.knowledge.tables import Knowledge
from app.kube.gangs import read_workload
from app.kube.pod_object import PodObject, PodSpec
from app.kube.pod_requests import PodRequests, checked_pod_requests
from app.kube.pods import GPU_MEMORY, gpu_amounts, pod_of
from app.values.errors import BadInput
from app.values.quantity import parse_mib


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


def read_gpu_usage(pod: PodObject, knowledge: Knowledge) -> GPUUsage | None:
    """Read the GPUs that a pod holds; None if it is neither bound nor nominated, is finished, or requests no GPU.

    Raises MalformedPod, QuantityError.
    """
    spec, uid = pod.spec, pod.metadata.uid
    node = spec.node_name or pod.status.nominated_node_name
    if not node or pod.finished or not names_gpus(spec, knowledge):
        return None
    units = _sum_whole_units(spec, knowledge)
    if units is None:
        units = gpu_amounts(pod_of(pod), knowledge.families.of)
    if not units:
        return None
    memory, group = declared_memory_mib(pod), read_workload(pod)
    return GPUUsage(uid, intern(node), pod.key, units, memory, group, bool(spec.node_name), spec.priority or 0)


def read_bound_requests(pod: PodObject) -> PodRequests | None:
    """Read the requests of a bound pod for resources of every kind; None if it is not bound, or is finished.

    Raises QuantityError for amounts that the API server refuses.
    """
    node = pod.spec.node_name
    return PodRequests(intern(node), checked_pod_requests(pod.spec)) if node and not pod.finished else None


def declared_memory_mib(pod: PodObject) -> int:
    """Read the GPU memory that a pod declares to use of each unit, in MiB; 0 if it declares none.

    A value that does not parse counts as none: the webhook refuses such a pod, so that it was admitted without us.
    """
    text = (pod.metadata.annotations or {}).get(GPU_MEMORY)
    try:
        return parse_mib(text.removeprefix(">=")) if text else 0
    except BadInput:
        return 0


def _sum_whole_units(spec: PodSpec, knowledge: Knowledge) -> tuple[tuple[str, int], ...] | None:
    """Sum the GPU requests of a pod without init containers whose amounts are plain whole numbers; None for others.

    It takes a tenth of the time of the exact sum (`Pod.amounts`), with which a test compares it.
    """
    if spec.init_containers:
        return None
    total: dict[str, int] = {}
    for container in spec.containers:
        if (resources := container.resources) is None:
            continue
        for name, amount in {**(resources.limits or {}), **(resources.requests or {})}.items():
            if knowledge.families.of(name) is None:
                continue
            if not isinstance(amount, str) or not amount.isdecimal() or len(amount) > 9:
                return None
            total[name] = total.get(name, 0) + int(amount)
    return tuple(sorted((name, units) for name, units in total.items() if units))


def names_gpus(spec: PodSpec, knowledge: Knowledge) -> bool:
    """Tell whether any container names a GPU resource. Most pods of a cluster name none, and are read no further."""
    return any(
        knowledge.families.of(name)
        for container in (*spec.containers, *spec.init_containers)
        if container.resources
        for name in (*(container.resources.limits or ()), *(container.resources.requests or ()))
    )
