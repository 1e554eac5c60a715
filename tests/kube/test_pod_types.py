# SPDX-License-Identifier: Apache-2.0
"""Members of other types are refused with their place, whatever reads them (F83)."""

import copy
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from app.cli.explained_objects import as_pods
from app.cluster.snapshot import fill, read_snapshot
from app.explain.pending_pod import explain
from app.kube.pod_object import PodObject
from app.kube.records import read_record
from app.values.computations import finish
from app.values.errors import BadInput, MalformedPod, SnapshotError
from app.world.state import State
from app.world.world import world_of
from tests.builders import gpus, knowledge, node_document, pod, shipped, state_of

ODD: tuple[Any, ...] = (None, 1, "x", [], [None], [1], {}, {"a": None}, {"a": 1}, {"": ""}, True, 1.5, [{}], [[]], -1)
SELECTOR = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["x"]}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"topologyKey": "z", "labelSelector": SELECTOR, "namespaces": ["n"], "matchLabelKeys": ["a"]}
NODE_TERM = {"matchExpressions": SELECTOR["matchExpressions"], "matchFields": SELECTOR["matchExpressions"]}
SPREAD = {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
FULL = pod(
    gpus(1, ports=[{"hostPort": 80, "protocol": "TCP"}], volumeMounts=[{"name": "v", "mountPath": "/x"}]),
    nodeSelector={"a": "b"},
    tolerations=[{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
    topologySpreadConstraints=[SPREAD],
    affinity={
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODE_TERM]}},
        "podAffinity": {REQUIRED: [TERM]},
        "podAntiAffinity": {REQUIRED: [TERM]},
    },
    volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    schedulingGates=[{"name": "g"}],
    priority=1,
)
FULL["status"] = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "message": "m"}],
    "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}],
}


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*place, key))


def with_odd(document: Any, place: tuple[Any, ...], odd: Any) -> Any:
    changed = copy.deepcopy(document)
    parent = changed
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = odd
    return changed


@pytest.mark.parametrize(
    ("place", "odd", "message"),
    [
        (("spec", "topologySpreadConstraints", 0, "maxSkew"), [None], "got a list, wants an integer"),
        (
            ("spec", "topologySpreadConstraints", 0, "labelSelector", "matchLabels"),
            [None],
            "got a list, wants an object",
        ),
        (("spec", "affinity", "podAffinity", REQUIRED, 0, "namespaces"), "n", "got a string, wants a list"),
        (("spec", "nodeSelector"), {"a": 1}, "got an integer, wants a string"),
        (("status", "conditions"), {}, "got an object, wants a list"),
        (("spec", "affinity", "podAffinity", REQUIRED, 0), None, "got null, wants an object"),
    ],
    ids=["maxSkew", "matchLabels", "namespaces", "nodeSelector", "conditions", "null in a list"],
)
def test_member_of_another_type_is_named_with_its_place(place: tuple[Any, ...], odd: Any, message: str) -> None:
    """F83."""
    with pytest.raises(MalformedPod) as raised:
        read_record(PodObject, with_odd(FULL, place, odd))

    said = str(raised.value)
    assert said.endswith(message)
    assert said.startswith(".".join(map(str, place[:2])))


def test_null_is_absent_and_members_that_nobody_reads_may_be_anything() -> None:
    """F83."""
    read_record(PodObject, {"metadata": {"name": "p", "labels": None}, "spec": {"dnsConfig": [1], "containers": None}})


@pytest.mark.parametrize("live", [False, True])
def test_pods_of_any_members_are_explained_or_refused_with_words(live: bool) -> None:
    """F83: 500 of all pairs of a place and an odd value."""
    snapshot = world_of(state_of([node_document()]), shipped(), existing_pods=())
    todo = [(place, odd) for place in places(FULL) if place for odd in ODD]
    for place, odd in random.Random(7).sample(todo, 500):
        with suppress(BadInput):
            finish(explain(with_odd(FULL, place, odd), snapshot, live, find_fixes=False))


def test_workloads_of_any_members_are_explained_or_refused_with_words() -> None:
    """F83: 300 of all pairs."""
    snapshot = world_of(state_of([node_document()]), shipped(), existing_pods=())
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
    spec = {"replicas": 2, "runPolicy": {"suspend": True}, "template": template}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
    todo = [(place, odd) for place in places(workload) if place and place != ("kind",) for odd in ODD]
    for place, odd in random.Random(8).sample(todo, 300):
        with suppress(BadInput):
            for each in as_pods(with_odd(workload, place, odd), "team-a", knowledge().workloads):
                finish(explain(each.pod, snapshot, find_fixes=False, workload=each.workload))


UNNAMED = {"kind": "Pod", "metadata": {}, "spec": {"containers": []}}
IN_SNAPSHOTS: dict[str, tuple[dict[str, Any], str]] = {
    "label of a node": (
        node_document("broken", labels={"nvidia.com/gpu.memory": 81920}),  # type: ignore[dict-item]
        "Node broken: metadata.labels[nvidia.com/gpu.memory]: got an integer, wants a string",
    ),
    "spread of a pod": (
        pod(topologySpreadConstraints=[{**SPREAD, "maxSkew": [None]}]),
        "Pod team-a/p: spec.topologySpreadConstraints[0].maxSkew: got a list, wants an integer",
    ),
    "metadata": ({"kind": "Namespace", "metadata": 1}, "Namespace number 1: metadata: got an integer, wants an object"),
    "no name": (UNNAMED, "Pod number 1: metadata.name: got none, wants the name of the object"),
    "labels of a namespace": (
        {"kind": "Namespace", "metadata": {"name": "n", "labels": {"a": 1}}},
        "Namespace n: metadata.labels[a]: got an integer, wants a string",
    ),
}


@pytest.mark.parametrize("case", IN_SNAPSHOTS)
def test_error_in_a_snapshot_names_the_object_and_the_place(case: str) -> None:
    """F83."""
    odd, message = IN_SNAPSHOTS[case]

    with pytest.raises(MalformedPod) as raised:
        fill(State(knowledge()), [node_document("fine"), odd])

    assert str(raised.value) == message


def test_time_of_a_yaml_file_is_a_text_as_in_json() -> None:
    """F83."""
    [node] = read_snapshot("f.yaml", b"kind: Node\nmetadata: {name: n, creationTimestamp: 2026-11-28T01:02:03Z}\n")

    assert node["metadata"]["creationTimestamp"] == "2026-11-28T01:02:03Z"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod\nspec:\n  nodeName: a\n  nodeName: b\n", "f.yaml:4:3: not YAML: nodeName: given twice, remove one"),
        ("kind: Pod\nmetadata: {labels: {a: b, a: c}}\n", "f.yaml:2:27: not YAML: a: given twice, remove one"),
        ("kind: Pod\n---\nkind: Pod\nkind: Job\n", "f.yaml:4:1: not YAML: kind: given twice, remove one"),
    ],
    ids=["block", "flow", "second document"],
)
def test_key_that_is_given_twice_is_told_with_its_place(text: str, message: str) -> None:
    """F83: kubectl refuses it too, where one of the two would be lost in silence."""
    with pytest.raises(SnapshotError) as raised:
        read_snapshot("f.yaml", text.encode())

    assert str(raised.value).startswith(message)
