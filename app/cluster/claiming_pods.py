# SPDX-License-Identifier: Apache-2.0
"""The nodes on which pods with claims run, by workload. A part of State.

Pods that request GPUs by resource are counted with what they hold (gpu_allocations.py); those that only claim devices
hold nothing that is counted there, and yet pods of their workload prefer their NVLink domain.
"""

from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any

from app.kube.gpu_usage import FINISHED
from app.kube.pods import workload_group
from app.values.json_members import member, strings

Place = tuple[str, str]
"""The key of a workload (kube/pods.py workload_group), and a node."""


def read_place(document: Mapping[str, Any]) -> Place | None:
    """Read the workload and the node of a running pod with claims; None for any other pod.

    Raises MalformedPod.
    """
    spec, status = (member(document, key, dict, "") or {} for key in ("spec", "status"))
    node = member(spec, "nodeName", str, "spec.")
    if not (node and spec.get("resourceClaims")) or member(status, "phase", str, "status.") in FINISHED:
        return None
    metadata = member(document, "metadata", dict, "") or {}
    namespace = member(metadata, "namespace", str, "metadata.") or "default"
    group = workload_group(namespace, strings(metadata, "labels", "metadata."))
    return (intern(group), intern(node)) if group else None


class ClaimingPods:
    """The workload and the node of each pod with claims, by UID."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._by_group: dict[str, dict[str, str]] = {}

    def put(self, uid: str, place: Place | None) -> None:
        """Add or change a pod; None removes it."""
        before = self._places.pop(uid, None)
        if before is not None:
            pods = self._by_group[before[0]]
            del pods[uid]
            if not pods:
                del self._by_group[before[0]]
        if place is not None:
            self._places[uid] = place
            self._by_group.setdefault(place[0], {})[uid] = place[1]

    def nodes_of(self, group: str, but: str = "") -> Iterable[str]:
        """Return the nodes of the pods of a workload, except the pod with the UID `but`; repeats are possible."""
        return [node for uid, node in self._by_group.get(group, {}).items() if uid != but]
