# SPDX-License-Identifier: Apache-2.0
"""Which Events to write, by the causes now and the Events before; their form, rate, intervals and limits.

The rules are those of an Event series (k8s.io/client-go tools/events/event_broadcaster.go): an Event that goes on is
renewed by its `series`, before the API server forgets it, and only what is new makes a new Event.

The workload of a pod is the last of its controllers that people look at. Each step up reads one object, with the right
`get` on four kinds (deploy/components/events). Where an object cannot be read, the controller below it counts as the
workload.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from app.explain.pending_cause import PendingCause
from app.intree.checks import InTreeCause
from app.kube.pods import ObjectReference, controller_of

RATE, BURST = 5.0, 10.0
"""Requests a second, and at once: what client-go allows a client by default (rest.DefaultQPS, rest.DefaultBurst)."""
PENDING_SECONDS = 10.0
"""A pod that waits for less gets no Event: kube-scheduler tries again within 10 s (podMaxBackoffSeconds)."""
TURN_SECONDS = 5.0
"""The length of a turn, after which the Lease is renewed: a third of its duration, as in the controller of
certificates. Requests fill a turn only as long as there are any."""
LOOKUP_SHARE = 0.5
"""The part of a turn that the search for workloads may take, so that Events are written meanwhile."""
RELEASE_SECONDS = 2.0
"""For giving up the Lease at the end; another replica takes it at once then."""
RENEW_SECONDS = 1800.0
"""client-go's refreshTime of a series: half of the hour for which kube-apiserver keeps an Event (--event-ttl)."""
SAME_REASON_SECONDS = 360.0
"""client-go's finishTime of a series: for so long other words for the same reason make no new Event. GPUs that come and
go change the smallest change that helps from one minute to the next."""
SETTLE_SECONDS = 30.0
"""At least so long between two Events on one object, however its cause flaps; a guess."""
RETRY_SECONDS = 60.0
"""After the API server has refused an Event; a guess."""
TTL_SECONDS = 3600.0
"""For so long kube-apiserver keeps an Event that is not renewed (--event-ttl)."""
LEAD_SECONDS = RENEW_SECONDS
"""A workload comes before pods that wait for up to so much longer: 5,000 Events take 17 minutes at five a second."""
NOTE_BYTES = 1024
"""The longest note that kube-apiserver takes (k8s.io/api events/v1, Event.note)."""
UNTOLD = frozenset({"", InTreeCause.SchedulingGated.name})
"""Causes without an Event: the pod fits and is only to be bound, or a scheduling gate holds it back on purpose."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What an Event says. `reason` is our code; `words` are the note without counts, which change all the time.

    `since` is the second since which the pod, or the first of the workload's, is known to wait. `lead` are the seconds
    by which it comes before others.
    """

    reason: str
    words: str
    note: str
    since: float = field(default=0.0, compare=False)
    lead: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits, the workload that it belongs to, its cause, and the second since which it is known to wait."""

    reference: ObjectReference
    workload: ObjectReference | None
    cause: PendingCause
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class WrittenEvent:
    """The newest Event on an object, in seconds of a monotonic clock. `count` is that of its series, 1 without one.

    `refused` is true where the API server did not take it.
    """

    statement: Statement
    created: float
    renewed: float
    count: int = 1
    refused: bool = False


@dataclass(frozen=True, slots=True)
class EventWrite:
    """An Event to create, or one to renew: `count` is 1 for a new one, and else the count of its series."""

    regarding: ObjectReference
    statement: Statement
    count: int = 1


Written = Mapping[ObjectReference, WrittenEvent]


def statements_of(pods: Iterable[WaitingPod]) -> dict[ObjectReference, Statement]:
    """Say of each workload, and then of each pod, why it waits; in the order of the pods."""
    told = [pod for pod in pods if pod.cause.reason not in UNTOLD]
    by_workload: dict[ObjectReference, list[WaitingPod]] = {}
    for pod in told:
        if pod.workload is not None:
            by_workload.setdefault(pod.workload, []).append(pod)
    workloads = {workload: _of_workload(members) for workload, members in by_workload.items()}
    return workloads | {pod.reference: _statement(pod.cause, pod.since) for pod in told}


def _of_workload(pods: list[WaitingPod]) -> Statement:
    """Say why most of the pods of a workload wait."""
    counts = Counter((pod.cause.reason, pod.cause.message) for pod in pods)
    most = max(counts, key=lambda cause: (counts[cause], cause))
    first = next(pod for pod in pods if (pod.cause.reason, pod.cause.message) == most)
    number = f"{len(pods)} pods wait" if len(pods) > 1 else "1 pod waits"
    told = _statement(first.cause, min(pod.since for pod in pods), f"{number}, such as {first.reference.name}: ")
    return replace(told, lead=LEAD_SECONDS)


def _statement(cause: PendingCause, since: float, prefix: str = "") -> Statement:
    words = f"{cause.message}; {cause.change or cause.remedy}"
    return Statement(cause.reason, words, cut(prefix + cause.note, NOTE_BYTES), since)


def cut(text: str, most_bytes: int) -> str:
    """Cut a text to at most so many bytes of UTF-8, with an ellipsis where something is missing."""
    if len(text.encode()) <= most_bytes:
        return text
    ellipsis = "…"
    return text.encode()[: most_bytes - len(ellipsis.encode())].decode(errors="ignore") + ellipsis


def writes(statements: Mapping[ObjectReference, Statement], written: Written, now: float) -> list[EventWrite]:
    """List the Events to write now, in the order of the seconds by which they should be, so that each has its turn.

    An object without an Event should have had one since it waits, one with a new cause since its last Event, and an
    Event that goes on should be renewed before the API server forgets it. All of these stay as they are until the Event
    is written, while what becomes due later comes later: nothing is put off for ever where the limit of rate allows
    few.
    """
    due = [
        write for regarding, statement in statements.items() if (write := _write(regarding, statement, written, now))
    ]
    return sorted(due, key=lambda write: _deadline(write, written.get(write.regarding)))


def _deadline(write: EventWrite, last: WrittenEvent | None) -> float:
    """Return the second by which an Event should be written."""
    lead = write.statement.lead
    if last is None:
        return write.statement.since - lead
    return (last.created + SETTLE_SECONDS if write.count == 1 else last.renewed + TTL_SECONDS) - lead


def _write(regarding: ObjectReference, statement: Statement, written: Written, now: float) -> EventWrite | None:
    last = written.get(regarding)
    if last is None:
        return EventWrite(regarding, statement)
    if last.refused:
        return EventWrite(regarding, statement) if now - last.created >= RETRY_SECONDS else None
    if is_new(statement, last, now):
        return EventWrite(regarding, statement)
    if now - last.renewed >= RENEW_SECONDS:
        return EventWrite(regarding, last.statement, last.count + 1)
    return None


def is_new(statement: Statement, last: WrittenEvent, now: float) -> bool:
    """Tell whether a statement makes a new Event, rather than that the last one goes on."""
    seconds = now - last.created
    if statement.reason != last.statement.reason:
        return seconds >= SETTLE_SECONDS
    return statement.words != last.statement.words and seconds >= SAME_REASON_SECONDS


def after(write: EventWrite, last: WrittenEvent | None, now: float, count: int) -> WrittenEvent:
    """Return what is known of an object's Event after a write; `count` is that of the series as it is stored."""
    if write.count == 1 or last is None:
        return WrittenEvent(write.statement, now, now, count)
    return replace(last, renewed=now, count=count)


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A limit of writes: `tokens` are left at the second `at`."""

    tokens: float
    at: float

    def refilled(self, now: float, rate: float, burst: float) -> "TokenBucket":
        """Return the bucket at a later second, filled by `rate` tokens a second up to `burst`."""
        return TokenBucket(min(burst, self.tokens + rate * (now - self.at)), now)

    def taken(self) -> "TokenBucket":
        """Return the bucket with one token less; what is missing below zero must first be refilled."""
        return TokenBucket(self.tokens - 1, self.at)

    def seconds_to_next(self, rate: float) -> float:
        """Return the seconds until there is a whole token."""
        return max(0.0, 1 - self.tokens) / rate


API_VERSION = "events.k8s.io/v1"
CONTROLLER = "gpu-usher"
ACTION, ACTION_OF_POLICIES = "Scheduling", "Loading"
"""What could not be done: to a pod, in kube-scheduler's word for it (pkg/scheduler/schedule_one.go); to a ConfigMap."""
NAME_LENGTH, INSTANCE_LENGTH = 253, 128
"""Limits of an object's name (DNS subdomain) and of reportingInstance (k8s.io/api events/v1)."""
DIGEST_LENGTH = 16


