# SPDX-License-Identifier: Apache-2.0
"""Pending pods: pods without a node that ask for GPUs or claim devices, each with the few facts that a list shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.gangs import gang_of
from app.kube.gpu_usage import FINISHED, declared_memory_mib, names_gpus
from app.kube.pods import controller_of, gpu_amounts, read_pod
from app.values.json_members import member


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
    document: Mapping[str, Any], knowledge: Knowledge, keep_document: bool = False
) -> PendingPod | None:
    """Read a pod that waits for a node with GPUs or other devices; None for any other pod.

    With `keep_document` the result holds the document.

    Raises MalformedPod, QuantityError.
    """
    spec = member(document, "spec", dict, "") or {}
    status = member(document, "status", dict, "") or {}
    if (
        spec.get("nodeName")
        or status.get("phase") in FINISHED
        or not (spec.get("resourceClaims") or names_gpus(spec, knowledge))
    ):
        return None
    pod = read_pod(document)
    gpu_requests = gpu_amounts(pod, knowledge.families.of)
    metadata = member(document, "metadata", dict, "") or {}
    timestamp = metadata.get("creationTimestamp")
    if not (gpu_requests or pod.claims):
        return None
    created = timestamp if isinstance(timestamp, str) else ""
    claims = tuple((claim, template) for _, claim, template in pod.claims)
    controller = controller_of(document)
    return PendingPod(
        pod.namespace,
        pod.name,
        gpu_requests,
        created,
        claims,
        "" if controller is None else controller.uid,
        document if keep_document else None,
        unseen_by(document),
        gang_of(pod.namespace, document),
        declared_memory_mib(metadata),
    )


def unseen_by(document: Mapping[str, Any]) -> str:
    """Name the scheduler that has not looked at a pod of the cluster yet; empty where one has, or nothing tells.

    kube-scheduler writes the condition PodScheduled of a pod that it has looked at, as Volcano and KAI-Scheduler do,
    and the API server that of one with scheduling gates. A pod without status.qosClass was not stored by an API server.
    kube-scheduler writes nothing of a pod whose ResourceClaims are not all there (dynamicresources.go PreEnqueue), so
    that such a pod tells nothing either.
    """
    spec, status = document.get("spec") or {}, document.get("status") or {}
    conditions = status.get("conditions") or ()
    looked = any(isinstance(one, dict) and one.get("type") == "PodScheduled" for one in conditions)
    if looked or spec.get("nodeName") or status.get("phase") != "Pending" or not status.get("qosClass"):
        return ""
    if len(spec.get("resourceClaims") or ()) > len(status.get("resourceClaimStatuses") or ()):
        return ""
    return str(spec.get("schedulerName") or "default-scheduler")
