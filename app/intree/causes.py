# SPDX-License-Identifier: Apache-2.0
"""The causes for which kube-scheduler itself refuses a node, each with its stage of the funnel and its remedy."""

from dataclasses import dataclass
from enum import Enum

from app.values.reasons import Stage


class InTreeCause(Enum):
    """A cause for which kube-scheduler itself refuses a node; the value is (stage, whether it may pass, remedy)."""

    NodeUnschedulable = Stage.Selectors, True, "uncordon the node, or add nodes"
    UntoleratedTaint = Stage.Selectors, False, "add the toleration, if the node is meant for this pod"
    NodeAffinityMismatch = Stage.Selectors, False, "change nodeSelector or node affinity, or label nodes to match"
    NodeNameMismatch = Stage.Selectors, False, "remove spec.nodeName: it bypasses scheduling"
    InsufficientResource = Stage.Resources, True, "request less, or wait for pods to end, or add nodes"
    TooManyPods = Stage.Resources, True, "wait for pods to end, or add nodes"
    VolumeNodeAffinityConflict = (
        Stage.Volumes,
        False,
        "use a volume of another zone, or a StorageClass with WaitForFirstConsumer",
    )
    HostPortTaken = (
        Stage.OtherPods,
        True,
        "use another hostPort or none, or wait for the pod that has it to end, or add nodes",
    )
    PodAffinityMismatch = (
        Stage.OtherPods,
        False,
        "start the pods that its pod affinity selects first, or change its pod affinity",
    )
    PodAntiAffinityConflict = (
        Stage.OtherPods,
        True,
        "make its pod anti-affinity preferred, or wait for those pods to end, or add nodes",
    )
    ExistingPodAntiAffinity = (
        Stage.OtherPods,
        True,
        "the anti-affinity of running pods excludes it: change that, or its labels",
    )
    TopologySpreadConflict = (
        Stage.OtherPods,
        False,
        "raise maxSkew, or say whenUnsatisfiable: ScheduleAnyway, or make room in other domains",
    )
    DevicesNotSuitable = Stage.Claims, False, "change the claim's requests, or add nodes with such devices"
    DevicesInUse = Stage.Claims, True, "wait for pods to end, or ask for fewer devices, or add nodes"
    ClaimNotUsable = (
        Stage.Claims,
        False,
        "correct the claim or its DeviceClass: until then kube-scheduler cannot place the pod",
    )
    SchedulingGated = (
        Stage.Admission,
        False,
        "the controller that set the gate must remove it: see spec.schedulingGates",
    )

    @property
    def stage(self) -> Stage:
        """The stage of the funnel at which a node falls out."""
        return self.value[0]

    @property
    def transient(self) -> bool:
        """Whether it may pass while the pod and the node stay as they are."""
        return self.value[1]

    @property
    def remedy(self) -> str:
        """The one action that would remove the cause."""
        return self.value[2]


@dataclass(frozen=True, slots=True)
class InTreeRefusal:
    """A refusal by kube-scheduler. `message` is its own text; `about` names the taint, label or resource."""

    cause: InTreeCause
    message: str
    about: tuple[str, ...] = ()

    @property
    def remedy(self) -> str:
        """The one action that would remove the cause."""
        return self.cause.remedy
