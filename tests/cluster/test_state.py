# SPDX-License-Identifier: Apache-2.0
"""The cluster state: after any events in any order it equals a count made from scratch."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cluster.files import shipped_policies
from app.cluster.listing import identity
from app.cluster.policy_watch import PolicyBook
from app.cluster.snapshot import fill
from app.cluster.watched_kinds import core_kinds, dra_kinds, policy_kinds, taint_rule_kinds, topology_kinds
from app.kube.admission_objects import ADMISSION_KINDS
from app.kube.gpu_usage import read_gpu_usage
from app.kube.pod_object import pod_object
from app.kube.pods import gpu_amounts, read_pod
from app.kube.records import read_record
from app.nodes.gpu_health import Health
from app.placement.engine import judge
from app.values.errors import MalformedPod
from app.world.fleet_facts import FleetFacts, NodeGroup, fleet_facts_of
from app.world.state import CLASSES_SPARE, State
from app.world.verdict_cache import CHANGES_KEPT, VerdictTable
from app.world.world import world_of
from tests.builders import demand, gpus, knowledge, node_document, pod

NODES = [
    ("a", "NVIDIA-H100-80GB-HBM3", {"nvidia.com/gpu": 8}),
    ("a", "NVIDIA-H100-80GB-HBM3", {"nvidia.com/gpu": 4}),
    ("b", "NVIDIA-H100-80GB-HBM3", {"nvidia.com/gpu": 8, "cpu": 16}),
    ("b", "Tesla-T4", {"nvidia.com/gpu": 4}),
    ("b", None, {}),
    ("c", "NVIDIA-A10", {"nvidia.com/gpu": 2, "nvidia.com/mig-1g.10gb": 1}),
    ("d", "NVIDIA-A10-SHARED", {"nvidia.com/gpu": 16}),
]
Event = tuple[str, Any]


def bound(uid: str, node: str | None, amount: int, phase: str) -> dict[str, Any]:
    made = pod(gpus(amount), nodeName=node)
    made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(8 - amount)
    made["metadata"] |= {"uid": uid, "name": uid}
    return {**made, "status": {"phase": phase}}


EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.tuples(
        st.just("put_node"), st.sampled_from(NODES).map(lambda make: node_document(make[0], make[1], offers=make[2]))
    ),
    st.tuples(st.just("drop_node"), st.sampled_from("abcd")),
    st.tuples(
        st.just("put_pod"),
        st.builds(
            bound,
            st.sampled_from(["p", "q", "r", "s"]),
            st.sampled_from(["a", "b", "c", "d", None]),
            st.integers(0, 5),
            st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        ),
    ),
    st.tuples(st.just("drop_pod"), st.sampled_from(["p", "q", "r", "s"])),
)


def state_after(events: list[Event]) -> State:
    state = State(knowledge())
    for name, argument in events:
        getattr(state, name)(argument)
    return state


def last_seen(events: list[Event], put: str, drop: str, key: Any) -> dict[str, Any]:
    """Reduce events to the objects that exist at the end, in the plainest way."""
    alive: dict[str, Any] = {}
    for name, argument in events:
        if name == put:
            alive[key(argument)] = argument
        elif name == drop:
            alive.pop(argument, None)
    return alive


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_order_of_events_equals_a_count_from_scratch(events: list[Event]) -> None:
    """P22, P25, P46."""
    nodes = last_seen(events, "put_node", "drop_node", lambda node: node["metadata"]["name"])
    pods = last_seen(events, "put_pod", "drop_pod", lambda made: made["metadata"]["uid"])
    expected = {}
    for name, document in nodes.items():
        for resource, amount in document["status"]["allocatable"].items():
            if resource == "cpu":
                continue
            held = [
                int(made["spec"]["containers"][0]["resources"]["limits"].get(resource, 0))
                for made in pods.values()
                if made["spec"].get("nodeName") == name and made["status"]["phase"] not in ("Succeeded", "Failed")
            ]
            expected[name, resource] = int(amount) - sum(held)

    state = state_after(events)

    assert expected == {
        (node.name, key): units for node in state.nodes.values() for key, units in node.free.units.items()
    }


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=80, deadline=None)
def test_free_resources_are_shared_and_their_sums_are_those_of_all_nodes(events: list[Event]) -> None:
    """F109: equal free resources are one object, and admission reads the sums of a fresh count."""
    state = state_after(events)
    nodes = state.nodes.values()
    expected = fleet_facts_of(nodes, {}, knowledge())
    facts = state.fleet()

    assert all(node.free is other.free for node in nodes for other in nodes if node.free == other.free)
    assert {node.name: state.node_requests.cpu_left(node) for node in nodes} == {
        node.name: node.free_cpu_milli for node in nodes
    }
    assert set(map(sum_of_group(expected), expected.free)) == {sum_of_group(facts)(key) for key in facts.free}


def sum_of_group(facts: FleetFacts) -> Callable[[tuple[NodeGroup, str]], tuple[Any, ...]]:
    """Return the content of an entry of `free`, whose groups are compared by identity."""
    return lambda key: (key[0].node_class, key[0].taints, key[0].labels, key[1], facts.free[key])


def test_classes_that_no_node_has_any_more_are_let_go_and_the_verdicts_on_them_too() -> None:
    """F125: months of label changes must not cost memory; a node class that comes back gets a new id."""
    state = state_after([("put_node", node_document("a")), ("put_node", node_document("b", "Tesla-T4"))])
    node_class = state.nodes["b"].node_class
    appraisal = VerdictTable(demand(pod()), state, recount=True)
    most = 2 * (CLASSES_SPARE + 2 * len(state.nodes))

    for number in range(1, 3 * CLASSES_SPARE):
        state.put_health("a", Health(ailing=number) if number % 2 else Health(ill=8, ailing=number))
        if number > CLASSES_SPARE / 2:  # so that it knows some of the classes that the state drops
            appraisal.renew()
            assert ("a" in appraisal.feasible) == (judge(appraisal.demand, state.nodes["a"], recount=True) is None)

    assert len(state._classes) < most
    assert max(len(appraisal._verdicts._classes), len(appraisal.codes)) < most
    assert state.nodes["b"].node_class is node_class is state.intern(node_class)


def test_reader_that_is_too_far_behind_names_over() -> None:
    state = state_after([("put_node", node_document("a"))])
    pod_demand = demand(pod())
    appraisal = VerdictTable(pod_demand, state, recount=True)
    appraisal.renew()
    for _ in range(CHANGES_KEPT + 5):
        state.put_node(node_document("b"))
    state.drop_node("a")

    appraisal.renew()

    assert state.changes.since(1) is None
    assert {"b"} == appraisal.feasible


def test_pod_recreated_under_its_name_is_another_pod() -> None:
    """P25: pods are distinguished by UID."""
    state = state_after([("put_node", node_document("a")), ("put_pod", bound("old", "a", 3, "Running"))])
    state.put_pod(bound("new", "a", 2, "Running"))
    state.drop_pod("old")

    assert state.nodes["a"].free.units == {"nvidia.com/gpu": 6}


AMOUNTS = st.sampled_from(["0", "1", "2", "8", "1k", "500m", "1e1", "2.0", 3, "-1", "12345678901"])
RESOURCES = st.dictionaries(st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "cpu"]), AMOUNTS, max_size=3)
CONTAINERS = st.lists(
    st.fixed_dictionaries({}, optional={"limits": RESOURCES, "requests": RESOURCES}).map(
        lambda resources: {"name": "c", "resources": resources}
    ),
    max_size=3,
)


@given(CONTAINERS, CONTAINERS, st.booleans())
@settings(max_examples=200)
def test_quick_sum_of_what_a_pod_holds_is_the_exact_one(
    containers: list[dict[str, Any]], init: list[dict[str, Any]], sidecar: bool
) -> None:
    """F16, F17: whole numbers in plain containers are summed without fractions."""
    started = [{**init_container, "restartPolicy": "Always"} if sidecar else init_container for init_container in init]
    document = pod(*(containers or [gpus(0)]), initContainers=started, nodeName="n")
    exact = gpu_amounts(read_pod(document), knowledge().families.of)

    usage = read_gpu_usage(pod_object(document), knowledge())

    assert exact == (usage.units if usage else ())


@pytest.mark.parametrize("second", ["x", {"resources": 3}, {"resources": {"limits": ["nvidia.com/gpu"]}}], ids=str)
def test_bound_pod_of_a_wrong_shape_behind_its_first_gpu_is_malformed(second: Any) -> None:
    """F125: the quick reader once checked the first container's shape alone, as the fuzzer showed."""
    document = pod(gpus(1))
    document["spec"] |= {"nodeName": "n", "containers": [*document["spec"]["containers"], second]}

    with pytest.raises(MalformedPod, match=r"spec.containers\[1\]"):
        read_gpu_usage(pod_object(document), knowledge())


