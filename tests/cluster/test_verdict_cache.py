# SPDX-License-Identifier: Apache-2.0
"""Cached verdicts equal those of the plain engine for every demand, after every change; large rulings are not kept."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kube.pods import read_pod
from app.placement.engine import judge, total
from app.policy.demand import Demand, DemandClass, ExpectedDemand
from app.policy.match import Ruling
from app.policy.schema_placement import ScorerName
from app.world import verdict_cache
from app.world.state import State
from app.world.verdict_cache import DEMANDS_KEPT, VerdictCache, VerdictTable
from app.world.world import LARGEST_KEPT, RulingCache
from tests.builders import demand, gpus, knowledge, node_document, pod, policies, policy, shipped
from tests.placement.expected_demands import expected_from_classes

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
NAMES = ("a", "b", "c", "d", "e")
UNKNOWN = "nowhere"
WARNING = policies(policy("w", "action: Warn, placement: {products: {allow: [H200]}}"))
EXPECTED = expected_from_classes([DemandClass(cpu_milli=8000, gpus=1), DemandClass(cpu_milli=4000, gpus=4)])
DEMANDS: dict[str, Demand] = {
    "no GPU": demand(pod(gpus(0))),
    "one": demand(pod()),
    "two exclusive": demand(pod(gpus(2), annotations={"sharing": "Exclusive", "gpu-memory": "40Gi"})),
    "a slice": demand(pod(gpus(1, SLICE))),
    "a shared one": demand(pod(annotations={"sharing": "Shared"})),
    "an image": demand(pod(gpus(1, image="nvcr.io/nvidia/pytorch:24.05-py3"))),
    "warned of": demand(pod(), WARNING),
    "unreadable": demand(pod(annotations={"cuda": "new"})),
    "leaving room": replace(demand(pod(gpus(2))), cpu_milli=4000, expected_demand=EXPECTED),
    "CPU alone, leaving room": replace(demand(pod(gpus(0))), cpu_milli=4000, expected_demand=EXPECTED),
    "beside its group": replace(
        demand(pod()),
        group_cliques=frozenset({"clique-1"}),
        scores=((ScorerName.NVLinkDomain, 2), (ScorerName.Fragmentation, 3), (ScorerName.Packing, 1)),
    ),
}
MAKES: tuple[dict[str, Any], ...] = (
    {},
    {"labels": {"nvidia.com/gpu.clique": "clique-1"}},
    {"labels": {"nvidia.com/gpu.clique": "clique-2"}},
    {"offers": {GPU: 8, "cpu": 16}},
    {"offers": {GPU: 8, "cpu": 9}},
    {"product": "Tesla-T4", "driver": "470.57.02", "offers": {GPU: 4}},
    {"product": "NVIDIA-A10-SHARED", "offers": {GPU: 16}},
    {"offers": {GPU: 0, SLICE: 7}, "labels": {"nvidia.com/mig.config.state": "success"}},
    {"offers": {GPU: 0, SLICE: 7}, "labels": {"nvidia.com/mig.config.state": "pending"}},
    {"offers": {GPU: 0}},
    {"product": None, "driver": None, "offers": {}},
)


def bound(uid: str, name: str, amount: int, resource: str, cores: int) -> dict[str, Any]:
    """Write a running pod."""
    made = pod(gpus(amount, resource), nodeName=name)
    made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(cores)
    return {**made, "metadata": {"name": uid, "namespace": "team-a", "uid": uid}, "status": {"phase": "Running"}}


CHANGES = st.one_of(
    st.tuples(
        st.just("put_node"),
        st.builds(lambda name, make: node_document(name, **make), st.sampled_from(NAMES), st.sampled_from(MAKES)),
    ),
    st.tuples(st.just("drop_node"), st.sampled_from(NAMES)),
    st.tuples(
        st.just("put_pod"),
        st.builds(
            bound,
            st.sampled_from(["p", "q", "r"]),
            st.sampled_from(NAMES),
            st.integers(0, 9),
            st.sampled_from([GPU, SLICE]),
            st.sampled_from([0, 1, 6]),
        ),
    ),
    st.tuples(st.just("drop_pod"), st.sampled_from(["p", "q", "r"])),
)


def change(state: State, event: tuple[str, Any]) -> None:
    getattr(state, event[0])(event[1])


def table_contents(appraisal: VerdictTable) -> tuple[Any, ...]:
    """Return all that a verdict table says of the nodes."""
    totals = dict(zip(NAMES, appraisal.totals(NAMES), strict=True))
    return set(appraisal.feasible), dict(appraisal.failed), dict(appraisal.unresolvable), totals


def computed_from_scratch(pod_demand: Demand, state: State, recount: bool) -> tuple[Any, ...]:
    """Return the same by judging every node anew."""
    verdicts = {name: judge(pod_demand, node, recount) for name, node in state.nodes.items()}
    refused = {name: verdict for name, verdict in verdicts.items() if verdict is not None}
    totals = {name: total(pod_demand, state.nodes[name]) if name in state.nodes else 0.0 for name in NAMES}
    return (
        verdicts.keys() - refused.keys(),
        {name: verdict.message for name, verdict in refused.items() if verdict.preemptible},
        {name: verdict.message for name, verdict in refused.items() if not verdict.preemptible},
        totals,
    )


ASKED = st.lists(st.sampled_from((*NAMES, UNKNOWN)), max_size=8)


@given(st.lists(st.tuples(CHANGES, st.sampled_from(sorted(DEMANDS)), ASKED, st.booleans()), max_size=40))
@settings(max_examples=50, deadline=None)
def test_fitting_nodes_are_those_that_the_plain_engine_accepts_with_their_totals(
    steps: list[tuple[tuple[str, Any], str, list[str], bool]],
) -> None:
    """P24: any names are asked about, in any order, also twice and of no node; sometimes prioritize asks as well."""
    state = State(knowledge())
    appraisals = VerdictCache(state, True)
    for event, wish, names, scored in steps:
        change(state, event)
        appraisal, pod_demand = appraisals.of(DEMANDS[wish]), DEMANDS[wish]
        if scored:
            appraisal.totals(names)

        kept, totals, lost = appraisal.fitting(names)

        fits = [name in state.nodes and judge(pod_demand, state.nodes[name], True) is None for name in names]
        assert list(kept) == [name for name, fit in zip(names, fits, strict=True) if fit]
        assert list(lost) == [name for name, fit in zip(names, fits, strict=True) if not fit]
        assert totals == [total(pod_demand, state.nodes[name]) for name in kept]


@given(st.lists(st.tuples(CHANGES, st.integers(0, 3), st.integers(1, 3)), max_size=30))
@settings(max_examples=50, deadline=None)
def test_demands_that_expect_other_pods_share_verdicts_and_have_their_own_totals(
    steps: list[tuple[tuple[str, Any], int, int]],
) -> None:
    """F52: each lesson about the workload makes a new demand, whose nodes are not judged again."""
    state = State(knowledge())
    appraisals = VerdictCache(state, True)
    for event, lesson, cores in steps:
        change(state, event)
        expected = ExpectedDemand(((DemandClass(1000, lesson, 0), 1.0),), ()) if lesson else None
        pod_demand = replace(DEMANDS["one"], cpu_milli=1000 * cores, expected_demand=expected)

        appraisal = appraisals.of(pod_demand)

        assert computed_from_scratch(pod_demand, state, True) == table_contents(appraisal)
        assert appraisal.feasible is appraisals.of(DEMANDS["one"]).feasible


@pytest.mark.parametrize("recount", [True, False], ids=["counting", "leaving counts to the scheduler"])
@given(st.lists(st.tuples(CHANGES, st.sampled_from(sorted(DEMANDS))), max_size=40))
@settings(max_examples=50, deadline=None)
def test_appraisal_of_every_demand_equals_the_plain_engine_after_every_change(
    recount: bool, steps: list[tuple[tuple[str, Any], str]]
) -> None:
    """P24, P48, P20: demands are asked in turn, and each is renewed only over the changes since its last use."""
    state = State(knowledge())
    appraisals = VerdictCache(state, recount)
    for event, name in steps:
        change(state, event)

        appraisal = appraisals.of(DEMANDS[name])

        assert computed_from_scratch(DEMANDS[name], state, recount) == table_contents(appraisal)
        assert {*appraisal.failed.values(), *appraisal.unresolvable.values()} <= appraisal.codes.keys()


def test_names_that_are_no_nodes_leave_nothing_behind() -> None:
    """F125: questions about nodes that do not exist, or no longer do, must not fill the memory."""
    state = State(knowledge())
    state.put_node(node_document("a"))
    appraisal = VerdictCache(state, True).of(DEMANDS["one"])
    weighed = [appraisal.totals(["a", f"nowhere-{number}"]) for number in range(50)]

    state.put_node(node_document("b"))
    appraisal.renew()
    appraisal.totals(["a", "b"])
    state.drop_node("b")
    appraisal.renew()

    assert weighed == [[total(DEMANDS["one"], state.nodes["a"]), 0.0]] * 50
    assert (list(appraisal._weighed), list(appraisal._others)) == (["a"], [])


def test_equal_demands_share_one_appraisal() -> None:
    """P24, P48: a Demand is hashable, and pods of one Job share a table (docs/reference/listeners.md#state)."""
    appraisals = VerdictCache(State(knowledge()), True)

    assert appraisals.of(demand(pod(gpus(2)))) is appraisals.of(demand(pod(gpus(2))))
    assert appraisals.of(demand(pod(gpus(2)))) is not appraisals.of(demand(pod(gpus(3))))


def test_demand_asked_longest_ago_is_forgotten_and_one_in_use_is_kept() -> None:
    appraisals = VerdictCache(State(knowledge()), True)
    used, idle = demand(pod(gpus(1000))), demand(pod(gpus(1001)))
    first_of_used, first_of_idle = appraisals.of(used), appraisals.of(idle)
    for amount in range(1, DEMANDS_KEPT):
        appraisals.of(demand(pod(gpus(amount))))
        appraisals.of(used)

    assert first_of_used is appraisals.of(used)
    assert first_of_idle is not appraisals.of(idle)


def test_alike_nodes_are_judged_and_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """P24: at the first sight of a demand a fleet costs its different nodes, not all of them."""
    state = State(knowledge())
    for number in range(60):
        state.put_node(node_document(f"node-{number}", offers={GPU: 8, "cpu": 16}))
        state.put_pod(bound(f"pod-{number}", f"node-{number}", number % 3, GPU, number % 2))
    calls = {"judge_free": 0, "total_by_cpu": 0}
    for module, name in ((verdict_cache, "judge_free"), (verdict_cache, "total_by_cpu")):
        monkeypatch.setattr(module, name, counted(name, getattr(module, name), calls))

    VerdictCache(state, True).of(DEMANDS["leaving room"]).totals(list(state.nodes))

    assert calls == {"judge_free": 3, "total_by_cpu": 3}


def counted(name: str, function: Callable[..., Any], calls: dict[str, int]) -> Callable[..., Any]:
    """Return the same function, which counts its calls."""

    def call(*facts: Any) -> Any:
        calls[name] += 1
        return function(*facts)

    return call


def ruled(rulings: RulingCache, document: dict[str, Any]) -> Ruling:
    return rulings.of(read_pod(document), {}, shipped(), State(knowledge()))


def test_pods_of_one_template_share_a_ruling() -> None:
    rulings = RulingCache()

    assert ruled(rulings, pod()) is ruled(rulings, pod())


@pytest.mark.parametrize(("place", "size"), [("label", 300_000), ("annotation", 200_000), ("env", 32_000)])
def test_huge_template_is_ruled_on_and_forgotten(place: str, size: int) -> None:
    """F125, fault 50: a thousand pods of the largest accepted size once stayed in memory."""
    assert size > LARGEST_KEPT
    rulings = RulingCache()
    tracemalloc.start()
    for number in range(8):
        text = f"{number}{'x' * size}"
        container = gpus(1)
        document = pod(container, annotations={"products": text} if place == "annotation" else None)
        if place == "label":
            document["metadata"]["labels"] = {"a": text}
        elif place == "env":
            container["env"] = [{"name": "NVIDIA_REQUIRE_CUDA", "value": text}]
        ruled(rulings, document)
    del text, document, container
    size_kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size_kept < 3 * size
