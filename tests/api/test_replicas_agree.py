# SPDX-License-Identifier: Apache-2.0
"""Replicas that have seen the same cluster give the same bytes, whatever their past (F52, decision 34)."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cluster.reflector import Reflector
from app.cluster.watched_kinds import core_kinds
from app.server.service import Service
from app.telemetry.metrics import Metrics
from tests.builders import container, make_service, node_document, pod, policies, policy
from tests.finished import filter_nodes, prioritize

GPU = "nvidia.com/gpu"
POLICIES = policies(
    policy("all", "placement: {scores: [{name: Fragmentation, weight: 5}, {name: Packing}]}"),
    policy("a", "match: {namespaceSelector: {matchLabels: {team: a}}}, placement: {products: {allow: [H100]}}"),
    policy("notebooks", "match: {workloadClass: [notebook]}, placement: {products: {deny: [H100]}}"),
)
PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-T4")
NODES = [node_document(f"n{number}", PRODUCTS[number % 3], offers={GPU: 8, "cpu": 64}) for number in range(9)]
NAMES = [node["metadata"]["name"] for node in NODES]
ANNOTATIONS: tuple[dict[str, str], ...] = ({}, {}, {"products": "T4"}, {"workload-class": "notebook"})
Event = tuple[str, dict[str, Any]]
Shape = tuple[int, int, dict[str, str], str]
"""GPUs, CPUs, annotations and namespace of a pod."""

SHAPES = st.tuples(
    st.sampled_from([1, 1, 2, 4, 8]), st.integers(1, 5), st.sampled_from(ANNOTATIONS), st.sampled_from(["a", "b"])
)
LIVES = st.lists(st.tuples(SHAPES, st.sampled_from(["waits", "runs", "runs", "finished", "deleted"])), max_size=30)


def document(uid: str, shape: Shape, **spec: str) -> dict[str, Any]:
    gpus, cpu, annotations, namespace = shape
    made = pod(container({GPU: str(gpus)}, {GPU: str(gpus), "cpu": str(cpu)}), annotations=annotations, **spec)
    return {**made, "metadata": {**made["metadata"], "name": uid, "uid": uid, "namespace": namespace}}


def life(uid: str, shape: Shape, end: str) -> list[Event]:
    """Return the events of a pod; the last one is what a list would show, or a deletion."""
    waiting = document(uid, (*shape[:2], {}, shape[3]) if end == "runs" else shape)
    running = document(uid, shape, nodeName=NAMES[hash(shape[:2]) % len(NAMES)])
    finished = {**running, "status": {"phase": "Succeeded"}}
    events = {"waits": [waiting], "runs": [waiting, running], "finished": [waiting, running, finished]}
    return [("MODIFIED", made) for made in events.get(end, [waiting, running])] + (
        [("DELETED", running)] if end == "deleted" else []
    )


class Replica:
    """A service that hears of a cluster through its reflectors, event by event."""

    def __init__(self, directory: Path, answer: str) -> None:
        self.service: Service = make_service(directory, [], POLICIES, filter_answer=answer)
        kinds = core_kinds(self.service.state, self.service.book, "gpu-usher")
        self._reflectors = {kind.name: Reflector(kind, None, Metrics()) for kind in kinds}  # type: ignore[arg-type]

    def hear(self, kind: str, event: Event) -> None:
        """Take one event of a watch."""
        self._reflectors[kind].apply_event(json.dumps({"type": event[0], "object": event[1]}).encode())

    def hear_all(self, lives: list[list[Event]], order: Random, asked: int) -> None:
        """Take all events in a random order, those of each object in theirs; be asked now and then."""
        queues = [("pods", [*events]) for events in lives]
        queues += [("nodes", [("ADDED", node)]) for node in NODES]
        queues += [("namespaces", [("ADDED", {"metadata": {"name": "a", "labels": {"team": "a"}}})])]
        while queues:
            place = order.randrange(len(queues))
            kind, events = queues[place]
            self.hear(kind, events.pop(0))
            if not events:
                del queues[place]
            if asked and order.randrange(asked) == 0:
                self.answers(f"earlier-{len(queues)}")

    def answers(self, uid: str) -> list[bytes]:
        """Return the answers to questions about three pods."""
        shapes: tuple[Shape, ...] = (1, 2, {}, "a"), (2, 4, {}, "b"), (4, 1, {"products": "T4,A100"}, "b")
        questions = [
            json.dumps({"Pod": document(f"{uid}-{number}", shape), "NodeNames": NAMES}).encode()
            for number, shape in enumerate(shapes)
        ]
        return [verb(question, self.service).body for question in questions for verb in (filter_nodes, prioritize)]


@pytest.mark.parametrize("answer", ["shortlist", "all"])
@settings(max_examples=8, deadline=None)
@given(lives=LIVES, seed=st.integers(0, 1 << 16))
def test_replicas_that_have_seen_the_same_cluster_give_the_same_bytes(
    answer: str, lives: list[Any], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """F52: one heard of everything and was asked all along, one in another order, one has started after a list."""
    lives = [*lives, *(((1 + number % 2, number % 3, {}, "b"), "runs") for number in range(40))]
    events = [life(str(number), *pod_life) for number, pod_life in enumerate(lives)]
    listed = [[last] for *_, last in events if last[0] != "DELETED"]
    directory = tmp_path_factory.getbasetemp() / "replicas"
    directory.mkdir(exist_ok=True)
    replicas = [Replica(directory, answer) for _ in range(3)]

    replicas[0].hear_all(events, Random(seed), asked=12)
    replicas[1].hear_all(events, Random(seed + 1), asked=0)
    replicas[2].hear_all(listed, Random(seed + 2), asked=0)

    assert replicas[0].answers("asked") == replicas[1].answers("asked") == replicas[2].answers("asked")
    assert replicas[2].service._learning.expected_demand(POLICIES) is not None
