# SPDX-License-Identifier: Apache-2.0
"""The gang of a pod: the pods that are of use only together, and the object or label by which they are known.

A pod names its PodGroup in spec.schedulingGroup (scheduling.k8s.io). kube-scheduler then places all members in one
cycle, which it may revert (kubernetes pkg/scheduler/schedule_one_podgroup.go). Other gangs are known by a label or an
annotation of the project that makes them; kube-scheduler places their pods one by one, or another scheduler does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.kube.pod_object import PodClaim, PodObject, pod_object
from app.kube.pods import workload_group
from app.kube.records import Record
from app.values.json_members import JSONObject

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


def gang_of(pod: PodObject) -> str:
    """Give the key of a pod's gang, `namespace/label=value`; empty if nothing names one."""
    if name := pod.spec.scheduling_group.pod_group_name:
        return pod_group_key(pod.namespace, name)
    metadata = pod.metadata
    for values, known in ((metadata.annotations, ANNOTATIONS), (metadata.labels, LABELS)):
        for label, _ in known if values else ():
            if value := (values or {}).get(label):
                return f"{pod.namespace}/{label}={value}"
    return ""


def workload_of(namespace: str, labels: Mapping[str, str], pod_group: str) -> str:
    """Give the key of the pods that work together with one: those of its PodGroup, or else of its workload's label."""
    return pod_group_key(namespace, pod_group) or workload_group(namespace, labels)


def read_workload(pod: PodObject) -> str:
    """Give `workload_of` of a pod."""
    return workload_of(pod.namespace, pod.metadata.labels or {}, pod.spec.scheduling_group.pod_group_name)


def gang_words(key: str) -> str:
    """Name a gang by its key, as `PodGroup ml/train`."""
    namespace, _, rest = key.partition("/")
    label, _, value = rest.rpartition("=")
    return f"{_KINDS.get(label, label)} {namespace}/{value}"


class GangPolicy(Record, frozen=True):
    min_count: int | None = None


class SchedulingPolicy(Record, frozen=True):
    """How kube-scheduler places the pods of a group: as a gang, or with `basic` one by one."""

    gang: GangPolicy | None = None
    basic: dict[str, Any] | None = None


class TopologyConstraint(Record, frozen=True):
    key: str = ""


class SchedulingConstraints(Record, frozen=True):
    topology: tuple[TopologyConstraint, ...] = ()


class PodGroupSpec(Record, frozen=True):
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    resource_claims: tuple[PodClaim, ...] = ()
    priority: int | None = None


class PodGroup(Record, frozen=True):
    """A PodGroup (scheduling.k8s.io v1beta1, v1alpha3 or v1alpha2)."""

    api_version: str = ""
    spec: PodGroupSpec = PodGroupSpec()


MOST_MEMBERS = 256
"""Members that are placed; of a larger gang no more is said."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The gang of a pod. `waiting` are the documents of its waiting pods, `bound` is how many others have a node.

    `group` is its PodGroup, None where it has none or it is not known.
    """

    key: str
    waiting: tuple[JSONObject, ...]
    bound: int = 0
    group: PodGroup | None = None

    @property
    def spec(self) -> PodGroupSpec:
        return self.group.spec if self.group else PodGroupSpec()

    @property
    def least(self) -> int | None:
        """How many must have a node at once; None for all."""
        policy = self.spec.scheduling_policy
        least = policy.gang.min_count if policy.gang else None
        return 1 if least is None and policy.basic is not None else least

    @property
    def topology(self) -> str:
        """The label whose value their nodes share; empty for none."""
        return next((one.key for one in self.spec.scheduling_constraints.topology), "")

    @property
    def priority(self) -> int | None:
        """The priority below which pods are preempted for the gang; None if none are, as its first pod or version says.

        kube-scheduler 1.36, which alone serves PodGroups as v1alpha2, preempts for none with a topology
        (schedule_one_podgroup.go runWorkloadAwarePreemption).
        """
        pod = pod_object(self.waiting[0]).spec
        never = self.topology and self.group and self.group.api_version == "scheduling.k8s.io/v1alpha2"
        if never or pod.preemption_policy == "Never":
            return None
        return (pod.priority or 0) if self.spec.priority is None else self.spec.priority
