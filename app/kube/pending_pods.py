# SPDX-License-Identifier: Apache-2.0
"""Pending pods: pods without a node that ask for GPUs or claim devices, each with the few facts that a list shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.gangs import gang_of
from app.kube.gpu_usage import declared_memory_mib, names_gpus
from app.kube.pod_object import PodObject
from app.kube.pods import controller_in, gpu_amounts, pod_of


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod that is not bound and requests GPUs, or claims devices by DRA.

    `gpu_requests` are pairs of GPU resource and amount. `claims` are the names of the claims and of the templates that
    it names, each as (claim, template), of which one is empty. `created` is the creation timestamp as the API server
    writes it, empty if unknown. `controller_uid` is the UID of its controller, empty without one. `document` is the
    whole pod where no API server can be asked for it, as in a snapshot or the demo; otherwise it is None. `unseen_by`
    is as the function returns it. `gang` is the key of its gang (gangs.py), and `memory_mib` the GPU memory that it
    declares to use of each unit, 0 if it declares none.
    """

    namespace: str
    name: str
    gpu_requests: tuple[tuple[str, int], ...]
    created: str = ""
    claims: tuple[tuple[str, str], ...] = ()
    controller_uid: str = ""
    document: Mapping[str, Any] | None = field(default=None, compare=False)
    unseen_by: str = field(default="", compare=False)
    gang: str = ""
    memory_mib: int = 0

    @property
    def key(self) -> str:
        """The key of the pod, namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def asks(self) -> str:
        """What the pod asks for, as a list shows it."""
        amounts = (f"{amount} × {resource}" for resource, amount in self.gpu_requests)
        claims = (f"claim {claim}" if claim else f"claim of template {template}" for claim, template in self.claims)
        return ", ".join((*amounts, *claims))


def read_pending_pod(
    pod: PodObject, knowledge: Knowledge, document: Mapping[str, Any] | None = None
) -> PendingPod | None:
    """Read a pod that waits for a node with GPUs or other devices; None for any other pod.

    `document` is the whole pod where the result is to hold it.

    Raises MalformedPod, QuantityError.
    """
    spec = pod.spec
    if spec.node_name or pod.finished or not (spec.resource_claims or names_gpus(spec, knowledge)):
        return None
    read = pod_of(pod)
    gpu_requests = gpu_amounts(read, knowledge.families.of)
    if not (gpu_requests or read.claims):
        return None
    controller = controller_in(pod.metadata)
    return PendingPod(
        read.namespace,
        read.name,
        gpu_requests,
        pod.metadata.creation_timestamp or "",
        tuple((claim, template) for _, claim, template in read.claims),
        "" if controller is None else controller.uid,
        document,
        unseen_by(pod),
        gang_of(pod),
        declared_memory_mib(pod),
    )


def unseen_by(pod: PodObject) -> str:
    """Name the scheduler that has not looked at a pod of the cluster yet; empty where one has, or nothing tells.

    kube-scheduler writes the condition PodScheduled of a pod that it has looked at, as Volcano and KAI-Scheduler do,
    and the API server that of one with scheduling gates. A pod without status.qosClass was not stored by an API server.
    kube-scheduler writes nothing of a pod whose ResourceClaims are not all there (dynamicresources.go PreEnqueue), so
    that such a pod tells nothing either.
    """
    spec, status = pod.spec, pod.status
    looked = any(condition.type == "PodScheduled" for condition in status.conditions)
    if looked or spec.node_name or status.phase != "Pending" or not status.qos_class:
        return ""
    return "" if len(spec.resource_claims) > len(status.resource_claim_statuses) else pod.scheduler
