# SPDX-License-Identifier: Apache-2.0
"""CPU pods kept off GPU nodes, in namespaces that opt in by a label (component cpu-guard, F47)."""

from collections.abc import Iterator

from app.admission.affinity.mutator import prefer, require
from app.admission.case import PodChange, ReviewedPod
from app.kube.pods import PREFIX
from app.values.json_members import member, objects

CPU_GUARD = PREFIX + "cpu-guard"
"""Namespace label; "preferred" or "required" says how."""
PRESENT = "nvidia.com/gpu.present"
"""GPU Feature Discovery's label of a node with GPUs."""
WEIGHT = 100
NO_GPU = ({"key": PRESENT, "operator": "DoesNotExist"},)


def keep_off_gpu_nodes(case: ReviewedPod) -> Iterator[PodChange]:
    """Ask for nodes without GPUs; a DaemonSet's pod is for its node, one with a node has its place.

    One that claims devices of whatever kind, or has GPUs handed on to it, goes where they are.
    """
    how = case.namespace_labels.get(CPU_GUARD)
    if how not in ("preferred", "required") or case.pod.node_name or _goes_to_devices(case) or _of_daemon_set(case):
        return
    operations = require(case.document, [NO_GPU]) if how == "required" else prefer(case.document, [(WEIGHT, NO_GPU)])
    if operations:
        yield PodChange(operations, f"{how} node affinity added: no GPU node")


def _goes_to_devices(case: ReviewedPod) -> bool:
    named = (name for each in case.pod.containers for name in each.resources())
    return bool(case.pod.claims or case.handed_on) or any(map(case.knowledge.families.implicit_class, named))


def _of_daemon_set(case: ReviewedPod) -> bool:
    metadata = member(case.document, "metadata", dict, "") or {}
    return any(each.get("kind") == "DaemonSet" for _, each in objects(metadata, "ownerReferences", "metadata."))
