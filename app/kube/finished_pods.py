# SPDX-License-Identifier: Apache-2.0
"""Pods that have ended, that a kubelet refused, or that do not start: what happened, why, and what to do."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.knowledge.reported_faults import PodFailure
from app.knowledge.tables import Knowledge
from app.kube.pod_object import ContainerState, PodMetadata, PodObject
from app.values.json_members import object_if_any

REJECTED = "Pod was rejected: "
"""What a kubelet writes before the message of a pod that it refuses (k8s.io/kubernetes pkg/kubelet rejectPod)."""
LONGEST_MESSAGE = 160
"""Characters of a message of a kubelet or a scheduler that are shown. A guess at what is read."""
BACKING_OFF = "CrashLoopBackOff"
NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a terminated container that never ran (containerd internal/cri/server/container_start.go; cri-o)."""
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


def read_finished_pod(pod: PodObject, knowledge: Knowledge) -> FinishedPod | None:
    """Read a pod that has ended; None for one that has not."""
    if not pod.finished:
        return None
    status, ending = pod.status, Ending(pod.status.phase, pod.spec.node_name)
    if status.phase == SUCCEEDED:
        return FinishedPod(pod.key, pod.scheduler, chosen=False, ending=ending)
    failure = failure_of(pod, knowledge)
    by_hand = _writer_of_node_name(pod.metadata) if failure.chosen else ""
    return FinishedPod(
        pod.key,
        pod.scheduler,
        chosen=failure.chosen and not by_hand,
        ending=replace(
            ending,
            refused=failure.refused or status.message.startswith(REJECTED),
            reason=status.reason,
            message=status.message.removeprefix(REJECTED),
            why=failure.why,
            cause=f"{by_hand} wrote spec.nodeName, so that no scheduler was asked" if by_hand else failure.causes,
            remedy="; ".join(filter(None, (_what_comes_again(pod.metadata), failure.remedy))),
        ),
    )


def failure_of(pod: PodObject, knowledge: Knowledge) -> PodFailure:
    """Find the row that explains the status of a Failed pod; UNKNOWN where none does."""
    status = pod.status
    return next((row for row in knowledge.pod_failures if row.explains(status.reason, status.message)), UNKNOWN)


def _what_comes_again(metadata: PodMetadata) -> str:
    """Say whether a controller replaces the pod, since a Failed pod is never started again."""
    owner = metadata.controller
    replaced = f"its {owner.kind} creates another" if owner else "no controller creates another: create it again"
    return f"delete it, since it never starts again and uses nothing on the node; {replaced}"


def _writer_of_node_name(metadata: PodMetadata) -> str:
    """Name the program that wrote spec.nodeName; empty where a scheduler bound the pod, or where it is not known.

    A program that creates a pod with a node owns that field. The binding of a scheduler leaves it without an owner
    (k8s.io/kubernetes pkg/registry/core/pod/storage, setPodNodeAndMetadata), and `kubectl get` hides managedFields.
    """
    for entry in metadata.managed_fields:
        if "f:nodeName" in object_if_any(entry.fields_v1 or {}, "f:spec"):
            return entry.manager or "somebody"
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


def start_reports(pod: PodObject) -> Iterator[tuple[str, str]]:
    """Yield reason and message of each container that waits; of one that could not be started, those of its last start.

    A kubelet backs off between the starts of a container, and its waiting reason then tells nothing of the cause. A pod
    that is not started again is Failed, and its container terminated.
    """
    for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        state, past = container.state or ContainerState(), container.last_state or ContainerState()
        backing_off = state.waiting is not None and state.waiting.reason == BACKING_OFF
        ended = past.terminated if backing_off else state.terminated
        said = ended if ended and ended.reason in NOT_STARTED else state.waiting
        yield (said.reason or "", said.message or "") if said else ("", "")
