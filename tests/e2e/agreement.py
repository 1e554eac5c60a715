# SPDX-License-Identifier: Apache-2.0
"""Explain every pod of a control plane, and compare with what the real kube-scheduler did with it (F83).

A refusal is compared word by word: kube-scheduler counts nodes by the reasons of the first plugin that refuses them,
and explain names all reasons of every node. kube-scheduler does not withdraw a message when the cluster changes later.
A pod on which the two differ is therefore created again as a copy, and the outcome of the copy counts.
"""

import asyncio
import copy
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.cli.explain import OPTIONAL, snapshot_of
from app.cluster.kubeconfig import find_cluster
from app.cluster.listing import read_objects
from app.explain.pending_pod import explain
from app.kube.api_kinds import FLEET
from app.kube.pod_object import FINISHED, REQUIRED_TERMS
from app.kube.pods import DECISION
from app.values.computations import finish
from app.world.world import World
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import pod_path
from tests.controlplane.kubectl import Object
from tests.e2e.offers import dra_path
from tests.e2e.scheduler_messages import expected_message, without_extender_reasons
from tests.e2e.stage import eventually, read_pod

MOST_POSED = 20
"""Most pods that are created again, of about 500. Each takes a second or two; a change of the cluster affects fewer."""
MOST_COMPARED = 250
"""Most pods that are explained after one scenario, refused ones first: one takes 60 ms of CPU on 200 nodes."""
ATTEMPTS = 3
"""Attempts per pod, since the cluster may change between the verdict on a copy and its explanation."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What kube-scheduler did with a pod: it bound the pod to a node, or refused it with this message."""

    node: str = ""
    words: str = ""


def disagreements(plane: ControlPlane, policies: Path | None = None) -> list[str]:
    """List the pods of the running schedulers on which explain and kube-scheduler differ.

    `policies` is the directory of the service's policies. Prints how many pods were explained, how many of them were
    created again, and the CPU time of the explanations.
    """
    asking = {
        name: asks_extender
        for scheduler in plane.schedulers.values()
        for name, asks_extender in _profiles(scheduler.configuration)
    }
    world, pods = read_world(plane, policies)
    answered = [
        (pod, answer)
        for pod in pods
        if pod["spec"]["schedulerName"] in asking and _version(pod) not in COMPARED and (answer := answer_of(pod))
    ]
    COMPARED.update(_version(pod) for pod, _ in answered)
    answered = sorted(answered, key=lambda pair: bool(pair[1].node))[:MOST_COMPARED]
    started = time.process_time()
    apart = [pair for pair in answered if difference(*pair, world, asking[pair[0]["spec"]["schedulerName"]])]
    print(
        f"explained {len(answered)} pods on {len(world.nodes)} nodes in {time.process_time() - started:.2f} s of CPU,"
    )
    print(f"{sum(bool(answer.words) for _, answer in answered)} of them refused, {len(apart)} posed again")
    disagreeing = []
    for pod, answer in apart if len(apart) <= MOST_POSED else ():
        if why := _difference_when_created_again(plane, policies, pod, answer, asking[pod["spec"]["schedulerName"]]):
            disagreeing.append(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}: {why}")
    return disagreeing or [difference(*pair, world, True) for pair in apart[MOST_POSED:]]


def _version(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]


COMPARED: set[tuple[str, str]] = set()
"""Versions of pods that were compared: each answer of kube-scheduler is compared once, after the scenario that caused
it. A pod of several hundred takes 50 ms of CPU, and scenarios that change one pod leave the others as they are."""


