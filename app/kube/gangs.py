# SPDX-License-Identifier: Apache-2.0
"""The gang of a pod: the pods that are of use only together, and the object or label by which they are known.

A pod names its PodGroup in spec.schedulingGroup (scheduling.k8s.io). kube-scheduler then places all members in one
cycle, which it may revert (kubernetes pkg/scheduler/schedule_one_podgroup.go). Other gangs are known by a label or an
annotation of the project that makes them; kube-scheduler places their pods one by one, or another scheduler does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.kube.pods import name_of, workload_group
from app.values.json_members import member, object_if_any, objects_if_any, strings

POD_GROUP = "PodGroup"
"""The kind of a gang that kube-scheduler places as a whole."""
LABELS: tuple[tuple[str, str], ...] = (
    ("scheduling.x-k8s.io/pod-group", "coscheduling group"),
    ("kueue.x-k8s.io/pod-group-name", "Kueue pod group"),
    ("leaderworkerset.sigs.k8s.io/group-key", "LeaderWorkerSet group"),
    ("volcano.sh/job-name", "Volcano Job"),
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
)
"""The labels of gangs with what people call them, the narrowest first (the projects' own API references)."""
ANNOTATIONS: tuple[tuple[str, str], ...] = (
    ("scheduling.k8s.io/group-name", "Volcano PodGroup"),
    ("pod-group-name", "KAI PodGroup"),
)
"""The annotations in which Volcano and KAI-Scheduler write the PodGroup of a pod."""
_KINDS = dict((*LABELS, *ANNOTATIONS))


def pod_group_key(namespace: str, name: str) -> str:
    """Give the key of the gang of a PodGroup; empty without a name."""
    return f"{namespace}/{POD_GROUP}={name}" if name else ""


def gang_of(namespace: str, document: Mapping[str, Any]) -> str:
    """Give the key of a pod's gang, `namespace/label=value`; empty if nothing names one.

    Raises MalformedPod, OversizedPod.
    """
    spec, metadata = (member(document, key, dict, "") or {} for key in ("spec", "metadata"))
    group = member(spec, "schedulingGroup", dict, "spec.") or {}
    if name := name_of(group, "podGroupName", "spec.schedulingGroup."):
        return pod_group_key(namespace, name)
    for key, known in (("annotations", ANNOTATIONS), ("labels", LABELS)):
        if values := strings(metadata, key, "metadata."):
            for label, _ in known:
                if values.get(label):
                    return f"{namespace}/{label}={values[label]}"
    return ""


def workload_of(namespace: str, labels: Mapping[str, str], pod_group: str) -> str:
    """Give the key of the pods that work together with one: those of its PodGroup, or else of its workload's label."""
    return pod_group_key(namespace, pod_group) or workload_group(namespace, labels)


def read_workload(namespace: str, document: Mapping[str, Any]) -> str:
    """Read `workload_of` of a pod's JSON. Raises MalformedPod, OversizedPod."""
    spec, metadata = (member(document, key, dict, "") or {} for key in ("spec", "metadata"))
    group = member(spec, "schedulingGroup", dict, "spec.") or {}
    name = name_of(group, "podGroupName", "spec.schedulingGroup.")
    return workload_of(namespace, strings(metadata, "labels", "metadata."), name)


def gang_words(key: str) -> str:
    """Name a gang by its key, as `PodGroup ml/train`."""
    namespace, _, rest = key.partition("/")
    label, _, value = rest.rpartition("=")
    return f"{_KINDS.get(label, label)} {namespace}/{value}"


@dataclass(frozen=True, slots=True)
class Gang:
    """The gang of a pod. `waiting` are the documents of its waiting pods, `bound` is how many others have a node.

    `least` is how many must have a node at once, None for all; `topology` is the label whose value they share, empty
    for none. `claims` are what pods name in resourceClaims for claims of their PodGroup: name, claim and template.
    `priority` is that of its PodGroup, None without one; `never_preempts` says that a group cannot. `known` tells
    whether its PodGroup is known.
    """

    key: str
    waiting: tuple[Mapping[str, Any], ...]
    bound: int = 0
    least: int | None = None
    topology: str = ""
    claims: tuple[tuple[str, str, str], ...] = ()
    priority: int | None = None
    never_preempts: bool = False
    known: bool = False


def gang_priority(gang: Gang) -> int | None:
    """Give the priority below which pods are preempted for a gang; None if none are, as its first pod or version says.

    kube-scheduler 1.36, which alone serves PodGroups as v1alpha2, preempts for none with a topology
    (schedule_one_podgroup.go runWorkloadAwarePreemption).
    """
    spec = object_if_any(gang.waiting[0], "spec")
    if gang.never_preempts or spec.get("preemptionPolicy") == "Never":
        return None
    priority = spec.get("priority") if gang.priority is None else gang.priority
    return priority if isinstance(priority, int) else 0


def with_pod_group(gang: Gang, document: Mapping[str, Any] | None) -> Gang:
    """Add what a PodGroup (scheduling.k8s.io v1beta1, v1alpha3 or v1alpha2) says of its gang; None where not known."""
    spec = object_if_any(document or {}, "spec")
    policy = object_if_any(spec, "schedulingPolicy")
    least = object_if_any(policy, "gang").get("minCount")
    keys = [one.get("key") for one in objects_if_any(object_if_any(spec, "schedulingConstraints"), "topology")]
    basic = 1 if "basic" in policy else None
    names = ("name", "resourceClaimName", "resourceClaimTemplateName")
    claims = tuple(
        (str(one.get(names[0]) or ""), str(one.get(names[1]) or ""), str(one.get(names[2]) or ""))
        for one in objects_if_any(spec, "resourceClaims")
    )
    topology, priority = str(keys[0]) if keys else "", spec.get("priority")
    return replace(
        gang,
        known=gang.known or document is not None,
        least=least if isinstance(least, int) else basic,
        topology=topology,
        claims=claims,
        priority=priority if isinstance(priority, int) else None,
        never_preempts=bool(topology) and (document or {}).get("apiVersion") == "scheduling.k8s.io/v1alpha2",
    )
