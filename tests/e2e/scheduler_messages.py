# SPDX-License-Identifier: Apache-2.0
"""The message that the real kube-scheduler will give for a pod, predicted from our explanation of it (F83)."""

from collections import Counter

from app.dra.pod_claims import served_resources
from app.explain.explanation import Explanation, NodeVerdict
from app.intree.checks import (
    UNSELECTED,
    InTreeCause,
    PodConstraints,
    node_affinity_matches,
    read_pod_constraints,
    resources_left,
    taints_tolerated,
)
from app.kube.pod_object import REQUIRED_TERMS, pod_object
from app.values.reasons import Code
from app.world.world import World
from tests.controlplane.kubectl import Object

LACKING = {"ResourceNotOffered", "RequestExceedsNode", "InsufficientGPUs", "GhostGPUs"}
"""Codes of what kube-scheduler counts itself, and reports as Insufficient with the rest of NodeResourcesFit."""
FITS_NOT = InTreeCause.InsufficientResource.name
FIT = {FITS_NOT, InTreeCause.TooManyPods.name}
COUNTED = {*FIT, *LACKING}
"""Codes that a shortage in kube-scheduler's own count replaces. Without one, a code of LACKING is a reason of ours: a
container may ask more GPUs than HAMi shares out on a node that has enough units."""
PLUGINS = (
    {InTreeCause.NodeUnschedulable.name},
    {InTreeCause.NodeNameMismatch.name},
    {InTreeCause.UntoleratedTaint.name},
    {InTreeCause.NodeAffinityMismatch.name},
    {InTreeCause.HostPortTaken.name},
    FIT,
    {InTreeCause.VolumeNodeAffinityConflict.name},
    {InTreeCause.TopologySpreadConflict.name},
    {
        InTreeCause.PodAffinityMismatch.name,
        InTreeCause.PodAntiAffinityConflict.name,
        InTreeCause.ExistingPodAntiAffinity.name,
    },
    {InTreeCause.DevicesNotSuitable.name, InTreeCause.DevicesInUse.name},
)
"""Causes by plugin, in the order of filtering; the scheduler names those of the first plugin that refuses."""
OURS_ALONE = {code.name for code in Code} - LACKING


def expected_message(pod: Object, explanation: Explanation, world: World, asks_extender: bool) -> str | None:
    """Write the message that kube-scheduler will give for a pod, or None where explain says that the pod fits.

    The form is that of FitError.Error in kube-scheduler's types.go. Where affinity that admission wrote refuses a node,
    explain gives the cause of that affinity, which kube-scheduler does not know.
    """
    if explanation.in_tree and explanation.in_tree[0].reason == InTreeCause.SchedulingGated.name:
        return ""
    pod_constraints = read_pod_constraints(pod_object(pod), lambda _resource: False)
    verdicts = [
        _as_the_scheduler_reports(verdict, pod_constraints, world, asks_extender)
        for verdict in explanation.verdicts or ()
    ]
    if missing := _missing_class(verdicts):
        return f"0/{explanation.nodes} nodes are available: {missing}."
    if explanation.unjudged:
        verdicts = [_refused_by_dra(verdict) if verdict.fits else verdict for verdict in verdicts]
    if any(verdict.fits for verdict in verdicts):
        return None
    if not verdicts:
        return "no nodes available to schedule pods"
    counted = predicted_reasons(verdicts, named_nodes(pod))
    histogram = ", ".join(sorted(f"{n} {text}" for text, n in counted.items()))
    return f"0/{explanation.nodes} nodes are available: {histogram}."


def _missing_class(verdicts: list[NodeVerdict]) -> str:
    """Return what kube-scheduler says of a DeviceClass that does not exist, before it looks at nodes; "" if all do.

    Source: kubernetes v1.36 pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go PreFilter.
    """
    messages = (message for verdict in verdicts for message in verdict.messages)
    missing = (message for message in messages if "DeviceClass" in message and message.endswith(" does not exist"))
    return next(missing, "").replace("DeviceClass", "device class")


