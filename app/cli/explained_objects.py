# SPDX-License-Identifier: Apache-2.0
"""The pods that `gpu-usher explain` is asked about: by name as kubectl takes it, or of a file, workloads included.

Modules that only the pods of a fleet need are imported where they are used, since `mutate` reads files alone.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.admission.preview import templates_of_new_object
from app.admission.queued_jobs import number_of_templates
from app.admission.review_targets import is_queued
from app.cli.source import key_of
from app.knowledge.workload_templates import Workloads, number_of_pods
from app.kube.admission_objects import refused_replicas
from app.kube.api_kinds import API_KINDS
from app.kube.gangs import MOST_MEMBERS, Gang
from app.kube.pod_object import FINISHED
from app.kube.pods import GROUP_LABELS, controller_of
from app.values.errors import BadInput, closest, did_you_mean
from app.values.json_members import JSONObject, member, object_if_any, objects_if_any

POD = "Pod"
SHORT_NAMES = {"po": POD, "deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet", "rs": "ReplicaSet",
               "cj": "CronJob", "lws": "LeaderWorkerSet"}  # fmt: skip
"""kubectl's (kubectl api-resources)."""
KINDS = {POD: ("", "pods"), "Deployment": ("apps", "deployments"), "StatefulSet": ("apps", "statefulsets"),
         "DaemonSet": ("apps", "daemonsets"), "ReplicaSet": ("apps", "replicasets"), "Job": ("batch", "jobs"),
         "CronJob": ("batch", "cronjobs")}  # fmt: skip