def events_path(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/events"


def event_name(write: EventWrite) -> str:
    """Name an Event by its object and its words: a replica that takes over finds the Event that stands already."""
    text = "\n".join((write.regarding.uid, write.statement.reason, write.statement.words))
    digest = sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{write.regarding.name[: NAME_LENGTH - DIGEST_LENGTH - 1].rstrip('-.')}.{digest}"


def event_document(write: EventWrite, instance: str, timestamp: str) -> dict[str, Any]:
    """Write a new Event. `timestamp` is that of a metav1.MicroTime, `instance` the name of this replica."""
    regarding = write.regarding
    return {
        "apiVersion": API_VERSION,
        "kind": "Event",
        "metadata": {"name": event_name(write), "namespace": regarding.namespace},
        "eventTime": timestamp,
        "type": "Warning",
        "reason": write.statement.reason,
        "note": write.statement.note,
        "action": ACTION_OF_POLICIES if regarding.kind == "ConfigMap" else ACTION,
        "regarding": _reference(regarding),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:INSTANCE_LENGTH],
    }


def series_patch(count: int, timestamp: str) -> dict[str, Any]:
    """Write the merge patch by which an Event goes on: of an Event, only its series may change."""
    return {"series": {"count": count, "lastObservedTime": timestamp}}


def _reference(regarding: ObjectReference) -> dict[str, str]:
    return {
        "apiVersion": regarding.api_version,
        "kind": regarding.kind,
        "namespace": regarding.namespace,
        "name": regarding.name,
        "uid": regarding.uid,
    }


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
"""Kinds that are workloads, whatever created them."""
MOST_STEPS = 4
"""Pod, StatefulSet, leader Pod, StatefulSet, LeaderWorkerSet is the longest chain; a longer one is a loop."""

Read = Callable[[str], Awaitable[Mapping[str, Any] | None]]


async def workload_of(controller: ObjectReference, read: Read) -> ObjectReference | None:
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
        document = await read(path_of(reference))
        same = document is not None and (document.get("metadata") or {}).get("uid") == reference.uid
        reference = controller_of(document) if same and document is not None else None
    return workload


def path_of(reference: ObjectReference) -> str:
    """Return the path of an object of a kind in STEPS."""
    root = f"/apis/{reference.api_version}" if reference.group else f"/api/{reference.api_version}"
    return f"{root}/namespaces/{reference.namespace}/{STEPS[reference.group, reference.kind]}/{reference.name}"