def without_extender_reasons(verdict: NodeVerdict, asks_extender: bool) -> NodeVerdict:
    """Leave out the reasons that only our extender gives, where the scheduler does not call it."""
    if asks_extender or verdict.fits:
        return verdict
    reasons = [reason for reason in zip(verdict.reasons, verdict.messages, strict=True) if reason[0] not in OURS_ALONE]
    return NodeVerdict(
        verdict.node, not reasons, tuple(code for code, _ in reasons), tuple(text for _, text in reasons)
    )


def _refused_by_dra(verdict: NodeVerdict) -> NodeVerdict:
    """Return the verdict on a node that fits in all but its devices, as refused for them (dynamicresources.go)."""
    return NodeVerdict(verdict.node, fits=False, reasons=("resourceClaims",), messages=("cannot allocate all claims",))


def _as_the_scheduler_reports(
    verdict: NodeVerdict, pod_constraints: PodConstraints, world: World, asks_extender: bool
) -> NodeVerdict:
    """Return a verdict as kube-scheduler reports it: GPUs counted like CPU, admission's affinity like any other."""
    if verdict.fits:
        return verdict
    seen, node = without_extender_reasons(verdict, asks_extender), world.nodes[verdict.node]
    reasons = list(zip(seen.reasons, seen.messages, strict=True))
    served = served_resources(world.devices).keys() - node.allocatable.keys()
    claimed = {f"Insufficient {resource}" for resource in served}  # KEP-5004: kube-scheduler makes a claim for it
    left = (resource.message for resource in resources_left(pod_constraints, node, world.used.get(node.name, {})))
    if short := [message for message in left if message not in claimed]:
        reasons = [*((FITS_NOT, text) for text in short), *(reason for reason in reasons if reason[0] not in COUNTED)]
    if (
        InTreeCause.UntoleratedTaint.name not in seen.reasons
    ):  # explain leaves out those that admission tolerates itself
        reasons += [(refusal.cause.name, refusal.message) for refusal in taints_tolerated(pod_constraints, node, {})]
    if InTreeCause.NodeAffinityMismatch.name not in seen.reasons and any(
        node_affinity_matches(pod_constraints, node, {})
    ):
        reasons.append((InTreeCause.NodeAffinityMismatch.name, UNSELECTED))
    return NodeVerdict(seen.node, not reasons, tuple(code for code, _ in reasons), tuple(text for _, text in reasons))


def predicted_reasons(verdicts: list[NodeVerdict], names: set[str] | None = None) -> Counter[str]:
    """Count the reasons that kube-scheduler will give: per node those of the first plugin that refuses it, or ours.

    `names` holds the only nodes that it considers, where node affinity names them (NodeAffinity PreFilter).
    """
    texts: Counter[str] = Counter()
    for verdict in verdicts:
        if names is not None and verdict.node not in names:
            texts["node(s) didn't satisfy plugin(s) [NodeAffinity]"] += 1
            continue
        reasons = list(zip(verdict.reasons, verdict.messages, strict=True))
        plugin = next((codes for codes in PLUGINS if codes & set(verdict.reasons)), None)
        if plugin is None:
            texts.update([reasons[0][1]])
            continue
        theirs = [text.partition(": ")[0] for code, text in reasons if code in plugin]
        texts.update(set(theirs) if plugin is FIT else theirs[:1])
    return texts


def named_nodes(pod: Object) -> set[str] | None:
    """List the nodes that required node affinity names, or None where a term names none."""
    required = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED_TERMS) or {}
    node_names: set[str] = set()
    for term in required.get("nodeSelectorTerms") or ():
        fields = [field for field in term.get("matchFields") or () if field["operator"] == "In"]
        if not fields:
            return None
        node_names.update(*(field["values"] for field in fields))
    return node_names or None