"""Kubernetes' kinds whose pods are explained, with (API group, resource); those but the first are in WORKLOADS."""
_OTHER_WORDS = {word for name, kind in API_KINDS.items() for word in (name.lower(), kind.plural)}
_INDEX = re.compile(r"\.(\d+)(?=\.|$)")
_TIMED = re.compile(r"(.+)-\d+")
"""The Jobs of a CronJob end with the minutes since the epoch (k8s.io/kubernetes pkg/controller/cronjob/utils.go)."""


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A pod or a workload that the command line names; `resource` is its (API group, resource)."""

    kind: str
    namespace: str
    name: str
    resource: tuple[str, str] = KINDS[POD]

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.namespace}/{self.name}"

    @property
    def is_of_other_projects(self) -> bool:
        """Whether its kind is one of workload_templates.yaml."""
        return self.kind not in KINDS

    def path(self, version: str = "v1") -> str:
        """Return the path at which the API server has it."""
        group, plural = self.resource
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        return f"{root}/namespaces/{self.namespace}/{plural}/{self.name}"

    def names(self, document: JSONObject) -> bool:
        """Tell whether an object has this kind, namespace and name."""
        metadata = document.get("metadata") or {}
        return (document.get("kind"), metadata.get("namespace") or "default", metadata.get("name")) == (
            self.kind,
            self.namespace,
            self.name,
        )


@dataclass(frozen=True, slots=True)
class PodToExplain:
    """A pod to explain. `of` says what it stands for, where that is not the pod itself; `live` that it exists.

    `workload` are the pods of its workload, and `notes` what else is to say of that; the first pod of it has them.
    """

    pod: JSONObject
    live: bool
    of: str = ""
    workload: Gang | None = None
    notes: tuple[str, ...] = ()


NO_PODS = Gang("", ())


def read_name(words: Sequence[str], namespace: str, workloads: Workloads) -> ObjectName:
    """Read TYPE NAME, TYPE/NAME, NAME or NAMESPACE/NAME; `namespace` is that of a name without one.

    Raises BadInput.
    """
    parts = [part for word in words if word for part in word.split("/")]
    kinds = _kinds(workloads)
    by_word = {**{word: kind for kind, (_, plural) in kinds.items() for word in (kind.lower(), plural)}, **SHORT_NAMES}
    kind = by_word.get(parts[0].lower().partition(".")[0]) if len(parts) > 1 else POD
    if kind is not None and len(parts) > 1:
        parts = parts[1:]
    elif len(parts) > 1 and parts[0].lower() in _OTHER_WORDS:
        raise BadInput(f"explain: got {parts[0]}, takes a pod or a workload: {', '.join(kinds).lower()}")
    elif len([word for word in words if word]) > 1:
        similar = did_you_mean(parts[0].lower(), by_word) or f": {', '.join(kinds).lower()}"
        raise BadInput(f"explain: unknown type {parts[0][:60]}{similar}")
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise BadInput(f"explain {' '.join(words)[:80]}: wants a name, or TYPE/NAME such as deployment/train")
    kind = kind or POD
    return ObjectName(kind, parts[0] if len(parts) == 2 else namespace, parts[-1], kinds[kind])


def _kinds(workloads: Workloads) -> Mapping[str, tuple[str, str]]:
    """Map the kinds that are explained to (API group, resource)."""
    return {**KINDS, **{workload.kind: resource for resource, workload in workloads.items()}, **KINDS}


def of_file(file: str, documents: Sequence[JSONObject], namespace: str, workloads: Workloads) -> list[PodToExplain]:
    """Return the pods, and the pods of the workloads, of a file; `namespace` is that of objects that name none.

    Raises MalformedPod, and BadInput for a file without any.
    """
    pods = [pod for document in documents for pod in as_pods(document, namespace, workloads)]
    if not pods:
        kinds = ", ".join(sorted({str(document.get("kind")) for document in documents})) or "it is empty"
        raise BadInput(
            f"{file}: no Pod and no workload in it ({kinds}), wants {', '.join(_kinds(workloads))}; {OTHERS}"
        )
    return pods


CLAIM_KINDS = ("ResourceClaim", "ResourceClaimTemplate")


def claims_of_file(documents: Sequence[JSONObject], namespace: str) -> list[dict[str, Any]]:
    """Return the claims and templates of a file, in their namespace, with which its pods are explained."""
    claims = [document for document in documents if document.get("kind") in CLAIM_KINDS]
    return [{**claim, "metadata": {"namespace": namespace, **(claim.get("metadata") or {})}} for claim in claims]


OTHERS = "of other kinds, explain the pods that their controllers create"


def not_explained(documents: Sequence[JSONObject], workloads: Workloads) -> str:
    """Name the objects of a file that are no workload known here and hold requests of containers; empty if none do."""
    others = (one for one in documents if not templates_of_new_object(one, workloads) and _has_requests(one))
    return ", ".join(f"{one.get('kind')} {key_of(one)}" for one in others)


def _has_requests(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_requests, value))
    if not isinstance(value, Mapping):
        return False
    amounts = (*object_if_any(value, "limits"), *object_if_any(value, "requests"))
    return any("/" in name or name in ("cpu", "memory") for name in amounts) or any(map(_has_requests, value.values()))


def as_pods(document: JSONObject, namespace: str, workloads: Workloads) -> list[PodToExplain]:
    """Return a pod, or the pods that a workload creates, one of each template, as admission sees them.

    None for another kind. Raises MalformedPod.
    """
    targets = templates_of_new_object(document, workloads)
    metadata = member(document, "metadata", dict, "") or {}
    own = {"namespace": metadata.get("namespace") or namespace}
    if targets and not targets[0].path:
        return [PodToExplain({**document, "metadata": {**metadata, **own}}, False)]
    name = metadata.get("name") or metadata.get("generateName") or "without-a-name"
    made = []
    for target in targets:
        where = ".".join((*target.path, ""))
        owners = [{"kind": document.get("kind"), "name": name, "controller": True}]
        inner = {**(member(target.document, "metadata", dict, where) or {}), **own, "name": name}
        inner["ownerReferences"] = owners
        pod = {**target.document, "apiVersion": "v1", "kind": POD, "metadata": inner}
        place = _INDEX.sub(r"[\1]", ".".join(target.path))
        template = "its pod template" if len(targets) == 1 else f"template {place}"
        made.append(PodToExplain(pod, False, f"{document.get('kind')} {own['namespace']}/{name}, {template}:"))
    if made:
        numbers = [number_of_pods(document, target.path, workloads) for target in targets]
        total = None if None in numbers else sum(filter(None, numbers))
        waiting: tuple[JSONObject, ...] = ()
        if total is not None and 1 < total <= MOST_MEMBERS:
            waiting = tuple(each.pod for each, number in zip(made, numbers, strict=True) for _ in range(number or 0))
        gang = Gang(f"{own['namespace']}/{document.get('kind')}={name}", waiting) if waiting else None
        made[0] = replace(made[0], workload=gang, notes=tuple(_notes(document, len(made), total, workloads)))
    return made


def _notes(document: JSONObject, looked_at: int, pods: int | None, workloads: Workloads) -> Iterator[str]:
    """Say what keeps a workload from making pods, and which of its templates and pods are not looked at."""
    spec, kind = object_if_any(document, "spec"), document.get("kind")
    if (object_if_any(spec, "runPolicy") or spec).get("suspend") is True:
        queued = "Kueue sets that when it admits it" if is_queued(document) else "set spec.suspend to false to start it"
        yield f"the {kind} is suspended, so that no pods are created; {queued}"
    if refused := refused_replicas(document):
        yield f"the API server has refused pods of this workload: {refused}"
    if pods == 0:
        yield f"the {kind} wants no pods: its replicas, or what is left of its completions, are 0"
    if (pods or 0) > MOST_MEMBERS:
        yield f"how many of its {pods} pods fit together is not known: it has more than {MOST_MEMBERS}"
    if (all_templates := number_of_templates(document, workloads)) > looked_at:
        yield f"only the first {looked_at} of its {all_templates} pod templates are looked at"


def of_fleet(
    wanted: ObjectName, objects: Sequence[JSONObject], workload: JSONObject | None, listing: str, workloads: Workloads
) -> list[PodToExplain]:
    """Find what was named among the objects of a fleet: a pod; or of a workload the newest pod that is Pending.

    Without one they are the pod templates of `workload`, and without that the newest pod. `listing` ends the message
    where no name is similar. Raises BadInput if there is none.
    """
    pods = [document for document in objects if document.get("kind") == POD]
    templates = as_pods(workload, wanted.namespace, workloads) if workload is not None else []
    if wanted.kind == POD:
        for pod in pods:
            if wanted.names(pod):
                return [PodToExplain(pod, True)]
        raise BadInput(f"{wanted} not found{_similar(wanted, map(key_of, pods)) or listing}")
    owners = dict(_owned(pods))
    of_workload = sorted((pod for pod in pods if _is_of(pod, wanted, owners[key_of(pod)])), key=_created)
    have = [pod for pod in of_workload if not (_finished(pod) or (pod.get("metadata") or {}).get("deletionTimestamp"))]
    pending = [pod for pod in have if not _finished(pod) and not (pod.get("spec") or {}).get("nodeName")]
    title = f"{wanted.kind} {wanted.namespace}/{wanted.name}"
    all_pods, notes = ((templates[0].workload or NO_PODS).waiting, templates[0].notes) if templates else ((), ())
    missing = all_pods[len(have) :] if len(templates) == 1 or not have or pending else _missing(all_pods, have)
    gang = Gang(f"{wanted.namespace}/{wanted.kind}={wanted.name}", missing or (), len(have) - len(pending))
    if len(templates) > 1 and ((pending and missing) or missing is None):
        notes += (f"pods that are not created yet are not counted: {len(have)} of {len(all_pods)} are there, and it is "
                  "not known of which pod templates the others are",)  # fmt: skip
    if pending:
        waiting = (*pending, *({**pending[-1], "status": {}} for _ in gang.waiting if len(templates) == 1))
        of = f"{title}, the newest of its {len(pending)} pending pods:"
        return [PodToExplain(pending[-1], True, of, replace(gang, waiting=waiting), notes)]
    if templates:
        return [replace(templates[0], workload=None if missing is None else gang, notes=notes), *templates[1:]]
    if of_workload:
        count = len(of_workload)
        return [PodToExplain(of_workload[-1], True, f"{title} has no pending pod; the newest of its {count}:")]
    known = {
        name.partition(" ")[2] for names in owners.values() for name in names if name.startswith(wanted.kind.lower())
    }
    raise BadInput(f"{wanted} not found{_similar(wanted, known) or listing}")


def waiting_in(namespace: str, objects: Iterable[JSONObject]) -> Iterator[PodToExplain]:
    """Give the pods of a namespace that wait for a node, one of each template of a controller, the oldest first."""
    from app.explain.pending_cause import template_hash

    alike: dict[str, list[JSONObject]] = {}
    for pod in sorted((one for one in objects if one.get("kind") == POD), key=_created):
        if key_of(pod).partition("/")[0] == namespace and not (_finished(pod) or pod["spec"].get("nodeName")):
            owner = controller_of(pod)
            alike.setdefault(f"{owner.uid if owner else key_of(pod)} {template_hash(pod, ())}", []).append(pod)
    for first, *others in alike.values():
        since = f"since {created}" if (created := _created(first)) else ""
        words = ", ".join(filter(None, (since, f"as {len(others)} more like it" if others else "")))
        yield PodToExplain(first, True, f"{words}:" if words else "")


def _missing(wanted: Sequence[JSONObject], have: Iterable[JSONObject]) -> tuple[JSONObject, ...] | None:
    """Return the pods of several templates that are not there; None where these do not tell which pods are of which.

    A pod has the labels of its template, and its containers by name and image; webhooks may change all else.
    """
    left = list(wanted)
    for pod in have:
        of = {id(one): one for one in wanted if _marks(one) <= _marks(pod)}
        if len(of) != 1:
            return None
        left = [one for one in left if id(one) not in of] + [one for one in left if id(one) in of][1:]
    return tuple(left)


def _marks(pod: JSONObject) -> set[tuple[str, str]]:
    containers = objects_if_any(object_if_any(pod, "spec"), "containers")
    labels = object_if_any(object_if_any(pod, "metadata"), "labels")
    return {(f"container {one.get('name')}", str(one.get("image"))) for one in containers} | {*labels.items()}


def _is_of(pod: JSONObject, wanted: ObjectName, owners: tuple[str, ...]) -> bool:
    """Tell whether a pod belongs to a workload: by its owners, or by a label of a project whose Jobs make the pods."""
    if f"{wanted}" in owners:
        return True
    labels = (pod.get("metadata") or {}).get("labels") or {}
    in_namespace = key_of(pod).partition("/")[0] == wanted.namespace
    return wanted.is_of_other_projects and in_namespace and wanted.name in map(labels.get, GROUP_LABELS[:-1])


def _similar(wanted: ObjectName, keys: Iterable[str]) -> str:
    """Return the end of a message: the same name in another namespace, or a similar name."""
    known = sorted(keys)
    here = [key for key in known if key.startswith(f"{wanted.namespace}/")]
    same = [key for key in known if _name(key) == wanted.name]
    same = same or [key for key in here if _name(key).startswith(f"{wanted.name}-")]
    if same:
        return f", did you mean {same[0]}?"
    for among in (here, known):
        by_name = {_name(key): key for key in reversed(among)}
        if (close := closest(wanted.name, by_name)) is not None:
            return f", did you mean {by_name[close]}?"
    return ""


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _owned(pods: Sequence[JSONObject]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the pods by key with the workloads they belong to, as ObjectName writes those."""
    from app.usage.workloads import owners_of

    owners = owners_of(pods)
    for pod in pods:
        namespace, references = key_of(pod).partition("/")[0], (pod.get("metadata") or {}).get("ownerReferences") or ()
        names = [(str(owner.get("kind")), str(owner.get("name"))) for owner in references if owner.get("controller")]
        _, _, owner = owners[key_of(pod)].partition("/")
        names += [tuple(owner.split("/", 1))] if "/" in owner else []  # type: ignore[list-item]
        names += [("CronJob", match[1]) for kind, name in names if kind == "Job" and (match := _TIMED.fullmatch(name))]
        yield key_of(pod), tuple(f"{kind.lower()} {namespace}/{name}" for kind, name in names)


def _created(pod: JSONObject) -> str:
    return str((pod.get("metadata") or {}).get("creationTimestamp") or "")


def _finished(pod: JSONObject) -> bool:
    return (pod.get("status") or {}).get("phase") in FINISHED
