# SPDX-License-Identifier: Apache-2.0
"""Pods that have ended, that a kubelet refused, or that do not start: what happened, why, and what to do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.knowledge.reported_faults import PodFailure
from app.knowledge.tables import Knowledge
from app.kube.gpu_usage import FINISHED
from app.values.json_members import member, objects

REJECTED = "Pod was rejected: "
"""What a kubelet writes before the message of a pod that it refuses (k8s.io/kubernetes pkg/kubelet rejectPod)."""
LONGEST_MESSAGE = 160
"""Characters of a message of a kubelet or a scheduler that are shown. A guess at what is read."""
BACKING_OFF = "CrashLoopBackOff"
NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a terminated container that never ran (containerd internal/cri/server/container_start.go; cri-o)."""
DEFAULT_SCHEDULER = "default-scheduler"
SUCCEEDED, FAILED = "Succeeded", "Failed"
UNKNOWN = PodFailure(reason="", message="", refused=False, chosen=False, why="", causes="", remedy="")
"""Of a reason that no row of pod_failures.yaml explains."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a pod ended: its phase is Succeeded or Failed.

    `refused` is true where the kubelet never started it. `reason` and `message` are the kubelet's own. `why` says what
    they mean, `cause` what probably led there, and `remedy` what to do; each is empty where it is not known.
    """

    phase: str
    node: str
    refused: bool = False
    reason: str = ""
    message: str = ""
    why: str = ""
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class FinishedPod:
    """A pod that has ended. `name` is namespace/name, `scheduler` is its spec.schedulerName.

    `chosen` is true where the node was promised more than it had, and the pod does not say by which component: the node
    may show a better cause.
    """

    name: str
    scheduler: str
    chosen: bool
    ending: Ending

    def because(self, cause: str) -> "FinishedPod":
        """Return the pod with a cause that was found out."""
        return replace(self, chosen=False, ending=replace(self.ending, cause=cause))


def read_finished_pod(document: Mapping[str, Any], knowledge: Knowledge) -> FinishedPod | None:
    """Read a pod that has ended; None for one that has not.

    Raises MalformedPod.
    """
    status = member(document, "status", dict, "") or {}
    phase = member(status, "phase", str, "status.") or ""
    if phase not in FINISHED:
        return None
    spec, metadata = (member(document, key, dict, "") or {} for key in ("spec", "metadata"))
    name = f"{member(metadata, 'namespace', str, 'metadata.') or 'default'}/{metadata.get('name') or ''}"
    scheduler = member(spec, "schedulerName", str, "spec.") or DEFAULT_SCHEDULER
    ending = Ending(phase, member(spec, "nodeName", str, "spec.") or "")
    if phase == SUCCEEDED:
        return FinishedPod(name, scheduler, chosen=False, ending=ending)
    reason, message = _reason_and_message(status)
    failure = failure_of(status, knowledge)
    by_hand = _writer_of_node_name(metadata) if failure.chosen else ""
    return FinishedPod(
        name,
        scheduler,
        chosen=failure.chosen and not by_hand,
        ending=replace(
            ending,
            refused=failure.refused or message.startswith(REJECTED),
            reason=reason,
            message=message.removeprefix(REJECTED),
            why=failure.why,
            cause=f"{by_hand} wrote spec.nodeName, so that no scheduler was asked" if by_hand else failure.causes,
            remedy="; ".join(filter(None, (_what_comes_again(metadata), failure.remedy))),
        ),
    )


def failure_of(status: Mapping[str, Any], knowledge: Knowledge) -> PodFailure:
    """Find the row that explains the status of a Failed pod; UNKNOWN where none does.

    Raises MalformedPod.
    """
    reason, message = _reason_and_message(status)
    return next((row for row in knowledge.pod_failures if row.explains(reason, message)), UNKNOWN)


def _reason_and_message(status: Mapping[str, Any]) -> tuple[str, str]:
    reason, message = (member(status, key, str, "status.") or "" for key in ("reason", "message"))
    return reason, message


def _what_comes_again(metadata: Mapping[str, Any]) -> str:
    """Say whether a controller replaces the pod, since a Failed pod is never started again."""
    owners = [owner for _, owner in objects(metadata, "ownerReferences", "metadata.") if owner.get("controller")]
    replaced = (
        f"its {owners[0].get('kind')} creates another" if owners else "no controller creates another: create it again"
    )
    return f"delete it, since it never starts again and uses nothing on the node; {replaced}"


def _writer_of_node_name(metadata: Mapping[str, Any]) -> str:
    """Name the program that wrote spec.nodeName; empty where a scheduler bound the pod, or where it is not known.

    A program that creates a pod with a node owns that field. The binding of a scheduler leaves it without an owner
    (k8s.io/kubernetes pkg/registry/core/pod/storage, setPodNodeAndMetadata), and `kubectl get` hides managedFields.
    """
    for _, entry in objects(metadata, "managedFields", "metadata."):
        fields = entry.get("fieldsV1")
        spec = fields.get("f:spec") if isinstance(fields, dict) else None
        if isinstance(spec, dict) and "f:nodeName" in spec:
            return str(entry.get("manager") or "somebody")
    return ""


def decisive_part(message: str, decisive: str = "") -> str:
    """Write a message in one line, and cut what stands before its decisive part; without one, the middle.

    A runtime puts the cause at the end, after the names of all the steps that failed with it.
    """
    text = " ".join(message.split())
    if len(text) <= LONGEST_MESSAGE:
        return text
    at = text.find(decisive) if decisive else -1
    if at < 0:
        return f"{text[:50]}…{text[50 + 1 - LONGEST_MESSAGE :]}"
    part = text[at:] if len(text) - at < LONGEST_MESSAGE else f"{text[at : at + LONGEST_MESSAGE - 2]}…"
    return f"…{part}"


def start_reports(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield reason and message of each container that waits; of one that could not be started, those of its last start.

    A kubelet backs off between the starts of a container, and its waiting reason then tells nothing of the cause. A pod
    that is not started again is Failed, and its container terminated.
    """
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state, last = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        past = last if waiting.get("reason") == BACKING_OFF else ended
        said = past if past.get("reason") in NOT_STARTED else waiting
        yield str(said.get("reason") or ""), str(said.get("message") or "")
