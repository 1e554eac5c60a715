# SPDX-License-Identifier: Apache-2.0
"""Every pod that is there, explained, beside what the real kube-scheduler did with it (F83).

A refusal is compared word by word: the scheduler counts nodes by the reasons of the first plugin that objects, and we
say all reasons of every node. What the scheduler said before the cluster changed it does not take back; so that a pod
on which we differ is posed to it again, as a copy, and that answer counts.
"""

import asyncio
import copy
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli.explain import OPTIONAL, snapshot_of
from app.cli.source import LIVE
from app.cluster.access import find_cluster
from app.cluster.list_once import read_objects
from app.explain.explanation import Explanation, NodeVerdict
from app.explain.pending_pod import explain
from app.explain.survey import ClusterSnapshot
from app.intree.causes import InTreeCause
from app.intree.checks import UNSELECTED, PodConstraints, node_affinity_matches, read_pod_constraints, resources_left
from app.intree.existing_pods import REQUIRED
from app.kube.gpu_usage import FINISHED
from app.kube.pods import DECISION
from app.values.reasons import Code
from app.values.steps import finish
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import pod_path
from tests.controlplane.kubectl import Object
from tests.e2e.stage import eventually, read_pod

LACKING = {"ResourceNotOffered", "RequestExceedsNode", "InsufficientGPUs", "GhostGPUs"}
"""What kube-scheduler counts itself, and says as Insufficient, with all else of NodeResourcesFit."""
FITS_NOT = InTreeCause.InsufficientResource.name
FIT = {FITS_NOT, InTreeCause.TooManyPods.name, *LACKING}
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
)
"""Causes by plugin, in the order of filtering; the scheduler names those of the first plugin that objects."""
OURS_ALONE = {each.name for each in Code} - LACKING
MOST_POSED = 20
"""Of some 500; where more differ it is not the cluster that changed. One takes a second or two."""
ATTEMPTS = 3
"""A copy is judged in one moment and explained in the next."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the scheduler did: bound to a node, or refused with these words."""

    node: str = ""
    words: str = ""


def disagreements(plane: ControlPlane, policies: Path | None = None) -> list[str]:
    """List the pods of running schedulers on which explain and the scheduler differ. `policies`: of the service.

    Prints how many there were, how many of them were posed again, and the CPU that explaining took.
    """
    asking = {name: asks for each in plane.schedulers.values() for name, asks in _profiles(each.configuration)}
    world, pods = read_world(plane, policies)
    if _unchanged(plane, world, pods):
        return []
    answered = [(pod, answer) for pod in pods if pod["spec"]["schedulerName"] in asking and (answer := answer_of(pod))]
    started = time.process_time()
    apart = [each for each in answered if differs(*each, world, asking[each[0]["spec"]["schedulerName"]])]
    print(
        f"explained {len(answered)} pods on {len(world.nodes)} nodes in {time.process_time() - started:.2f} s of CPU,"
    )
    print(f"{sum(bool(answer.words) for _, answer in answered)} of them refused, {len(apart)} posed again")
    found = []
    for pod, answer in apart if len(apart) <= MOST_POSED else ():
        if why := _still(plane, policies, pod, answer, asking[pod["spec"]["schedulerName"]]):
            found.append(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}: {why}")
    return found or [differs(*each, world, True) for each in apart[MOST_POSED:]]


def _unchanged(plane: ControlPlane, world: ClusterSnapshot, pods: list[Object]) -> bool:
    """Tell whether this very cluster was looked at before: scenarios that only read leave it as it was."""
    versions = sorted(each["metadata"]["resourceVersion"] for each in pods)
    state = hash((repr(versions), repr(sorted(world.nodes.items(), key=lambda each: each[0]))))
    before, LOOKED_AT[plane.url] = LOOKED_AT.get(plane.url), state
    return before == state


LOOKED_AT: dict[str, int] = {}


