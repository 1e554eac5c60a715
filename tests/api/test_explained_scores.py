# SPDX-License-Identifier: Apache-2.0
"""Explain and prioritize agree on the best node and on every score, whatever pods came before."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.demo.sample_fleets import demo_fleet
from app.explain.pending_pod import explain
from app.server.service import Service
from app.values.computations import finish
from tests.builders import container, make_service, node_document, pod, policies, policy
from tests.finished import filter_nodes, prioritize

GPU = "nvidia.com/gpu"
GROUP = {"jobset.sigs.k8s.io/jobset-name": "train"}
SHAPES = st.tuples(
    st.sampled_from(["1", "2", "4", "8"]),
    st.sampled_from(["500m", "2", "6", "31"]),
    st.sampled_from([{}, {"gpu-memory": "8Gi"}]),
    st.sampled_from([{}, GROUP]),
)
HISTORIES = st.lists(st.tuples(SHAPES, st.integers(1, 40)), max_size=4)
"""Kinds of pods, and how many of each come one after the other. The expected demand is made after 32 pods."""
Shape = tuple[str, str, Mapping[str, str], Mapping[str, str]]


def document_of(shape: Shape, uid: str) -> dict[str, Any]:
    gpus, cpu, annotations, labels = shape
    made = pod(container({GPU: gpus}, {GPU: gpus, "cpu": cpu}), annotations=annotations)
    made["metadata"] |= {"uid": uid, "labels": dict(labels)}
    return made


def ask(service: Service, document: Mapping[str, Any], names: list[str]) -> dict[str, int]:
    """Call filter and prioritize as kube-scheduler does, and return the scores by node."""
    filtered = json.loads(filter_nodes(json.dumps({"Pod": document, "NodeNames": names}).encode(), service).body)
    question = json.dumps({"Pod": document, "NodeNames": filtered["NodeNames"]}).encode()
    return {score["Host"]: score["Score"] for score in json.loads(prioritize(question, service).body)}


@pytest.mark.parametrize("fleet", ["weekday", "mixed", "shared"])
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=HISTORIES, shape=SHAPES, again=st.booleans())
def test_explain_shows_the_scores_of_prioritize(
    fleet: str, history: list[tuple[Shape, int]], shape: Shape, again: bool, tmp_path: Path
) -> None:
    """F52, F83: the expected demand, a promise to the pod itself and its group count for both alike."""
    service = make_service(tmp_path, demo_fleet(fleet))
    names = list(service.nodes)
    for kind, (before, count) in enumerate(history):
        for number in range(count):
            ask(service, document_of(before, f"{kind}-{number}"), names)
    document = document_of(shape, "asked")
    if again:  # a node is then promised to the pod already
        ask(service, document, names)

    explained = finish(explain(document, service.world_copied(), by_node=True))
    fitting = [verdict.node for verdict in explained.verdicts or () if verdict.fits]
    scored = ask(service, document, fitting)

    assert {best.node: best.score for best in explained.best} == {
        best.node: scored[best.node] for best in explained.best
    }
    assert not fitting or explained.best[0].score == max(scored.values()) == 10


def test_pods_of_the_same_group_count_for_both(tmp_path: Path) -> None:
    """F54: one of two NVLink domains has a pod of the group; the explained pod itself does not count."""
    nodes = [
        node_document(name, offers={GPU: 8, "cpu": 32}, labels={"nvidia.com/gpu.clique": f"rack.{name}"})
        for name in ("a", "b")
    ]
    mate = document_of(("1", "1", {}, GROUP), "mate")
    mate = {**mate, "spec": {**mate["spec"], "nodeName": "a"}, "status": {"phase": "Running"}}
    drawn = policies(policy("p", "placement: {scores: [{name: NVLinkDomain}]}"))
    service = make_service(tmp_path, [*nodes, mate], drawn)
    document = document_of(("1", "1", {}, GROUP), "asked")

    best = finish(explain(document, service.world_copied())).best

    assert {node.node: node.score for node in best} == ask(service, document, ["a", "b"]) == {"a": 10, "b": 0}


def test_promise_to_the_pod_itself_is_not_in_its_way(tmp_path: Path) -> None:
    """F48: the pod declares 10 of the one shared GPU's 15 GiB, which were promised to it before."""
    labels = {"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.replicas": "4"}
    service = make_service(tmp_path, [node_document("n", "Tesla-T4-SHARED", offers={GPU: 4, "cpu": 32}, labels=labels)])
    document = document_of(("1", "1", {"gpu-memory": "10Gi"}, {}), "asked")
    first = ask(service, document, ["n"])
    other = document_of(("1", "1", {"gpu-memory": "10Gi"}, {}), "other")

    assert first == ask(service, document, ["n"]) == {"n": 10}
    assert [node.node for node in finish(explain(document, service.world_copied())).best] == ["n"]
    assert not finish(explain(other, service.world_copied())).best
