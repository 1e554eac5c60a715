# SPDX-License-Identifier: Apache-2.0
"""Waiting pods: GPU pods that no node was found for yet, as little of each as a list of them shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.gpu_usage import FINISHED, names_gpus
from app.kube.pods import gpu_amounts, read_pod
from app.values.json_members import member


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod that is not bound and asks for GPUs. `created`: as the API server writes it; empty where unknown.

    `document`: the whole pod, where no API server can be asked for it (a snapshot, the demo); else None.
    """

    namespace: str
    name: str
    asks: tuple[tuple[str, int], ...]
    created: str = ""
    document: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """Write namespace/name."""
        return f"{self.namespace}/{self.name}"


def read_waiting(document: Mapping[str, Any], knowledge: Knowledge, keep: bool = False) -> PendingPod | None:
    """Read a pod that waits for a node; None for any other. `keep`: the whole document too.

    Raises MalformedPod, QuantityError.
    """
    spec = member(document, "spec", dict, "") or {}
    status = member(document, "status", dict, "") or {}
    if spec.get("nodeName") or status.get("phase") in FINISHED or not names_gpus(spec, knowledge):
        return None
    pod = read_pod(document)
    asks = gpu_amounts(pod, knowledge.families.of)
    metadata = member(document, "metadata", dict, "") or {}
    created = metadata.get("creationTimestamp")
    if not asks:
        return None
    seen = created if isinstance(created, str) else ""
    return PendingPod(pod.namespace, pod.name, asks, seen, document if keep else None)
