# SPDX-License-Identifier: Apache-2.0
"""The funnel: how many nodes are left after each stage of filtering."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.intree.checks import InTreeCause, InTreeRefusal
from app.values.reasons import Duration, FunnelStage, Reason

Objection = InTreeRefusal | Reason
"""A reason against a node, by kube-scheduler or by a filter of gpu-usher."""


def stage_of(objection: Objection) -> FunnelStage:
    """Return the stage at which an objection cuts."""
    return objection.cause.stage if isinstance(objection, InTreeRefusal) else objection.code.stage


def is_transient(objection: Objection) -> bool:
    """Tell whether an objection may pass while the pod and the node stay as they are."""
    if isinstance(objection, InTreeRefusal):
        return objection.transient
    return objection.code.duration is Duration.TRANSIENT


_ORDER = {stage: index for index, stage in enumerate(FunnelStage)}


def first_objection(objections: Iterable[Objection]) -> Objection:
    """Return the objection at which a node is cut: the first one of the earliest stage."""
    return min(objections, key=lambda objection: _ORDER[stage_of(objection)])


@dataclass(frozen=True, slots=True)
class Step:
    """One stage: the nodes left after it, the nodes that it cut, and the reason that cut most of them.

    `nodes` is how many nodes that reason cut; other reasons of the stage cut the rest.
    """

    stage: str
    left: int
    cut: int
    reason: str | None = None
    message: str | None = None
    nodes: int = 0


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
    for stage in FunnelStage:
        cut_here = [(objection, count) for objection, count in cut.items() if stage_of(objection) is stage]
        if cut_here:
            worst, worst_count = max(cut_here, key=lambda entry: entry[1])
            cut_count = sum(count for _, count in cut_here)
            left -= cut_count
            steps.append(Step(stage.value, left, cut_count, objection_name(worst), objection_text(worst), worst_count))
        elif stage not in SHOWN_ONLY_IF_IT_CUTS:
            steps.append(Step(stage.value, left, 0))
    return tuple(steps)


SHOWN_ONLY_IF_IT_CUTS = frozenset(
    {FunnelStage.Admission, FunnelStage.Volumes, FunnelStage.OtherPods, FunnelStage.Claims}
)


def objection_name(objection: Objection) -> str:
    """Return the name of the objection's cause or code."""
    return objection.cause.name if isinstance(objection, InTreeRefusal) else objection.code.name


def objection_text(objection: Objection) -> str:
    """Write an objection for a person, with the taint, label or resource that it is about."""
    if isinstance(objection, Reason):
        return objection.message
    match objection.cause, objection.about:
        case InTreeCause.UntoleratedTaint, (key, value, effect):
            meaning = f": {objection.meaning.says}" if objection.meaning else ""
            return f"{objection.message}: {key}{f'={value}' if value else ''}:{effect}{meaning}"
        case InTreeCause.NodeAffinityMismatch, ("nodeSelector", key, value):
            return f"{objection.message}: {key}={value}"
        case (InTreeCause.NodeAffinityMismatch, ("affinity", unmet)) | (
            InTreeCause.VolumeNodeAffinityConflict,
            (unmet,),
        ):
            return f"{objection.message}: {unmet}"
        case InTreeCause.HostPortTaken, (port, protocol):
            return f"{objection.message}: {port}/{protocol}"
        case cause, (text, *_) if cause.stage is FunnelStage.Claims:
            return text if text == objection.message else f"{objection.message}: {text}"
        case cause, (key, *_) if cause.stage is FunnelStage.OtherPods:
            return f"{objection.message}: {key}"
    return objection.message
