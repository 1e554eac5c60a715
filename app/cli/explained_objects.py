# SPDX-License-Identifier: Apache-2.0
"""The pods that `gpu-usher explain` is asked about: by name as kubectl takes it, or of a file, workloads included."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.admission.preview import templates_of_new_object
from app.cli.source import key_of
from app.knowledge.workload_templates import Workloads
from app.kube.admission_objects import refused_replicas
from app.kube.api_kinds import API_KINDS
from app.kube.gpu_usage import FINISHED
from app.kube.pods import GROUP_LABELS
from app.usage.workloads import owners_of
from app.values.errors import BadInput, closest, did_you_mean

Object = Mapping[str, Any]
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

    def names(self, document: Object) -> bool:
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

    `refused` is why the API server has refused pods of its workload, in its words.
    """

    pod: Object
    live: bool
    of: str = ""
    refused: str = ""


def read_name(words: Sequence[str], namespace: str, workloads: Workloads) -> ObjectName:
    """Read TYPE NAME, TYPE/NAME, NAME or NAMESPACE/NAME; `namespace` is that of a name without one.

    Raises BadInput.
    """
    parts = [part for word in words if word for part in word.split("/")]
    kinds = _kinds(workloads)
    by_word = _by_word(kinds)
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
    return {**KINDS, **{workload.kind: resource for resource, workload in workloads.items()}}


def _by_word(kinds: Mapping[str, tuple[str, str]]) -> Mapping[str, str]:
    """Map what kubectl takes for a type to its kind."""
    return {**{word: kind for kind, (_, plural) in kinds.items() for word in (kind.lower(), plural)}, **SHORT_NAMES}


def of_file(file: str, documents: Sequence[Object], namespace: str, workloads: Workloads) -> list[PodToExplain]:
    """Return the pods, and the pods of the workloads, of a file; `namespace` is that of objects that name none.

    Raises MalformedPod, and BadInput for a file without any.
    """
    pods = [pod for document in documents for pod in as_pods(document, namespace, workloads)]
    if not pods:
        kinds = ", ".join(sorted({str(document.get("kind")) for document in documents})) or "it is empty"
        raise BadInput(f"{file}: no Pod and no workload in it ({kinds}), wants {', '.join(_kinds(workloads))}")
    return pods


CLAIM_KINDS = ("ResourceClaim", "ResourceClaimTemplate")


def claims_of_file(documents: Sequence[Object], namespace: str) -> list[dict[str, Any]]:
    """Return the claims and templates of a file, in their namespace, with which its pods are explained."""
    claims = [document for document in documents if document.get("kind") in CLAIM_KINDS]
    return [{**claim, "metadata": {"namespace": namespace, **(claim.get("metadata") or {})}} for claim in claims]


def as_pods(document: Object, namespace: str, workloads: Workloads) -> list[PodToExplain]:
    """Return a pod, or the pods that a workload creates, one of each template, as admission sees them.

    None for another kind. Raises MalformedPod.
    """
    targets = templates_of_new_object(document, workloads)
    metadata = document.get("metadata") or {}
    own = {"namespace": metadata.get("namespace") or namespace}
    if targets and not targets[0].path:
        return [PodToExplain({**document, "metadata": {**metadata, **own}}, False)]
    name = metadata.get("name") or metadata.get("generateName") or "without-a-name"
    made = []
    for target in targets:
        inner = {**(target.document.get("metadata") or {}), **own, "name": name}
        pod = {**target.document, "apiVersion": "v1", "kind": POD, "metadata": inner}
        place = _INDEX.sub(r"[\1]", ".".join(target.path))
        template = "its pod template" if len(targets) == 1 else f"template {place}"
        title = f"{document.get('kind')} {own['namespace']}/{name}, {template}:"
        made.append(PodToExplain(pod, False, title, refused_replicas(document)))
    return made


def of_fleet(
    wanted: ObjectName, objects: Sequence[Object], workload: Object | None, listing: str, workloads: Workloads
) -> list[PodToExplain]:
    """Find what was named among the objects of a fleet: a pod; or of a workload the newest pod that is Pending.

    Without one they are the pod templates of `workload`, and without that the newest pod. `listing` ends the message
    where no name is similar. Raises BadInput if there is none.
    """
    pods = [document for document in objects if document.get("kind") == POD]
    if wanted.kind == POD:
        for pod in pods:
            if wanted.names(pod):
                return [PodToExplain(pod, True)]
        raise BadInput(f"{wanted} not found{_similar(wanted, map(key_of, pods)) or listing}")
    owners = dict(_owned(pods))
    of_workload = sorted((pod for pod in pods if _is_of(pod, wanted, owners[key_of(pod)])), key=_created)
    pending = [pod for pod in of_workload if _pending(pod)]
    title = f"{wanted.kind} {wanted.namespace}/{wanted.name}"
    if pending:
        newest = f"{title}, the newest of its {len(pending)} pending pods:"
        return [PodToExplain(pending[-1], True, newest, refused_replicas(workload or {}))]
    if workload is not None and (templates := as_pods(workload, wanted.namespace, workloads)):
        return templates
    if of_workload:
        count = len(of_workload)
        return [PodToExplain(of_workload[-1], True, f"{title} has no pending pod; the newest of its {count}:")]
    known = {
        name.partition(" ")[2] for names in owners.values() for name in names if name.startswith(wanted.kind.lower())
    }
    raise BadInput(f"{wanted} not found{_similar(wanted, known) or listing}")


def _is_of(pod: Object, wanted: ObjectName, owners: tuple[str, ...]) -> bool:
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


def _owned(pods: Sequence[Object]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the pods by key with the workloads they belong to, as ObjectName writes those."""
    owners = owners_of(pods)
    for pod in pods:
        namespace, references = key_of(pod).partition("/")[0], (pod.get("metadata") or {}).get("ownerReferences") or ()
        names = [(str(owner.get("kind")), str(owner.get("name"))) for owner in references if owner.get("controller")]
        _, _, owner = owners[key_of(pod)].partition("/")
        names += [tuple(owner.split("/", 1))] if "/" in owner else []  # type: ignore[list-item]
        names += [("CronJob", match[1]) for kind, name in names if kind == "Job" and (match := _TIMED.fullmatch(name))]
        yield key_of(pod), tuple(f"{kind.lower()} {namespace}/{name}" for kind, name in names)


def _created(pod: Object) -> str:
    return str((pod.get("metadata") or {}).get("creationTimestamp") or "")


def _pending(pod: Object) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return phase not in FINISHED and not (pod.get("spec") or {}).get("nodeName")