def _profiles(configuration: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    profiles: list[Object] = configuration.get("profiles") or [{}]
    for each in profiles:
        yield each.get("schedulerName", "default-scheduler"), bool(configuration.get("extenders"))


def read_world(plane: ControlPlane, policies: Path | None) -> tuple[ClusterSnapshot, list[Object]]:
    """Read the cluster as the command does, once for all pods."""
    cluster = find_cluster(plane.kubeconfig("admin"), None)
    objects = asyncio.run(read_objects(cluster, *LIVE, optional=OPTIONAL))
    return snapshot_of(objects, policies), [each for each in objects if each["kind"] == "Pod"]


def answer_of(pod: Object) -> Answer | None:
    """Read what the scheduler did with a pod; None where it did nothing, could not, or the pod is going."""
    status = pod.get("status") or {}
    condition: Object = next((c for c in status.get("conditions") or () if c["type"] == "PodScheduled"), {})
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") in FINISHED:
        return None
    if node := pod["spec"].get("nodeName"):
        return Answer(node=node)
    if condition.get("reason") in ("Unschedulable", "SchedulingGated"):
        return Answer(words=condition["message"])
    return None


def differs(pod: Object, answer: Answer, world: ClusterSnapshot, asks: bool) -> str:
    """Say how we differ; empty where we agree. `asks`: the scheduler asks our extender."""
    found = finish(explain(pod, world, live=True, by_node=True, find_fixes=False))
    if answer.node:
        bound = found.bound and _seen(found.bound, asks)
        if bound is None or bound.node != answer.node:
            return f"is bound to {answer.node}, we say {bound}"
        return "" if bound.fits else f"is bound to {answer.node}, we say {bound.messages}"
    words = expected(pod, found, world, asks)
    if words is not None and answer.words.startswith(words):
        return ""
    return f"the scheduler says {answer.words[:800]!r}, we {words!r}"


def expected(pod: Object, found: Explanation, world: ClusterSnapshot, asks: bool) -> str | None:
    """Write what the scheduler will say of a pod; None where we think that it fits (FitError.Error, types.go).

    Where the affinity that admission wrote keeps a node out we say why it was written; the scheduler does not know.
    """
    if found.in_tree and found.in_tree[0].reason == InTreeCause.SchedulingGated.name:
        return ""
    pod_constraints = read_pod_constraints(pod, lambda _resource: False)
    verdicts = [_heard(each, pod_constraints, world, asks) for each in found.verdicts or ()]
    if found.unjudged:
        verdicts = [_unallocated(each) if each.fits else each for each in verdicts]
    if any(each.fits for each in verdicts):
        return None
    if not verdicts:
        return "no nodes available to schedule pods"
    counted = predicted(verdicts, named(pod))
    return f"0/{found.nodes} nodes are available: {', '.join(sorted(f'{n} {text}' for text, n in counted.items()))}."


def _seen(verdict: NodeVerdict, asks: bool) -> NodeVerdict:
    """Leave out what a scheduler does not hear that does not ask us."""
    if asks or verdict.fits:
        return verdict
    said = [each for each in zip(verdict.reasons, verdict.messages, strict=True) if each[0] not in OURS_ALONE]
    return NodeVerdict(verdict.node, not said, tuple(code for code, _ in said), tuple(text for _, text in said))


def _unallocated(verdict: NodeVerdict) -> NodeVerdict:
    """Take a node that only its devices can speak against for one without (dynamicresources.go)."""
    return NodeVerdict(verdict.node, fits=False, reasons=("resourceClaims",), messages=("cannot allocate all claims",))


def _heard(verdict: NodeVerdict, pod_constraints: PodConstraints, world: ClusterSnapshot, asks: bool) -> NodeVerdict:
    """Put a verdict as the scheduler does: it counts GPUs as it counts CPU, and takes admission's affinity as any."""
    if verdict.fits:
        return verdict
    seen, node = _seen(verdict, asks), world.nodes[verdict.node]
    said = list(zip(seen.reasons, seen.messages, strict=True))
    if short := [each.message for each in resources_left(pod_constraints, node, world.used.get(node.name, {}))]:
        said = [*((FITS_NOT, text) for text in short), *(each for each in said if each[0] not in FIT)]
    if InTreeCause.NodeAffinityMismatch.name not in seen.reasons and any(
        node_affinity_matches(pod_constraints, node, {})
    ):
        said.append((InTreeCause.NodeAffinityMismatch.name, UNSELECTED))
    return NodeVerdict(seen.node, not said, tuple(code for code, _ in said), tuple(text for _, text in said))


def predicted(verdicts: list[NodeVerdict], names: set[str] | None = None) -> Counter[str]:
    """Say what the scheduler will say: of each node the texts of the first plugin that objects, or ours.

    `names`: the only nodes that it looks at, where node affinity names them (NodeAffinity PreFilter).
    """
    texts: Counter[str] = Counter()
    for each in verdicts:
        if names is not None and each.node not in names:
            texts["node(s) didn't satisfy plugin(s) [NodeAffinity]"] += 1
            continue
        said = list(zip(each.reasons, each.messages, strict=True))
        plugin = next((codes for codes in PLUGINS if codes & set(each.reasons)), None)
        if plugin is None:
            texts.update([said[0][1]])
            continue
        theirs = [text.partition(": ")[0] for code, text in said if code in plugin]
        texts.update(set(theirs) if plugin is FIT else theirs[:1])
    return texts


def named(pod: Object) -> set[str] | None:
    """List the nodes that required node affinity names; None where a term names none."""
    required = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    found: set[str] = set()
    for term in required.get("nodeSelectorTerms") or ():
        fields = [each for each in term.get("matchFields") or () if each["operator"] == "In"]
        if not fields:
            return None
        found.update(*(each["values"] for each in fields))
    return found or None


def _still(plane: ControlPlane, policies: Path | None, pod: Object, answer: Answer, asks: bool) -> str:
    """Pose a pod again, to the node that it has or to all, and say how we differ then."""
    why = ""
    for _ in range(ATTEMPTS):
        made = plane.api.try_create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", again(pod, answer.node))
        if not made.is_success:
            return f"cannot be posed again: {made.text[:300]}"
        asked: Object = made.json()
        try:
            eventually("it is judged", lambda asked=asked: answer_of(asked := read_pod(plane, asked)))  # type: ignore[misc]
            asked = read_pod(plane, asked)
            world, _ = read_world(plane, policies)
            why = differs(asked, answer_of(asked) or Answer(), world, asks)
        finally:
            plane.api.delete(pod_path(asked))
        if not why:
            return ""
    return why


def again(pod: Object, node: str) -> Object:
    """Copy a pod; without priority, so that it evicts nobody. `node`: the only one that it may go to, unless empty."""
    metadata, spec = pod["metadata"], copy.deepcopy(pod["spec"])
    for key in ("nodeName", "priority", "priorityClassName", "preemptionPolicy", "ephemeralContainers"):
        spec.pop(key, None)
    if node:
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        terms = affinity.setdefault(REQUIRED, {}).setdefault("nodeSelectorTerms", [{}])
        for term in terms:
            term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    for each in _with_selectors(spec):
        for key in ("matchLabelKeys", "mismatchLabelKeys"):
            each.pop(key, None)  # which the API server has put into the selector already
    annotations = {key: each for key, each in (metadata.get("annotations") or {}).items() if key != DECISION}
    labels = {} if metadata.get("ownerReferences") else metadata.get("labels") or {}  # else its controller adopts it
    kept = {"generateName": "again-", "namespace": metadata["namespace"], "annotations": annotations, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}


def _with_selectors(spec: Object) -> Iterator[Object]:
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        yield from (affinity.get(kind) or {}).get(REQUIRED) or ()
    yield from spec.get("topologySpreadConstraints") or ()
