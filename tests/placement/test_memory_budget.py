# SPDX-License-Identifier: Apache-2.0
"""The memory of shared GPUs: what bound pods declare, what is promised to other pods, and what evictions free."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from app.nodes.gpu_health import Health
from app.nodes.model import Node
from app.nodes.reading import read_node
from app.placement.engine import judge
from app.policy.needs import LEAST_MEMORY
from app.server.service import Service
from app.world.gpu_allocations import PROMISE_SECONDS
from tests.builders import container, demand, gpus, knowledge, make_service, node_document, pod, policies, policy
from tests.finished import filter_nodes, preempt, prioritize

GPU, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
MEMORY, REPLICAS = "nvidia.com/gpu.memory", "nvidia.com/gpu.replicas"
T4 = {MEMORY: "15360", REPLICAS: "4"}


def shared(name: str = "n", gpus_in_it: int = 1, **more: Any) -> dict[str, Any]:
    """Make a node of T4s with four time-sliced replicas each, which is 15,360 MiB for each GPU."""
    return node_document(name, "Tesla-T4-SHARED", offers={GPU: 4 * gpus_in_it}, labels=T4, **more)


def share(uid: str = "asking", declares: str | None = "4Gi", amount: int = 1, **more: Any) -> dict[str, Any]:
    """Make a pod that asks for replicas of a shared GPU."""
    made = pod(gpus(amount), annotations={"gpu-memory": declares} if declares else None, **more)
    made["metadata"] |= {"uid": uid, "name": uid}
    return made


def running(uid: str, node: str, declares: str | None = "4Gi", amount: int = 1) -> dict[str, Any]:
    return {**share(uid, declares, amount, nodeName=node), "status": {"phase": "Running"}}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """Make a service with one node of one shared T4, behind a scheduler that counts units itself."""
    return make_service(tmp_path, [shared()], recount="false")


def ask(service: Service, document: dict[str, Any], verb: Any = filter_nodes, names: tuple[str, ...] = ("n",)) -> Any:
    return json.loads(verb(json.dumps({"Pod": document, "NodeNames": list(names)}).encode(), service).body)


def fits(service: Service, document: dict[str, Any]) -> bool:
    return bool(ask(service, document)["NodeNames"])


def memory_left(node: Node, resource: str = GPU) -> int | None:
    return node.free.memory.get(resource)


SLICES = {MEMORY: "9856", "nvidia.com/mig-1g.10gb.replicas": "2", "nvidia.com/mig-1g.10gb.memory": "9856"}


@pytest.mark.parametrize(
    ("document", "resource", "budget"),
    [
        pytest.param(shared(gpus_in_it=2), GPU, 30720, id="two GPUs of four slices"),
        pytest.param(
            node_document(product="Tesla-T4", offers={SHARED: 8}, labels=T4), SHARED, 30720, id="renamed resource"
        ),
        pytest.param(node_document(product="Tesla-T4", offers={GPU: 4}), GPU, None, id="not shared"),
        pytest.param(
            node_document("n", "NVIDIA-XYZ-9000-SHARED", offers={GPU: 4}, labels={REPLICAS: "4"}), GPU, None,
            id="memory unknown",
        ),
        pytest.param(
            node_document("n", "NVIDIA-H100-80GB-HBM3", offers={f"{SLICE}.shared": 14}, labels=SLICES),
            f"{SLICE}.shared", 7 * 9856, id="seven shared slices",
        ),
        pytest.param(
            node_document("n", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED", offers={GPU: 14},
                          labels={MEMORY: "9984", REPLICAS: "2"}), GPU, 7 * 9984, id="strategy single, shared",
        ),
        pytest.param(
            node_document("n", None, None, {GPU: 8}, {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4",
                          "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                          "cloud.google.com/gke-max-shared-clients-per-gpu": "4"}), GPU, 30720, id="GKE without GFD",
        ),
    ],
)  # fmt: skip
def test_budget_is_the_memory_of_all_shared_gpus(document: dict[str, Any], resource: str, budget: int | None) -> None:
    """F65, F67 (docs/reference/sharing-and-memory.md#memory-budgets)."""
    assert memory_left(read_node(document, knowledge()), resource) == budget


def test_pods_that_declare_more_than_is_left_are_refused_for_now(service: Service) -> None:
    """F65: 15,360 MiB hold three pods of 4 GiB, and there is no tolerance."""
    for index in range(3):
        assert fits(service, share())
        service.state.put_pod(running(f"p{index}", "n"))

    refused = ask(service, share())
    assert refused["FailedNodes"] == {
        "n": "memory of the shared GPUs is promised to other pods: wants 4096 MiB on each of 1 " + GPU
    }
    assert fits(service, share(declares="3Gi"))
    assert fits(service, share(declares=None)), "who declares nothing counts nothing"
    service.state.drop_pod("p0")
    assert fits(service, share())


def test_need_of_a_policy_is_no_declaration() -> None:
    """F65: only what pods declare themselves counts, for the pod that asks and for the pods that run."""
    wanting = policies(policy("p", "placement: {gpuMemory: 10Gi}"))

    pod_demand = demand(share(declares=None), wanting)

    assert (LEAST_MEMORY.value(pod_demand), pod_demand.declared_mib) == (10240, 0)
    assert demand(share(declares="4Gi"), wanting).declared_mib == 4096


def test_pod_that_was_named_a_node_counts_before_the_watch_shows_it(service: Service) -> None:
    """P21, P46, F65: kube-scheduler asks for the next pod before the watch shows the last one (59 of 59 times).

    See docs/reference/control-plane.md#one-pod-late.
    """
    named = [fits(service, share(f"p{index}")) for index in range(5)]

    assert named == [True, True, True, False, False]


def test_winner_of_prioritize_is_promised_and_no_other(tmp_path: Path) -> None:
    """See docs/reference/sharing-and-memory.md#memory-budgets."""
    service = make_service(tmp_path, [shared("a"), shared("b")], recount="false")

    scores = ask(service, share(), prioritize, ("a", "b"))

    winner = max(scores, key=lambda host_priority: host_priority["Score"])["Host"]
    memory = {name: memory_left(node) for name, node in service.nodes.items()}
    assert memory == {"a": 15360, "b": 15360} | {winner: 15360 - 4096}


def test_filter_promises_the_node_that_it_names(tmp_path: Path) -> None:
    """30 pods go to four GPUs, and the memory of no GPU is promised twice.

    See docs/reference/sharing-and-memory.md#memory-budgets.
    """
    objects = [shared(f"n{index}") for index in range(4)]
    service = make_service(tmp_path, objects, recount="false", filter_answer="shortlist")
    names = tuple(service.nodes)

    answers = [ask(service, share(f"p{index}"), names=names)["NodeNames"] for index in range(30)]

    assert sum(map(len, answers)) == 12
    assert {memory_left(node) for node in service.nodes.values()} == {15360 - 3 * 4096}


def test_pod_that_asks_again_takes_its_own_place(service: Service) -> None:
    """A second call for the same pod replaces its promise (docs/reference/sharing-and-memory.md#memory-budgets)."""
    assert all(fits(service, share("same", "10Gi")) for _ in range(3))
    assert memory_left(service.nodes["n"]) == 15360 - 10240


def test_promise_ends_when_the_pod_is_seen_bound_or_gone(service: Service) -> None:
    """The memory of a pod is never counted twice (docs/reference/sharing-and-memory.md#memory-budgets)."""
    fits(service, share("a", "4Gi"))
    fits(service, share("b", "4Gi"))

    service.state.put_pod(running("a", "n", "4Gi"))
    service.state.drop_pod("b")

    assert memory_left(service.nodes["n"]) == 15360 - 4096


def test_promise_that_nothing_came_of_ends_after_half_a_minute(service: Service) -> None:
    """See docs/reference/sharing-and-memory.md#memory-budgets."""
    fits(service, share("a", "15Gi"))
    assert memory_left(service.nodes["n"]) == 0

    service.state.release("", now=service.filled + 1000)

    assert memory_left(service.nodes["n"]) == 15360


def test_overrun_is_seen_and_goes_with_its_cause(service: Service) -> None:
    """Other replicas can accept pods at the same time (docs/reference/sharing-and-memory.md#memory-budgets)."""
    for index in range(4):
        service.state.put_pod(running(f"p{index}", "n"))
    seen = set(service.state.overrun)

    service.state.drop_pod("p1")

    assert (seen, service.state.overrun) == ({"n"}, set())


def victims(service: Service, document: dict[str, Any], *uids: str) -> list[str]:
    """Call preempt with one node and these victims."""
    given_victims = {"n": {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1}}
    body = json.dumps({"Pod": document, "NodeNameToMetaVictims": given_victims}).encode()
    helpful = json.loads(preempt(body, service).body)["NodeNameToMetaVictims"]
    assert all(helpful[name] == given_victims[name] for name in helpful)
    return sorted(helpful)


def test_nobody_is_evicted_unless_that_frees_the_memory(service: Service) -> None:
    """F43: free filters that check more than the scheduler's counts must pass with the victims gone.

    See docs/reference/scores.md#preemption.
    """
    for uid, declares in (("large", "10Gi"), ("small", "1Gi"), ("silent", None)):
        service.state.put_pod(running(uid, "n", declares))

    assert victims(service, share(declares="8Gi"), "large") == ["n"]
    assert victims(service, share(declares="8Gi"), "small") == []
    assert victims(service, share(declares="8Gi"), "small", "silent") == []
    assert victims(service, share(declares="8Gi"), "somebody unknown") == []
    assert victims(service, share(declares="4Gi"), "silent") == ["n"], "there is memory; the scheduler wants its unit"


def test_one_share_of_an_mps_gpu_for_each_container_is_fine() -> None:
    """F68: the kubelet allocates devices container by container, and refuses two MPS replicas to one container."""
    made = node_document(
        "n", "Tesla-T4-SHARED", offers={GPU: 4}, labels={**T4, "nvidia.com/gpu.sharing-strategy": "mps"}
    )
    limits = {GPU: "1"}
    both = pod(container(limits, limits), {**container(limits, limits), "name": "other"})

    verdicts = [
        judge(demand(requested), read_node(made, knowledge()), recount=True) for requested in (both, pod(gpus(2)))
    ]

    assert [verdict and verdict.code.name for verdict in verdicts] == [None, "SharedReplicasAskedAsGPUs"]


def test_slice_that_is_time_sliced_under_its_own_name_is_not_exclusive() -> None:
    """F69: the labels say that nvidia.com/mig-1g.10gb is a replica on this node."""
    labels = {f"{SLICE}.sharing-strategy": "time-slicing", f"{SLICE}.replicas": "2"}
    made = read_node(node_document(offers={SLICE: 14}, labels=labels), knowledge())
    pod_demand = demand(pod(gpus(1, SLICE), annotations={"sharing": "Exclusive"}))

    refusal = judge(pod_demand, made, recount=True)

    assert refusal is not None
    assert refusal.code.name == "SharingNotAllowed"


def test_whole_nodes_are_judged_by_what_else_is_known_of_them(service: Service) -> None:
    """F42, F65, F72: the JSON of a Node does not tell what pods declare or that a GPU is unhealthy."""
    question = json.dumps({"Pod": share(declares="10Gi"), "Nodes": {"items": [shared()]}}).encode()
    before = json.loads(filter_nodes(question, service).body)

    service.state.put_pod(running("p", "n", "10Gi"))
    full = json.loads(filter_nodes(question, service).body)
    service.state.put_health("n", Health(ill=1))
    sick = json.loads(filter_nodes(question, service).body)

    assert [kept_node["metadata"]["name"] for kept_node in before["Nodes"]["items"]] == ["n"]
    assert "promised to other pods" in full["FailedNodes"]["n"]
    assert "must be drained" in sick["FailedAndUnresolvableNodes"]["n"]


def nominated(uid: str, declares: str) -> dict[str, Any]:
    return {**share(uid, declares), "status": {"phase": "Pending", "nominatedNodeName": "n"}}


def test_pod_that_waits_for_its_victims_has_its_memory_kept(service: Service) -> None:
    """F43: the next preemptor must not count on the memory that the first one will take.

    See docs/reference/sharing-and-memory.md#memory-budgets.
    """
    service.state.put_pod(running("victim", "n", "15Gi"))
    service.state.put_pod(nominated("first", "14Gi"))

    assert victims(service, share("second", "4Gi"), "victim") == []
    assert victims(service, share("first", "14Gi"), "victim") == ["n"]
    assert fits(service, nominated("first", "14Gi")) is False, "the victim is still there"
    assert memory_left(service.nodes["n"]) == 15360 - (15 + 14) * 1024, "and the place is still kept"

    service.state.drop_pod("victim")
    assert not fits(service, share("second", "4Gi"))
    assert fits(service, nominated("first", "14Gi"))


def test_nomination_outlasts_the_promise_of_a_later_question(service: Service) -> None:
    """F43: victims may take longer to end than a promise lasts, and the scheduler asks about the pod meanwhile."""
    service.state.put_pod(running("victim", "n", "15Gi"))
    service.state.put_pod(nominated("first", "14Gi"))
    assert not fits(service, nominated("first", "14Gi"))
    service.state.release("", time.monotonic() + 2 * PROMISE_SECONDS)
    service.state.drop_pod("victim")

    assert not fits(service, share("second", "4Gi"))


def test_nomination_ends_when_the_api_server_no_longer_shows_it(service: Service) -> None:
    """F43: only the nomination ends with the API object; a promise of gpu-usher itself stays."""
    service.state.put_pod(nominated("first", "14Gi"))
    service.state.put_pod({**share("first", "14Gi"), "status": {"phase": "Pending"}})
    assert memory_left(service.nodes["n"]) == 15360

    fits(service, share("other", "4Gi"))
    service.state.put_pod({**share("other", "4Gi"), "status": {"phase": "Pending"}})
    assert memory_left(service.nodes["n"]) == 15360 - 4096
