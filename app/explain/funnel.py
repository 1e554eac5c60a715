# SPDX-License-Identifier: Apache-2.0
"""The funnel: how many nodes are left after each stage of filtering, and the table of the stages of all causes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from app.intree.checks import InTreeCause, InTreeRefusal
from app.values.reasons import Code, Reason, ReasonKind

Objection = InTreeRefusal | Reason
"""A reason against a node, by kube-scheduler or by a filter of gpu-usher."""


class Stage(Enum):
    """The stages at which nodes are cut, in order; the value is the text for a person."""

    Admission = "admitted"
    Selectors = "taints and selectors"
    Resources = "CPU, memory and pods"
    Volumes = "volumes"
    OtherPods = "other pods"
    Product = "GPU product"
    Driver = "driver and CUDA"
    Memory = "GPU memory"
    Sharing = "sharing and MIG"
    Health = "health"
    Free = "free now"


STAGES: dict[InTreeCause | Code, Stage] = {
    InTreeCause.NodeUnschedulable: Stage.Selectors,
    InTreeCause.UntoleratedTaint: Stage.Selectors,
    InTreeCause.NodeAffinityMismatch: Stage.Selectors,
    InTreeCause.NodeNameMismatch: Stage.Selectors,
    InTreeCause.InsufficientResource: Stage.Resources,
    InTreeCause.TooManyPods: Stage.Resources,
    InTreeCause.VolumeNodeAffinityConflict: Stage.Volumes,
    InTreeCause.HostPortTaken: Stage.OtherPods,
    InTreeCause.PodAffinityMismatch: Stage.OtherPods,
    InTreeCause.PodAntiAffinityConflict: Stage.OtherPods,
    InTreeCause.ExistingPodAntiAffinity: Stage.OtherPods,
    InTreeCause.TopologySpreadConflict: Stage.OtherPods,
    InTreeCause.SchedulingGated: Stage.Admission,
    Code.NodeExcluded: Stage.Selectors,
    Code.NodeNotKnown: Stage.Selectors,
    Code.InvalidAnnotation: Stage.Admission,
    Code.ResourceNotOffered: Stage.Product,
    Code.ProductNotAllowed: Stage.Product,
    Code.GPUFactsMissing: Stage.Product,
    Code.FormFactorNotAllowed: Stage.Product,
    Code.InterconnectAbsent: Stage.Product,
    Code.ComputeCapabilityTooLow: Stage.Product,
    Code.DriverTooOld: Stage.Driver,
    Code.DriverUnknown: Stage.Driver,
    Code.ImageRequirementUnmet: Stage.Driver,
    Code.ComputeCapabilityUnsupported: Stage.Driver,
    Code.GPUMemoryTooSmall: Stage.Memory,
    Code.SharingNotAllowed: Stage.Sharing,
    Code.MIGProfileAbsent: Stage.Sharing,
    Code.MIGInvalid: Stage.Sharing,
    Code.MIGReconfiguring: Stage.Health,
    Code.DriverUpgrading: Stage.Health,
    Code.GhostGPUs: Stage.Health,
    Code.GPUUnhealthy: Stage.Health,
    Code.RequestExceedsNode: Stage.Free,
    Code.InsufficientGPUs: Stage.Free,
    Code.GPUMemoryBudgetExceeded: Stage.Free,
    Code.LayoutDoesNotFit: Stage.Free,
    **{code: Stage.Admission for code in Code if code.kind is ReasonKind.ADMISSION},
    Code.SharedReplicasAskedAsGPUs: Stage.Sharing,
}


def stage_of(objection: Objection) -> Stage:
    """Return the stage at which an objection cuts; every cause and code has one in STAGES."""
    return STAGES[objection.cause if isinstance(objection, InTreeRefusal) else objection.code]


TRANSIENT: frozenset[InTreeCause | Code] = frozenset(
    {
        InTreeCause.NodeUnschedulable,
        InTreeCause.InsufficientResource,
        InTreeCause.TooManyPods,
        InTreeCause.HostPortTaken,
        InTreeCause.PodAntiAffinityConflict,
        InTreeCause.ExistingPodAntiAffinity,
        Code.MIGReconfiguring,
        Code.DriverUpgrading,
        Code.GPUUnhealthy,
        *(code for code in Code if code.kind is ReasonKind.FREE),
    }
)
"""Causes that pass without a change of pod or node: resources are in use, or maintenance is in progress."""


def is_transient(objection: Objection) -> bool:
    """Tell whether an objection may pass while the pod and the node stay as they are."""
    return (objection.cause if isinstance(objection, InTreeRefusal) else objection.code) in TRANSIENT


_ORDER = {stage: index for index, stage in enumerate(Stage)}


def first_objection(objections: Iterable[Objection]) -> Objection:
    """Return the objection at which a node is cut: the first one of the earliest stage."""
    return min(objections, key=lambda objection: _ORDER[stage_of(objection)])


@dataclass(frozen=True, slots=True)
class Step:
    """One stage: the nodes left after it, the nodes that it cut, and the reason that cut most of them."""

    stage: str
    left: int
    cut: int
    reason: str | None = None
    message: str | None = None


def funnel(groups: Mapping[tuple[Objection, ...], int]) -> tuple[Step, ...]:
    """Count the nodes left after each stage.

    `groups` are the numbers of nodes with equal objections; nodes that fit have none.
    """
    cut: Counter[Objection] = Counter()
    for objections, count in groups.items():
        if objections:
            cut[first_objection(objections)] += count
    left = sum(groups.values())
    steps = [Step("all nodes", left, 0)]
    for stage in Stage:
        cut_here = [(objection, count) for objection, count in cut.items() if stage_of(objection) is stage]
        if cut_here:
            worst = max(cut_here, key=lambda entry: entry[1])[0]
            cut_count = sum(count for _, count in cut_here)
            left -= cut_count
            steps.append(Step(stage.value, left, cut_count, objection_name(worst), objection_text(worst)))
        elif stage not in SHOWN_ONLY_IF_IT_CUTS:
            steps.append(Step(stage.value, left, 0))
    return tuple(steps)


SHOWN_ONLY_IF_IT_CUTS = frozenset({Stage.Admission, Stage.Volumes, Stage.OtherPods})


def objection_name(objection: Objection) -> str:
    """Return the name of the objection's cause or code."""
    return objection.cause.name if isinstance(objection, InTreeRefusal) else objection.code.name


def objection_text(objection: Objection) -> str:
    """Write an objection for a person, with the taint, label or resource that it is about."""
    if isinstance(objection, Reason):
        return objection.message
    match objection.cause, objection.about:
        case InTreeCause.UntoleratedTaint, (key, value, effect):
            return f"{objection.message}: {key}{f'={value}' if value else ''}:{effect}"
        case InTreeCause.NodeAffinityMismatch, ("nodeSelector", key, value):
            return f"{objection.message}: {key}={value}"
        case InTreeCause.HostPortTaken, (port, protocol):
            return f"{objection.message}: {port}/{protocol}"
        case cause, (key, *_) if STAGES[cause] is Stage.OtherPods:
            return f"{objection.message}: {key}"
    return objection.message
