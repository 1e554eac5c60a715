# SPDX-License-Identifier: Apache-2.0
"""Pending pods: GPU pods without a node, each with the few facts that a list of them shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.gpu_usage import FINISHED, names_gpus
from app.kube.pods import gpu_amounts, read_pod
from app.values.json_members import member


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod that is not bound and requests GPUs.

    `gpu_requests` are pairs of GPU resource and amount. `created` is the creation timestamp as the API server writes
    it, empty if unknown. `document` is the whole pod where no API server can be asked for it, as in a snapshot or the
    demo; otherwise it is None.
    """

    namespace: str
    name: str
    gpu_requests: tuple[tuple[str, int], ...]
    created: str = ""
    document: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """The key of the pod, namespace/name."""
        return f"{self.namespace}/{self.name}"


def read_pending_pod(
    document: Mapping[str, Any], knowledge: Knowledge, keep_document: bool = False
) -> PendingPod | None:
    """Read a GPU pod that waits for a node; None for any other pod. With `keep_document` the result holds the document.

    Raises MalformedPod, QuantityError.
    """
    spec = member(document, "spec", dict, "") or {}
    status = member(document, "status", dict, "") or {}
    if spec.get("nodeName") or status.get("phase") in FINISHED or not names_gpus(spec, knowledge):
        return None
    pod = read_pod(document)
    gpu_requests = gpu_amounts(pod, knowledge.families.of)
    metadata = member(document, "metadata", dict, "") or {}
    timestamp = metadata.get("creationTimestamp")
    if not gpu_requests:
        return None
    created = timestamp if isinstance(timestamp, str) else ""
    return PendingPod(pod.namespace, pod.name, gpu_requests, created, document if keep_document else None)
