# SPDX-License-Identifier: Apache-2.0
"""The funnel: all nodes, and how many are left after each stage; the table says to which stage a cause belongs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from app.intree.checks import InTreeCause, InTreeRefusal
from app.values.reasons import Code, Reason, ReasonKind

Objection = InTreeRefusal | Reason
"""Why a node will not do, whoever says it."""


class Stage(Enum):
    """Where nodes fall out, in this order; the value is what is left when it is passed."""

    Admission = "admitted"
    Selectors = "taints and selectors"
    Resources = "CPU, memory and pods"
    Volumes = "volumes"
    Company = "other pods"
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
    InTreeCause.HostPortTaken: Stage.Company,
    InTreeCause.PodAffinityMismatch: Stage.Company,
    InTreeCause.PodAntiAffinityConflict: Stage.Company,
    InTreeCause.ExistingPodAntiAffinity: Stage.Company,
    InTreeCause.TopologySpreadConflict: Stage.Company,
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
    """Say where an objection counts; every cause and code has its place."""
    return STAGES[objection.cause if isinstance(objection, InTreeRefusal) else objection.code]


PASSING: frozenset[InTreeCause | Code] = frozenset(
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
"""What speaks against a node today and not for good: it is taken, or somebody is at work on it."""


def passing(objection: Objection) -> bool:
    """Tell whether an objection may be gone tomorrow, with the pod and the node as they are."""
    return (objection.cause if isinstance(objection, InTreeRefusal) else objection.code) in PASSING


_ORDER = {stage: place for place, stage in enumerate(Stage)}


def first_of(objections: Iterable[Objection]) -> Objection:
    """Give the objection at which a node falls out: that of the earliest stage, there the first."""
    return min(objections, key=lambda each: _ORDER[stage_of(each)])


@dataclass(frozen=True, slots=True)
class Step:
    """One stage: how many nodes are left after it, how many it cut, and the reason that cut most of those."""

    stage: str
    left: int
    cut: int
    reason: str | None = None
    message: str | None = None


def funnel(groups: Mapping[tuple[Objection, ...], int]) -> tuple[Step, ...]:
    """Count the nodes left after each stage. `groups`: on how many nodes these objections stand, none for those that
    fit.
    """
    cut: Counter[Objection] = Counter()
    for objections, count in groups.items():
        if objections:
            cut[first_of(objections)] += count
    left = sum(groups.values())
    steps = [Step("all nodes", left, 0)]
    for stage in Stage:
        here = [(found, count) for found, count in cut.items() if stage_of(found) is stage]
        if here:
            worst = max(here, key=lambda each: each[1])[0]
            gone = sum(count for _, count in here)
            left -= gone
            steps.append(Step(stage.value, left, gone, code_of(worst), words_of(worst)))
        elif stage not in SHOWN_ONLY_IF_IT_CUTS:
            steps.append(Step(stage.value, left, 0))
    return tuple(steps)


SHOWN_ONLY_IF_IT_CUTS = frozenset({Stage.Admission, Stage.Volumes, Stage.Company})


def code_of(objection: Objection) -> str:
    """Name the cause."""
    return objection.cause.name if isinstance(objection, InTreeRefusal) else objection.code.name


def words_of(objection: Objection) -> str:
    """Write an objection for a person, with what it is about."""
    if isinstance(objection, Reason):
        return objection.message
    match objection.cause, objection.about:
        case InTreeCause.UntoleratedTaint, (key, value, effect):
            return f"{objection.message}: {key}{f'={value}' if value else ''}:{effect}"
        case InTreeCause.NodeAffinityMismatch, ("nodeSelector", key, value):
            return f"{objection.message}: {key}={value}"
        case InTreeCause.HostPortTaken, (port, protocol):
            return f"{objection.message}: {port}/{protocol}"
        case cause, (key, *_) if STAGES[cause] is Stage.Company:
            return f"{objection.message}: {key}"
    return objection.message
