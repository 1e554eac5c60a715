# SPDX-License-Identifier: Apache-2.0
"""CPU pods are kept off GPU nodes, in namespaces that opt in by a label (component cpu-guard)."""

from collections.abc import Iterator

from app.admission.affinity.mutator import prefer_terms, require_terms
from app.admission.reviewed_pod import PodChange, ReviewedPod
from app.kube.pods import PREFIX
from app.nodes.label_keys import PRESENT
from app.values.json_members import member, objects

CPU_GUARD = PREFIX + "cpu-guard"
"""Namespace label; its value, "preferred" or "required", is the strength of the node affinity."""
WEIGHT = 100
"""Weight of the preferred term; 100 is the highest that Kubernetes allows."""
NO_GPU = ({"key": PRESENT, "operator": "DoesNotExist"},)


def keep_off_gpu_nodes(review: ReviewedPod) -> Iterator[PodChange]:
    """Add node affinity for nodes without GPUs.

    The pod of a DaemonSet or a pod with spec.nodeName is left alone: its node is chosen already. So is a pod that
    claims devices of any kind, or that gets GPUs by passthrough, since it must run where those devices are.
    """
    strength = review.namespace_labels.get(CPU_GUARD)
    if (
        strength not in ("preferred", "required")
        or review.pod.node_name
        or _needs_devices(review)
        or _belongs_to_daemon_set(review)
    ):
        return
    operations = (
        require_terms(review.document, [NO_GPU])
        if strength == "required"
        else prefer_terms(review.document, [(WEIGHT, NO_GPU)])
    )
    if operations:
        yield PodChange(operations, f"{strength} node affinity added: no GPU node")


def _needs_devices(review: ReviewedPod) -> bool:
    resources = (resource for container in review.pod.containers for resource in container.resources())
    return bool(review.pod.claims or review.passthrough_amounts) or any(
        map(review.context.knowledge.families.implicit_class, resources)
    )


def _belongs_to_daemon_set(review: ReviewedPod) -> bool:
    metadata = member(review.document, "metadata", dict, "") or {}
    return any(owner.get("kind") == "DaemonSet" for _, owner in objects(metadata, "ownerReferences", "metadata."))
