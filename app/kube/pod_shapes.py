# SPDX-License-Identifier: Apache-2.0
"""Pod shapes: what of a GPU pod decides its demand class, so that the pods of a cluster can be counted by it."""

from typing import NamedTuple

from app.kube.gpu_usage import GPUUsage
from app.kube.pending_pods import PendingPod
from app.kube.pod_object import PodObject
from app.kube.pod_requests import CORE_MILLI, CPU, Amounts, PodRequests, sum_pod_requests
from app.kube.pods import PRODUCTS, WORKLOAD_CLASS

LONGEST_TEXT = 1024
"""Characters of an annotation that counts, to bound what is kept; the 32 products that are read at most
(policy/annotations.py) have some 600."""


class PodShape(NamedTuple):
    """The shape of a GPU pod.

    `units` are pairs of GPU resource and amount, and `cpu_milli` is the requested CPU in milli-CPU, rounded up to whole
    cores. `products` and `workload_class` are the texts of the annotations, empty without them.
    """

    namespace: str
    units: Amounts
    cpu_milli: int
    products: str
    workload_class: str


def read_pod_shape(
    pod: PodObject, usage: GPUUsage | None, requests: PodRequests | None, pending: PendingPod | None
) -> PodShape | None:
    """Read the shape of a GPU pod that holds GPUs or waits for them; None for any other pod.

    The other arguments are what was read of the same pod, and is not read again.
    """
    units = usage.units if usage is not None else pending.gpu_requests if pending is not None else None
    if units is None:
        return None
    annotations = pod.metadata.annotations or {}
    amounts = requests.amounts if requests is not None else sum_pod_requests(pod.spec)
    return PodShape(
        pod.namespace,
        units,
        _whole_cores(amounts),
        annotations.get(PRODUCTS, "")[:LONGEST_TEXT],
        annotations.get(WORKLOAD_CLASS, "")[:LONGEST_TEXT],
    )


def _whole_cores(amounts: Amounts) -> int:
    """Return the CPU among a pod's requests in milli-CPU, rounded up to whole cores."""
    for resource, amount in amounts:
        if resource == CPU:
            return -(-amount // CORE_MILLI) * CORE_MILLI
    return 0
