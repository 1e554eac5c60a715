# SPDX-License-Identifier: Apache-2.0
"""Why a pod that has a node, or devices, does not start, or is being ended.

Its kubelet says so by Events, its containers by waiting reasons, its devices by binding conditions. The
condition DisruptionTarget says what ends it. pod_failures.yaml has what each means and what helps.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.admission.reviewed_pod import ReviewedPod
from app.dra.pod_claims import claims_of_pod
from app.explain.explanation import PENDING
from app.knowledge.reported_faults import PodFailure
from app.kube.finished_pods import LONGEST_MESSAGE, decisive_part, start_reports
from app.kube.pod_object import PodObject, pod_object
from app.world.world import World

KUBELET = "kubelet"
HAS_SANDBOX = frozenset({"Pulling", "Pulled", "Created", "Started"})
"""Events of a kubelet that it writes once volumes, claims and sandbox of the pod are there, so that older Events are of
its past (k8s.io/kubernetes pkg/kubelet/events/event.go)."""
_REQUIRED_CUDA = re.compile(r"unsatisfied condition: cuda ?>= ?(\d{1,2}\.\d{1,2})\b")
"""What NVIDIA's container toolkit says of an image (NVIDIA/libnvidia-container, requirement error)."""
Event = Mapping[str, Any]


def shortened(message: str) -> str:
    """Write a message in one line, and cut it."""
    text = " ".join(message.split())
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 1]}…"


def unhealthy_devices(pod: PodObject) -> tuple[str, ...]:
    """Name the devices of a pod that its kubelet reports as unhealthy, each as `nvidia.com/gpu GPU-…`.

    The kubelet does so from Kubernetes 1.36 on (allocatedResourcesStatus, KEP-4680). A pod keeps such a device until it
    ends: nothing evicts it.
    """
    return tuple(
        f"{resource.name} {device.resource_id}"
        for container in pod.status.container_statuses
        for resource in container.allocated_resources_status or ()
        for device in resource.resources or ()
        if device.health == "Unhealthy"
    )


def start_problems(review: ReviewedPod, events: Sequence[Event] | None, snapshot: World) -> tuple[str, ...]:
    """Say why a pod that has a node, or devices, does not start, with the remedy; empty where it has started.

    The sources are the waiting reasons of its containers, its Events, and the binding conditions of the devices that
    its claims have. `events` is None where they were not read.
    """
    pod = pod_object(review.document)
    node, phase = pod.spec.node_name, pod.status.phase
    if pod.finished:
        return ()
    pending = phase in ("", PENDING)
    current = _current(events or ()) if pending else []  # those of a pod that runs are of its past
    told = [*start_reports(pod), *((str(event.get("reason") or ""), _message(event)) for event in current)]
    first: dict[str, str] = {}
    fails_again = False
    for reason, message in told:
        for row in snapshot.knowledge.pod_starts:
            if row.explains_start(reason, message):
                first.setdefault(row.why, _text(reason, row, message))
                fails_again = fails_again or row.on_node
                break
    again = (f"created again on {node}, it would fail in the same way until that is repaired",) if fails_again else ()
    problems = (*first.values(), *_unmet_conditions(review, snapshot), *again)
    if problems or not node or phase != PENDING:
        return problems
    return (_unexplained(pod, None if events is None else current),)


def required_cuda(pod: PodObject) -> str:
    """Give the CUDA version that a container requires by its start error; empty where none says so."""
    return next((match[1] for _, message in start_reports(pod) if (match := _REQUIRED_CUDA.search(message))), "")


def _current(events: Sequence[Event]) -> list[Event]:
    """List the Events that are not of the past, the newest first."""
    since = max((_observed(event) for event in events if event.get("reason") in HAS_SANDBOX), default="")
    return sorted((event for event in events if _observed(event) >= since), key=_observed, reverse=True)


def _observed(event: Event) -> str:
    """Return the second at which an Event was last observed, in either version of the API."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("deprecatedLastTimestamp"))
    newest = next((str(time) for time in (*times, event.get("eventTime")) if time), "")
    return newest.partition(".")[0].removesuffix("Z")


def _message(event: Event) -> str:
    return str(event.get("message") or event.get("note") or "")


def _text(reason: str, row: PodFailure, message: str) -> str:
    said = f" ({decisive_part(message, row.message)})" if message else ""
    return f"{reason}: {row.why}{said}; {row.remedy}"


def _unexplained(pod: PodObject, events: Sequence[Event] | None) -> str:
    """Write what is known of a pod that is not started for a reason that no row explains."""
    if events is None:
        named = f"{pod.metadata.name} -n {pod.namespace}"
        return f"its Events, which are not read here, may say why: kubectl describe pod {named}"
    node = pod.spec.node_name
    reporters = (
        (event, event.get("reportingComponent") or (event.get("source") or {}).get("component")) for event in events
    )
    warnings = (event for event, reporter in reporters if reporter == KUBELET and event.get("type") == "Warning")
    if (event := next(warnings, None)) is not None:
        return f"{event.get('reason')}: {decisive_part(_message(event))}; read the kubelet's log on {node}"
    return f"the kubelet of {node} has not said why; where that lasts, read its log"


def _unmet_conditions(review: ReviewedPod, snapshot: World) -> Iterator[str]:
    for claim in claims_of_pod(review.pod, review.document, snapshot.devices).allocated:
        for result in claim.allocation.results if claim.allocation else ():
            device = f"device {result.device[2]} of driver {result.device[0]} for claim {claim.key}"
            waits_for, failed = claim.conditions(result)
            if failed:
                yield f"{device} failed: {', '.join(failed)} is true; kube-scheduler tries another device"
            elif waits_for:
                conditions = ", ".join(waits_for)
                yield (
                    f"{device} is not ready: kube-scheduler waits until its driver sets {conditions}, and gives the"
                    " device back after ten minutes; read the log of the driver"
                )


def what_ends_it(pod: PodObject, snapshot: World) -> Iterator[str]:
    """Say why a pod that has a node is being ended: by its condition DisruptionTarget (KEP-3329)."""
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == ("DisruptionTarget", "True"):
            reason, message = condition.reason or "", condition.message or ""
            for row in snapshot.knowledge.pod_evictions:
                if row.explains(reason, message):
                    yield f"it is being ended: {_text(reason, row, message)}"
                    break
            else:
                yield f"it is being ended: {reason}: {shortened(message)}"