def _profiles(configuration: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    profiles: list[Object] = configuration.get("profiles") or [{}]
    for profile in profiles:
        yield profile.get("schedulerName", "default-scheduler"), bool(configuration.get("extenders"))


def read_world(plane: ControlPlane, policies: Path | None) -> tuple[World, list[Object]]:
    """Read the cluster as the command does, once for all pods."""
    cluster = find_cluster(plane.kubeconfig("admin"), None)
    objects = asyncio.run(read_objects(cluster, *FLEET, optional=OPTIONAL))
    return snapshot_of(objects, policies), [item for item in objects if item["kind"] == "Pod"]


def answer_of(pod: Object) -> Answer | None:
    """Read what kube-scheduler did with a pod; None where it did nothing, or where the pod is deleted or finished."""
    status = pod.get("status") or {}
    condition: Object = next((c for c in status.get("conditions") or () if c["type"] == "PodScheduled"), {})
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") in FINISHED:
        return None
    if node := pod["spec"].get("nodeName"):
        return Answer(node=node)
    gates_gone = condition.get("reason") == "SchedulingGated" and not pod["spec"].get("schedulingGates")
    if condition.get("reason") in ("Unschedulable", "SchedulingGated") and not gates_gone:
        return Answer(words=condition["message"])
    return None


def lacks_claims(plane: ControlPlane, pod: Object) -> bool:
    """Tell whether a claim or a template of a pod does not exist: kube-scheduler says nothing of such a pod.

    Source: kubernetes pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go PreEnqueue.
    """
    entries = pod["spec"].get("resourceClaims") or ()
    plurals = {"resourceClaimName": "resourceclaims", "resourceClaimTemplateName": "resourceclaimtemplates"}
    place = f"{dra_path(plane)}/namespaces/{pod['metadata']['namespace']}" if entries else ""
    paths = [f"{place}/{plural}/{entry[key]}" for entry in entries for key, plural in plurals.items() if entry.get(key)]
    return any(plane.api.client.get(path).status_code == httpx.codes.NOT_FOUND for path in paths)


def difference(pod: Object, answer: Answer, world: World, asks_extender: bool) -> str:
    """Return how explain and kube-scheduler differ on a pod, or "" where they agree.

    `asks_extender` is whether the scheduler calls our extender.
    """
    explanation = finish(explain(pod, world, live=True, by_node=True, find_fixes=False))
    if answer.node:
        bound = explanation.bound and without_extender_reasons(explanation.bound, asks_extender)
        if bound is None or bound.node != answer.node:
            return f"is bound to {answer.node}, we say {bound}"
        return "" if bound.fits else f"is bound to {answer.node}, we say {bound.messages}"
    words = expected_message(pod, explanation, world, asks_extender)
    if words is not None and says_the_same(answer.words, words):
        return ""
    return f"the scheduler says {answer.words[:800]!r}, we {words!r}"


def says_the_same(message: str, expected: str) -> bool:
    """Tell whether a message begins as expected; nodes with untolerated taints are compared by their number alone.

    kube-scheduler names the taint in some versions, and counts the nodes of each taint for itself.
    """
    (rest, tainted), (expected_rest, expected_tainted) = map(_without_taints, (message, expected))
    return rest.startswith(expected_rest) and tainted == expected_tainted


def _without_taints(message: str) -> tuple[str, int]:
    rest = _TAINTED_NODES.sub("", message).replace(", .", ".")
    return rest, sum(int(match[1]) for match in _TAINTED_NODES.finditer(message))


_TAINTED_NODES = re.compile(r"(\d+) node\(s\) had untolerated taint(?:\(s\)| \{[^}]*\})(?:, )?")


def _difference_when_created_again(
    plane: ControlPlane, policies: Path | None, pod: Object, answer: Answer, asks_extender: bool
) -> str:
    """Create a copy of a pod, for the node that the pod has or for all, and return how the verdicts on it differ."""
    why = ""
    for _ in range(ATTEMPTS):
        made = plane.api.try_create(
            f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", copy_of(pod, answer.node)
        )
        if not made.is_success:
            return f"cannot be posed again: {made.text[:300]}"
        copied: Object = made.json()
        try:
            if not (held := lacks_claims(plane, copied)):
                eventually("it is judged", lambda copied=copied: answer_of(read_pod(plane, copied)))  # type: ignore[misc]
            copied = read_pod(plane, copied)
            world, _ = read_world(plane, policies)
            why = difference(copied, answer_of(copied) or Answer(), world, asks_extender)
            why = "" if held and " does not exist" in why else why
        finally:
            plane.api.delete(pod_path(copied))
        if not why:
            return ""
    return why


def copy_of(pod: Object, node: str) -> Object:
    """Copy a pod without its priority, so that it preempts nothing; `node` is the only node for it, if any."""
    metadata, spec = pod["metadata"], copy.deepcopy(pod["spec"])
    for key in ("nodeName", "priority", "priorityClassName", "preemptionPolicy", "ephemeralContainers"):
        spec.pop(key, None)
    if node:
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        terms = affinity.setdefault(REQUIRED_TERMS, {}).setdefault("nodeSelectorTerms", [{}])
        for term in terms:
            term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    for constraint in _with_selectors(spec):
        for key in ("matchLabelKeys", "mismatchLabelKeys"):
            constraint.pop(key, None)  # which the API server has added to the selector already
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != DECISION}
    labels = {} if metadata.get("ownerReferences") else metadata.get("labels") or {}  # a controller would adopt it
    names = {"generateName": "again-", "namespace": metadata["namespace"]}
    metadata = {**names, "annotations": annotations, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _with_selectors(spec: Object) -> Iterator[Object]:
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        yield from (affinity.get(kind) or {}).get(REQUIRED_TERMS) or ()
    yield from spec.get("topologySpreadConstraints") or ()
