# SPDX-License-Identifier: Apache-2.0
"""A pod that has a node already, or that has ended: what it holds is released, so that it is judged as a new pod."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.admission.reviewed_pod import ReviewedPod
from app.dra.pod_claims import claims_of_pod
from app.explain.placed_by import shortened
from app.explain.survey import ClusterSnapshot
from app.knowledge.reported_faults import PodFailure
from app.kube.finished_pods import Ending, read_finished_pod
from app.kube.gpu_usage import FINISHED, read_bound_requests, read_gpu_usage
from app.kube.pod_requests import PODS, PodRequests
from app.nodes.mig_state import explained_by_node


def node_of_bound_pod(document: Mapping[str, Any]) -> str | None:
    """Name the node that a pod runs on; None where it has none, or is finished."""
    requests = read_bound_requests(document)
    return requests.node if requests else None


def unhealthy_devices(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the devices of a pod that its kubelet reports as unhealthy, each as `nvidia.com/gpu GPU-…`.

    The kubelet does so from Kubernetes 1.36 on (allocatedResourcesStatus, KEP-4680). A pod keeps such a device until it
    ends: nothing evicts it.
    """
    return tuple(
        f"{resource.get('name')} {device.get('resourceID')}"
        for container in (document.get("status") or {}).get("containerStatuses") or ()
        for resource in container.get("allocatedResourcesStatus") or ()
        for device in resource.get("resources") or ()
        if device.get("health") == "Unhealthy"
    )


def start_problems(
    review: ReviewedPod, events: Iterable[Mapping[str, Any]], snapshot: ClusterSnapshot
) -> tuple[str, ...]:
    """Say why a pod that has a node, or devices, does not start, with the remedy; empty where nothing shows why.

    The sources are the waiting reasons of its containers, by Events of the kubelet and the runtime, and by the binding
    conditions of the devices that its claims have.
    """
    status = review.document.get("status") or {}
    if status.get("phase") in FINISHED:
        return ()
    events = events if status.get("phase") in (None, "Pending") else ()  # those of a pod that runs are of its past
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    waiting = [(container.get("state") or {}).get("waiting") or {} for container in containers]
    said = [(str(one.get("reason") or ""), str(one.get("message") or "")) for one in (*waiting, *events)]
    rows = snapshot.context.knowledge.pod_starts
    first: dict[str, PodFailure] = {}
    for reason, message in said:
        for row in rows:
            if row.explains(reason, message) or (not row.reason and row.message in message):
                first.setdefault(message, row)
    texts = [f"{row.why} ({shortened(message)}); {row.remedy}" for message, row in first.items()]
    return (*dict.fromkeys(texts), *_unmet_conditions(review, snapshot))


def _unmet_conditions(review: ReviewedPod, snapshot: ClusterSnapshot) -> Iterator[str]:
    for claim in claims_of_pod(review.pod, review.document, snapshot.devices).allocated:
        for result in claim.allocation.results if claim.allocation else ():
            device = f"device {result.device[2]} of driver {result.device[0]} for claim {claim.key}"
            if result.failed:
                yield f"{device} failed: {', '.join(result.failed)} is true; kube-scheduler tries another device"
            elif result.waits_for:
                conditions = ", ".join(result.waits_for)
                yield (
                    f"{device} is not ready: kube-scheduler waits until its driver sets {conditions}, and gives the"
                    " device back after ten minutes; read the log of the driver"
                )


def as_unbound(document: Mapping[str, Any], snapshot: ClusterSnapshot) -> tuple[Mapping[str, Any], ClusterSnapshot]:
    """Return a pod without spec.nodeName, and the snapshot without the resources that it holds on its node.

    A pod that has ended holds none.
    """
    requests = read_bound_requests(document)
    spec = {key: value for key, value in (document.get("spec") or {}).items() if key != "nodeName"}
    unbound = {**document, "spec": spec}
    return unbound, snapshot if requests is None else _with_released(document, requests, snapshot)


def ending_of(document: Mapping[str, Any], snapshot: ClusterSnapshot) -> Ending | None:
    """Say how a pod ended; None for one that has not.

    Raises MalformedPod.
    """
    pod = read_finished_pod(document, snapshot.context.knowledge)
    return explained_by_node(pod, snapshot.nodes.get(pod.ending.node)).ending if pod is not None else None


def _with_released(document: Mapping[str, Any], requests: PodRequests, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    node, used = snapshot.nodes.get(requests.node), {**snapshot.used.get(requests.node, {})}
    for resource, amount in (*requests.amounts, (PODS, 1)):
        used[resource] = max(0, used.get(resource, 0) - amount)
    existing_pods = snapshot.existing_pods and tuple(
        existing for existing in snapshot.existing_pods if existing.name != _name(document)
    )
    released = replace(snapshot, used={**snapshot.used, requests.node: used}, existing_pods=existing_pods)
    usage = read_gpu_usage(document, snapshot.context.knowledge)
    if node is None or usage is None:
        return released
    freed_node = replace(node, free=node.free.with_units(usage.units, usage.memory_mib))
    return replace(released, nodes={**snapshot.nodes, node.name: freed_node})


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata") or {}
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}"
