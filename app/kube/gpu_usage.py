# SPDX-License-Identifier: Apache-2.0
"""Holdings: what a bound, unfinished pod holds of a node's GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.pod_requests import PodRequests, check_requests, requests_of
from app.kube.pods import GPU_MEMORY, gpu_amounts, group_of, read_pod
from app.values.errors import BadInput
from app.values.json_members import member, objects, strings
from app.values.quantity import parse_mib

FINISHED = {"Succeeded", "Failed"}
"""Pod phases that hold no device any more; a terminating pod still does."""


@dataclass(frozen=True, slots=True)
class GPUUsage:
    """What an unfinished pod holds: (GPU resource, units) on a node.

    `bound`: False where preemption has nominated the node: the pod is to have the memory there, and the units
    kube-scheduler keeps for it. `memory_mib`: what it declares to use of each unit, 0 where it says nothing.
    `group`: the pods that it works with. `priority`: who goes first where somebody must.
    """

    uid: str
    node: str
    name: str
    units: tuple[tuple[str, int], ...]
    memory_mib: int = 0
    group: str = ""
    bound: bool = True
    priority: int = 0


def read_holding(document: Mapping[str, Any], knowledge: Knowledge) -> GPUUsage | None:
    """Read what a pod holds of GPUs; None if it is neither bound nor nominated, is finished, or asks for none.

    Raises MalformedPod, QuantityError.
    """
    status = member(document, "status", dict, "") or {}
    spec = member(document, "spec", dict, "") or {}
    bound = member(spec, "nodeName", str, "spec.")
    node = bound or member(status, "nominatedNodeName", str, "status.")
    if not node or member(status, "phase", str, "status.") in FINISHED or not names_gpus(spec, knowledge):
        return None
    units = _plain_units(spec, knowledge)
    if units is None:
        units = gpu_amounts(read_pod(document), knowledge.families.of)
    if not units:
        return None
    metadata = member(document, "metadata", dict, "") or {}
    name, namespace = (member(metadata, key, str, "metadata.") or "" for key in ("name", "namespace"))
    namespace = namespace or "default"
    uid = member(metadata, "uid", str, "metadata.") or ""
    group = group_of(namespace, strings(metadata, "labels", "metadata."))
    priority = member(spec, "priority", int, "spec.") or 0
    return GPUUsage(uid, node, f"{namespace}/{name}", units, _declared(metadata), group, bool(bound), priority)


def read_booking(document: Mapping[str, Any]) -> PodRequests | None:
    """Read what a pod has booked of a node's resources of every kind; None if it is not bound, or is finished.

    Raises QuantityError for amounts that the API server refuses.
    """
    spec = document.get("spec") or {}
    node = spec.get("nodeName") if isinstance(spec, dict) else None
    status = document.get("status") or {}
    if not isinstance(node, str) or not node or (isinstance(status, dict) and status.get("phase") in FINISHED):
        return None
    check_requests(spec)
    return PodRequests(node, requests_of(spec))


def _declared(metadata: Mapping[str, Any]) -> int:
    """Read what a pod declares; what does not parse, the webhook would have refused, and counts as nothing."""
    text = strings(metadata, "annotations", "metadata.").get(GPU_MEMORY)
    try:
        return parse_mib(text.removeprefix(">=")) if text else 0
    except BadInput:
        return 0


def _plain_units(spec: Mapping[str, Any], knowledge: Knowledge) -> tuple[tuple[str, int], ...] | None:
    """Sum what containers ask, where that is whole numbers and nothing starts before them; None where it is not so.

    A tenth of the time of the exact arithmetic, which the test compares it with.
    """
    if spec.get("initContainers"):
        return None
    found: dict[str, int] = {}
    for container in spec.get("containers") or ():
        try:
            resources = container.get("resources") or {}
            amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        except (AttributeError, TypeError):  # of another shape: the exact reading says where
            return None
        for name, amount in amounts.items():
            if knowledge.families.of(name) is None:
                continue
            if not isinstance(amount, str) or not amount.isdecimal() or len(amount) > 9:
                return None
            found[name] = found.get(name, 0) + int(amount)
    return tuple(sorted((name, units) for name, units in found.items() if units))


def names_gpus(spec: Mapping[str, Any], knowledge: Knowledge) -> bool:
    """Tell whether any container names a GPU resource: most pods of a cluster do not, and are read no further."""
    for list_name in ("containers", "initContainers"):
        for index, container in objects(spec, list_name, "spec."):
            where = f"spec.{list_name}[{index}]."
            resources = member(container, "resources", dict, where) or {}
            for kind in ("limits", "requests"):
                if any(map(knowledge.families.of, member(resources, kind, dict, f"{where}resources.") or ())):
                    return True
    return False