def test_every_watched_object_is_known_by_its_name_and_uid() -> None:
    """F109: whatever declares its kind."""
    state, book = State(knowledge()), PolicyBook(shipped_policies(), knowledge(), lambda: "2026-11-27")
    kinds = (*core_kinds(state, book, "x"), *dra_kinds(state, "v1"), *taint_rule_kinds(state, "v1beta2"))
    kinds = (*kinds, *topology_kinds(state, "v1alpha2"), *policy_kinds(book, "v1beta1"))
    document = {"metadata": {"namespace": "a", "name": "n", "uid": "u"}, "spec": {}}

    known = {kind.name: identity(msgspec.json.decode(msgspec.json.encode(document), type=kind.shape)) for kind in kinds}

    assert set(known.values()) == {("a/n", "u")}, known


LIMITS: tuple[dict[str, Any], ...] = (
    {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "a"}, "spec": {"hard": {"pods": "1"}}},
    {"kind": "LimitRange", "metadata": {"name": "l", "namespace": "a"}, "spec": {"limits": [{"type": "Pod"}]}},
    {"kind": "PriorityClass", "metadata": {"name": "p"}, "value": 1},
    {"kind": "ServiceAccount", "metadata": {"name": "s", "namespace": "a"}},
)


def test_objects_of_the_api_servers_admission_are_read_alike_from_a_watch_and_a_snapshot() -> None:
    watched, filled = State(knowledge()), State(knowledge())
    book = PolicyBook(shipped_policies(), knowledge(), lambda: "2026-11-27")
    kinds = [
        kind
        for kind in core_kinds(watched, book, "x")
        if kind.name.startswith(("resourceq", "limit", "service", "prio"))
    ]

    fill(filled, list(LIMITS))
    for kind, document in zip(kinds, LIMITS, strict=True):
        metadata = document["metadata"]
        key = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
        kind.put(key, "uid", kind.read(read_record(kind.shape, document)))
        kind.listed()

    assert [kind.needed for kind in kinds] == [False] * len(ADMISSION_KINDS)
    assert watched.admission_objects.by_kind == filled.admission_objects.by_kind
    assert watched.admission_objects.listed == filled.admission_objects.listed == set(ADMISSION_KINDS)
    copied = world_of(watched, book.current).copied().admission_objects
    kinds[0].drop("a/q", "uid")
    assert (watched.admission_objects.inside("ResourceQuota", "a"), len(copied.inside("ResourceQuota", "a"))) == ([], 1)
