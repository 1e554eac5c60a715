# SPDX-License-Identifier: Apache-2.0
"""The expected demand is learnt from the pods that exist, under the policies in force, and costs nothing elsewhere."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.kube.pods import Pod, read_pod
from app.placement.unusable_capacity import EXPECTED_DEMANDS_KEPT
from app.policy.demand import DemandClass, ExpectedDemand
from app.world.demand_learning import (
    DEMANDS_KEPT,
    LEAST_PODS,
    DemandLearning,
    ExpectedDemandCache,
)
from app.world.state import State
from tests.builders import container, demand, knowledge, make_service, node_document, pod, policies, policy

AHEAD = policies(policy("p", "placement: {scores: [{name: Fragmentation}]}"))
BLIND = policies(policy("p", "placement: {scores: [{name: Packing}]}"))
LIMITING = policies(
    policy("a", "match: {namespaceSelector: {matchLabels: {team: a}}}, placement: {products: {allow: [H100]}}"),
    policy("b", "match: {workloadClass: [notebook]}, placement: {products: {deny: [H100]}}"),
)
GPU = "nvidia.com/gpu"


def cpu_pod(uid: str, cpu: str = "2") -> Pod:
    return read_pod(waiting(uid, cpu))


def waiting(uid: str, cpu: str = "2", namespace: str = "team-a", **annotations: str) -> dict[str, Any]:
    made = pod(container({GPU: "1"}, {GPU: "1", "cpu": cpu}), annotations=annotations)
    return {**made, "metadata": {**made["metadata"], "name": uid, "uid": uid, "namespace": namespace}}


def state_of(*documents: dict[str, Any]) -> State:
    state = State(knowledge())
    for document in documents:
        state.put_pod(document)
    return state


def test_pods_are_expected_as_often_as_they_exist() -> None:
    """F52: those that wait count as those that run, each once, and from LEAST_PODS on."""
    state = state_of(*(waiting(str(number), "2" if number % 4 else "4") for number in range(LEAST_PODS - 1)))
    state.put_node(node_document("n", offers={GPU: 8}))
    learning = DemandLearning(state)
    assert learning.expected_demand(AHEAD) is None

    for _ in range(2):
        state.put_pod(bound("last", "2", "n", **{GPU: "1"}))
    expected_demand = learning.expected_demand(AHEAD)

    assert expected_demand is not None
    assert expected_demand.classes == ((DemandClass(2000, 1), 0.75), (DemandClass(4000, 1), 0.25))
    assert [product for product, _ in expected_demand.free] == ["h100-80gb-hbm3"]
    assert expected_demand.seen_milli == 1 << 14  # of 32,000, rounded
    asked = learning.expecting(demand(pod(), AHEAD), 2000, AHEAD)
    assert asked.expected_demand is expected_demand
    assert learning.expecting(demand(pod(), AHEAD), 2000, AHEAD) is asked


def test_pods_that_have_finished_are_expected_no_more() -> None:
    """F52: a replica that is started now would not know for long either; the last ones to go are forgotten with it."""
    running = [bound(str(number), "2", "n", **{GPU: "1"}) for number in range(LEAST_PODS)]
    state = state_of(*running)
    learning = DemandLearning(state)
    before = learning.expected_demand(AHEAD)

    state.put_pod({**running[0], "status": {"phase": "Succeeded"}})

    assert before is not None
    assert learning.expected_demand(AHEAD) is None
    state.put_pod(running[0])
    assert learning.expected_demand(AHEAD) is before
    state.drop_pod("1")
    assert learning.expected_demand(AHEAD) is None


def products(expected_demand: ExpectedDemand | None) -> dict[tuple[str, ...], float]:
    """The share of pods by the products that they accept, and by those that they refuse (with a minus)."""
    assert expected_demand is not None
    shares = by_products(expected_demand.classes)
    assert by_products(expected_demand.limits or ()) == {key: share for key, share in shares.items() if key}
    return shares


def by_products(classes: Iterable[tuple[DemandClass, float]]) -> dict[tuple[str, ...], float]:
    shares: dict[tuple[str, ...], float] = {}
    for wanted, share in classes:
        texts = [pattern.text for patterns in wanted.products for pattern in patterns]
        key = (*texts, *(f"-{pattern.text}" for pattern in wanted.denied_products))
        shares[key] = shares.get(key, 0.0) + share
    return shares


def test_limits_are_those_of_the_policies_in_force_in_the_namespace_as_labelled_now() -> None:
    """F52: policies and labels may come before the pods or after them."""
    kinds = [
        {"namespace": "a"},
        {"namespace": "other"},
        {"namespace": "other", "workload-class": "notebook"},
        {"namespace": "other", "products": "T4"},
    ]
    state = state_of(*(waiting(str(number), **kinds[number % 4]) for number in range(LEAST_PODS)))
    learning = DemandLearning(state)

    assert products(learning.expected_demand(AHEAD)) == {(): 0.75, ("T4",): 0.25}
    assert products(learning.expected_demand(LIMITING)) == {(): 0.5, ("T4",): 0.25, ("-H100",): 0.25}
    state.namespaces.put("a", {"team": "a"})
    assert products(learning.expected_demand(LIMITING)) == {(): 0.25, ("T4",): 0.25, ("-H100",): 0.25, ("H100",): 0.25}
    state.namespaces.drop("a")
    assert products(learning.expected_demand(LIMITING)) == {(): 0.5, ("T4",): 0.25, ("-H100",): 0.25}


def test_demand_that_does_not_look_ahead_is_left_alone(tmp_path: Path) -> None:
    """F52: pods that differ only in CPU then share their verdicts."""
    service = make_service(tmp_path, list(map(waiting, "abc")), BLIND)

    assert service.demand(cpu_pod("u")) == service.demand(cpu_pod("v", "4"))
    assert service.demand(cpu_pod("u")).cpu_milli == 0


def test_what_is_remembered_is_bounded() -> None:
    """F125: each question has other CPU, and each expected demand another class."""
    learning, pod_demand = DemandLearning(State(knowledge())), demand(pod(), AHEAD)
    for number in range(DEMANDS_KEPT + 100):
        learning.expecting(pod_demand, 1000 * number, AHEAD)
    cache = ExpectedDemandCache()
    made = [cache.of({DemandClass(gpus=1 + number): 1.0}, {}, {}, 1000) for number in range(2 * EXPECTED_DEMANDS_KEPT)]

    assert len(learning._demands) <= DEMANDS_KEPT
    assert len(cache._made) == EXPECTED_DEMANDS_KEPT
    assert cache.of({DemandClass(gpus=2 * EXPECTED_DEMANDS_KEPT): 2.0}, {}, {}, 1000) is made[-1]
    assert cache.of({}, {}, {}, 1000) is None


def bound(uid: str, cpu: str, node: str, **amounts: str) -> dict[str, object]:
    made = pod(container(requests={"cpu": cpu, **amounts}), nodeName=node)
    return {**made, "metadata": {"name": uid, "namespace": "team-a", "uid": uid}, "status": {"phase": "Running"}}


def test_cpu_that_is_left_of_a_gpu_node_follows_its_pods_in_whole_cores() -> None:
    """F52: pods come before their node, change and go; a tenth of a core changes nothing."""
    state = State(knowledge())
    state.put_pod(bound("first", "1500m", "a"))
    document = node_document("a")
    document["status"]["allocatable"]["cpu"] = "8"
    state.put_node(document)
    left = [state.nodes["a"].free_cpu_milli]
    generation = state.changes.generation
    state.put_pod(bound("small", "100m", "a"))
    assert state.changes.generation == generation

    state.put_pod(bound("first", "3", "a"))
    left.append(state.nodes["a"].free_cpu_milli)
    state.drop_pod("first")
    left.append(state.nodes["a"].free_cpu_milli)

    assert left == [6000, 4000, 7000]


def test_cpu_of_a_node_without_gpus_is_not_counted() -> None:
    """F52: a pod on it changes nothing (docs/reference/requirements.md#budgets)."""
    state = State(knowledge())
    state.put_node({"metadata": {"name": "cpu"}, "status": {"allocatable": {"cpu": "64"}}})
    generation = state.changes.generation

    state.put_pod(bound("p", "8", "cpu"))

    assert state.nodes["cpu"].free_cpu_milli is None
    assert state.changes.generation == generation
