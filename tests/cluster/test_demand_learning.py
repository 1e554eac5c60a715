# SPDX-License-Identifier: Apache-2.0
"""The expected demand counts each pod once, is renewed at intervals, and costs nothing where no policy looks ahead."""

from itertools import pairwise

from app.cluster.demand_learning import DEMANDS_KEPT, FIRST_LESSON, LONGEST_LESSON, PODS_KEPT, DemandLearning
from app.cluster.state import State
from app.kube.pod_limits import LONGEST_NAME
from app.kube.pods import Pod, read_pod
from app.policy.demand import Demand
from app.policy.expected_demand import DemandClass, ExpectedDemand
from tests.builders import container, demand, knowledge, node_document, pod, policies, policy

AHEAD = policies(policy("p", "placement: {scores: [{name: Fragmentation}]}"))
BLIND = policies(policy("p", "placement: {scores: [{name: Packing}]}"))
GPU = "nvidia.com/gpu"


def cpu_pod(uid: str, cpu: str = "2") -> Pod:
    made = pod(container({GPU: "1"}, {GPU: "1", "cpu": cpu}))
    made["metadata"]["uid"] = uid
    return read_pod(made)


def learn(learning: DemandLearning, question: Pod, pod_demand: Demand) -> Demand:
    """Learn from a pod as a verb of the extender does, and return the demand by which the verb answers."""
    expecting = learning.expecting(question, pod_demand)
    learning.learn(question, expecting)
    return expecting


def test_pod_is_counted_once_however_often_it_is_asked_about() -> None:
    """F52: filter and prioritize ask about it, and again for as long as it waits."""
    learning, pod_demand = DemandLearning(lambda: {"t4": 1000}), demand(pod(), AHEAD)
    for _ in range(2 * FIRST_LESSON):
        learn(learning, cpu_pod("u"), pod_demand)

    assert learning.expected_demand is None

    for number in range(FIRST_LESSON):
        learn(learning, cpu_pod(str(number), "4" if number % 2 else "2"), pod_demand)

    assert learning.expected_demand is not None
    assert {ask for ask, _ in learning.expected_demand.classes} == {DemandClass(2000, 1), DemandClass(4000, 1)}
    assert dict(learning.expected_demand.free) == {"t4": 1000}
    assert learning.expecting(cpu_pod("u"), pod_demand).expected_demand is learning.expected_demand
    assert learning.expecting(cpu_pod("u"), pod_demand) is learning.expecting(cpu_pod("u"), pod_demand)


def test_demand_that_does_not_look_ahead_is_left_alone() -> None:
    """F52: pods that differ only in CPU then share their verdicts."""
    learning, pod_demand = DemandLearning(dict), demand(pod(), BLIND)
    for number in range(2 * FIRST_LESSON):
        assert learn(learning, cpu_pod(str(number), str(number)), pod_demand) is pod_demand

    assert learning.expected_demand is None


def test_outlook_is_renewed_ever_more_rarely_and_never_too_rarely() -> None:
    """F52: after each renewal all nodes are judged again."""
    learning = DemandLearning(dict)
    renewed = [number for number in range(1, 12_001) if learning.arrived(DemandClass(gpus=1))]

    gaps = [after - before for before, after in pairwise(renewed)]
    assert renewed[0] == FIRST_LESSON
    assert gaps == sorted(gaps)
    assert gaps[-1] == LONGEST_LESSON
    assert len(renewed) < 40


def test_what_is_remembered_is_bounded() -> None:
    """F125: each question has other CPU and another UID, some with UIDs that no API server makes."""
    learning, pod_demand = DemandLearning(dict), demand(pod(), AHEAD)
    for number in range(PODS_KEPT + 100):
        learn(learning, cpu_pod(str(number), str(number)), pod_demand)
    learn(learning, cpu_pod("u" * LONGEST_NAME), pod_demand)

    assert len(learning._pods) == PODS_KEPT
    assert len(learning._demands) <= DEMANDS_KEPT


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


def test_outlooks_are_told_apart_by_identity() -> None:
    assert ExpectedDemand(()) != ExpectedDemand(())
