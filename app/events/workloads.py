# SPDX-License-Identifier: Apache-2.0
"""The workload that a pod belongs to: the last of its controllers that people look at.

Each step up reads one object, with the right `get` on four kinds (deploy/components/events). Where an object cannot be
read, the controller below it counts as the workload.
"""

from collections.abc import Callable, Mapping
from typing import Any

from app.kube.pods import ObjectReference, controller_of

STEPS: Mapping[tuple[str, str], str] = {
    ("", "Pod"): "pods",
    ("apps", "ReplicaSet"): "replicasets",
    ("apps", "StatefulSet"): "statefulsets",
    ("batch", "Job"): "jobs",
    ("jobset.x-k8s.io", "JobSet"): "jobsets",
}
"""Kinds that may have a controller of their own, by API group and kind, with the plural in their path. A Pod is the
controller of the StatefulSet of its workers in a LeaderWorkerSet (kubernetes-sigs/lws)."""
TOPS = frozenset(
    {
        ("apps", "Deployment"),
        ("ray.io", "RayCluster"),
        ("kubeflow.org", "PyTorchJob"),
        ("trainer.kubeflow.org", "TrainJob"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    }
)
"""Kinds that are workloads, whoever made them."""
MOST_STEPS = 4
"""Pod, StatefulSet, leader Pod, StatefulSet, LeaderWorkerSet is the longest chain; a longer one is somebody's loop."""

Read = Callable[[str], Mapping[str, Any] | None]


def workload_of(controller: ObjectReference, read: Read) -> ObjectReference | None:
    """Follow the controllers upward from that of a pod. `read` returns the object at a path, None where it cannot.

    Returns None for a controller of an unknown kind.
    """
    workload: ObjectReference | None = None
    reference: ObjectReference | None = controller
    for _ in range(MOST_STEPS + 1):
        if reference is None:
            break
        kind = (reference.group, reference.kind)
        if kind in TOPS:
            return reference
        if kind not in STEPS:
            break
        workload = reference if reference.kind != "Pod" else workload
        document = read(path_of(reference))
        same = document is not None and (document.get("metadata") or {}).get("uid") == reference.uid
        reference = controller_of(document) if same and document is not None else None
    return workload


def path_of(reference: ObjectReference) -> str:
    """Return the path of an object of a kind in STEPS."""
    root = f"/apis/{reference.api_version}" if reference.group else f"/api/{reference.api_version}"
    return f"{root}/namespaces/{reference.namespace}/{STEPS[reference.group, reference.kind]}/{reference.name}"
