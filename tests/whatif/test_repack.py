# SPDX-License-Identifier: Apache-2.0
"""`plan repack`: the fewest moves, against a brute force over all sequences of moves, and what it says about them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from app.cli.plan_pods import repacked
from app.cli.verbs import app
from app.values.errors import BadInput
from app.whatif import repack, repack_search
from app.whatif.repack import MOST_MOVES, Freed, Method
from tests.builders import shipped, state_of
from tests.whatif.repack_fleets import (
    GUARDS,
    KEPT,
    NOW,
    PUZZLES,
    BruteForce,
    Puzzle,
    check_plan,
    loss_of,
    objects_of,
    planned,
)

RUN = CliRunner()


@pytest.mark.parametrize("name", PUZZLES)
def test_puzzle_takes_as_few_moves_as_brute_force_finds(name: str) -> None:
    """F146: the known optimum, by the whole way from objects to plan."""
    puzzle = PUZZLES[name]
    waiting = sum(where is None for where, *_ in puzzle["pods"].values())

    plan = planned(puzzle)

    assert (plan.restarts if plan.possible else None) == puzzle["moves"]
    if waiting == 1 or puzzle["free"] != "places":
        best = BruteForce(puzzle).best()
        assert (best[0] if best else None) == puzzle["moves"]
        assert best is None or loss_of(plan) == pytest.approx(best[1])
    assert "lost" not in puzzle or plan.gpu_hours == puzzle["lost"]
    assert plan.method is Method.Exact
    check_plan(puzzle, plan)


@st.composite
def fleets(draw: st.DrawFn) -> Puzzle:
    nodes = {name: draw(st.integers(2, 4)) for name in "abcd"[: draw(st.integers(2, 4))]}
    free, pods = dict(nodes), {}
    for number in range(draw(st.integers(1, 6))):
        node, units = draw(st.sampled_from(sorted(nodes))), draw(st.integers(1, 3))
        if free[node] >= units:
            free[node] -= units
            more: dict[str, Any] = {"stays": "no controller"} if draw(st.integers(0, 5)) == 0 else {}
            if draw(st.integers(0, 3)):
                more["hours"] = draw(st.integers(0, 9))
            if draw(st.booleans()):
                more["only"] = sorted({node, *draw(st.lists(st.sampled_from(sorted(nodes)), max_size=2))})
            pods[f"p{number}"] = [node, units, more]
    freed = draw(st.sampled_from(["node", "places"]))
    if freed == "places":
        pods["q"] = [None, draw(st.integers(1, 4)), {}]
    return {"nodes": nodes, "pods": pods, "free": freed}


@settings(max_examples=30, deadline=None)
@given(fleets())
def test_any_small_fleet_takes_as_few_moves_as_brute_force_finds(puzzle: Puzzle) -> None:
    """F146: and loses as few GPU-hours; with up to MOST_EXTRA moves out of the way of others."""
    best = BruteForce(puzzle).best()

    plan = planned(puzzle)

    assert (plan.restarts if plan.possible else None) == (best[0] if best else None)
    assert best is None or loss_of(plan) == pytest.approx(best[1])
    check_plan(puzzle, plan)


def test_plan_is_not_called_exact_where_chains_of_fewer_moves_were_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """F146: nobody may make room for others here, so that b and its one pod were not tried with two moves."""
    monkeypatch.setattr(repack, "MOST_EXTRA", 0)
    pods = {"x": ["a", 1], "y": ["a", 1], "w": ["a", 1], "z": ["b", 5, {"only": ["b"]}], "k": ["c", 5, KEPT]}

    plan = planned({"nodes": {"a": 8, "b": 8, "c": 8}, "pods": pods, "free": "node"})

    assert (plan.nodes, plan.restarts, plan.method) == (("a",), 3, Method.Greedy)
    check_plan({"nodes": {"a": 8, "b": 8, "c": 8}, "pods": pods, "free": "node"}, plan)


@pytest.mark.parametrize("guard", GUARDS)
def test_pod_that_is_protected_stays_and_the_plan_says_why(guard: str) -> None:
    """F146: no controller, DaemonSet, static pod, annotations of three projects, PodDisruptionBudgets."""
    plan = planned(
        {"nodes": {"a": 8, "b": 8}, "pods": {"x": ["a", 1, {"stays": guard}], "y": ["b", 2]}, "free": "node"}
    )

    assert [(move.pod, move.seat) for move in plan.moves] == [("team-a/y", "a")]
    assert [(held.name, held.pod) for held in plan.held] == [("a", "team-a/x")]
    assert plan.held[0].why


def test_pod_moves_where_its_only_budget_allows_a_disruption() -> None:
    """F146."""
    pods = {"x": ["a", 1, {"labels": {"one": "open"}}], "y": ["b", 2, KEPT]}

    plan = planned({"nodes": {"a": 8, "b": 8}, "pods": pods, "free": "node"})

    assert [(move.pod, move.seat) for move in plan.moves] == [("team-a/x", "b")]


def test_costs_are_said() -> None:
    """F146: pods, GPUs, and their memory by the label."""
    pods = {"q": [None, 8, {"only": ["a"]}], "x": ["a", 2], "y": ["b", 6], "z": ["c", 1]}
    puzzle = {"nodes": {"a": 8, "b": 8, "c": 8}, "pods": pods, "free": "places"}

    plan = planned(puzzle)

    assert [(move.pod, move.source, move.controller) for move in plan.moves] == [("team-a/x", "a", "ReplicaSet/x")]
    assert (plan.restarts, plan.gpus, plan.memory_mib) == (1, 2, 2 * 81559)
    assert (plan.moves[0].seat, plan.moves[0].cordon) == ("b", ())


def test_age_of_each_pod_is_said_and_an_unknown_one_makes_the_sum_unknown() -> None:
    """F146: GPU-hours are those of all units of a pod since its start."""
    nodes = {"a": 8, "b": 8, "c": 8}
    pods = {"x": ["a", 2, {"hours": 50}], "y": ["a", 1, {"hours": 0}], "k": ["b", 5, KEPT], "l": ["c", 5, KEPT]}

    known = planned({"nodes": nodes, "pods": pods, "free": "node"})
    unknown = planned({"nodes": nodes, "pods": {**pods, "y": ["a", 1]}, "free": "node"})

    assert {move.pod: (move.hours, move.gpu_hours) for move in known.moves} == {
        "team-a/x": (50.0, 100.0),
        "team-a/y": (0.0, 0.0),
    }
    assert (known.gpu_hours, unknown.gpu_hours) == (100.0, None)


@pytest.mark.parametrize("start", ["yesterday", "2026-09-21", "2026-09-21T10:00:00", 7, None, ["x"]])
def test_start_that_is_no_time_is_unknown(start: object) -> None:
    """F146: and one in the future is now."""
    objects = objects_of(PUZZLES["half-and-half"])
    for document in objects:
        if document["metadata"]["name"] == "y":
            document["status"] = {"startTime": start}
        if document["metadata"]["name"] == "x":
            document["status"] = {"startTime": "2199-01-01T00:00:00+02:00"}
    state = state_of(objects)

    plan = repacked(objects, state, shipped(), list(state.nodes), Freed.Node, MOST_MOVES, NOW)

    assert [(move.pod, move.hours) for move in plan.moves] == [("team-a/x", 0.0)]


def test_search_for_less_loss_that_gives_up_keeps_the_fewest_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """F146: it is still exact in the number of restarts."""
    monkeypatch.setattr(repack_search, "MOST_BETTER", 0)
    plan = planned(PUZZLES["old-ones-stay-where-young-ones-can-go"])

    assert (plan.restarts, plan.method) == (2, Method.Exact)
    check_plan(PUZZLES["old-ones-stay-where-young-ones-can-go"], plan)


def test_search_that_gives_up_is_greedy_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """F146: it still finds what takes one seat after another."""
    monkeypatch.setattr(repack_search.RepackSearch.__init__, "__defaults__", (0,))
    kept = {"stays": "budget"}
    pods = {"x": ["a", 1], "y": ["a", 1], "z": ["b", 6, kept], "w": ["c", 7, kept]}
    puzzle = {"nodes": {"a": 8, "b": 8, "c": 8}, "pods": pods, "free": "node"}

    plan = planned(puzzle)

    assert plan.method is Method.Greedy
    check_plan(puzzle, plan)


def lonely(objects: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Give pods a required anti-affinity to each other, by host name."""
    rule = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "lonely"}}}
    for document in objects:
        if document["kind"] == "Node":
            document["metadata"]["labels"]["kubernetes.io/hostname"] = document["metadata"]["name"]
        if document["kind"] == "Pod" and document["metadata"]["name"] in names:
            document["metadata"]["labels"] = {"app": "lonely"}
            terms = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
            document["spec"]["affinity"] = {**document["spec"].get("affinity", {}), **terms}
    return objects


@pytest.mark.parametrize(
    ("nodes", "pods", "free", "together", "seats"),
    [
        pytest.param(
            {"a": 8, "b": 8, "c": 8},
            {"x": ["a", 1], "y": ["a", 1], "z": ["b", 7, KEPT], "w": ["c", 7, KEPT]},
            Freed.Node,
            ("x", "z"),
            {"team-a/x": "c", "team-a/y": "b"},
            id="one that stays",
        ),
        pytest.param(
            {"r1/a": 8, "r1/b": 8, "c": 8, "d": 8},
            {"x": ["a", 1], "y": ["b", 1, {"only": ["b", "c"]}], "z": ["c", 5, KEPT], "w": ["d", 1, KEPT]},
            Freed.Domain,
            ("x", "y"),
            {"team-a/x": "d", "team-a/y": "c"},
            id="one that was moved before",
        ),
    ],
)
def test_pods_that_exclude_each_other_are_not_seated_together(
    nodes: dict[str, int], pods: dict[str, Any], free: Freed, together: tuple[str, ...], seats: dict[str, str]
) -> None:
    """F146: anti-affinity, wherever the other pod is at that moment."""
    objects = lonely(objects_of({"nodes": nodes, "pods": pods}), *together)
    state = state_of(objects)

    plan = repacked(objects, state, shipped(), list(state.nodes), free, MOST_MOVES, NOW)

    assert {move.pod: move.seat for move in plan.moves} == seats


def test_nodes_that_the_engine_prefers_at_that_moment_are_to_be_cordoned() -> None:
    """F146: the pod would fill up the node that it is to leave."""
    pods = {"q": [None, 2, {"only": ["a"]}], "x": ["a", 1], "k": ["a", 6, KEPT], "z": ["b", 1, KEPT]}

    plan = planned({"nodes": {"a": 8, "b": 8}, "pods": pods, "free": "places"})

    assert [(move.pod, move.seat, move.cordon) for move in plan.moves] == [("team-a/x", "b", ("a",))]


def run(tmp_path: Path, puzzle: Puzzle, *words: str) -> Result:
    (tmp_path / "fleet.json").write_text(json.dumps({"kind": "List", "items": objects_of(puzzle)}), "utf-8")
    return RUN.invoke(app, ["plan", "repack", "--snapshot", str(tmp_path / "fleet.json"), *words])


def test_text_has_the_steps_their_cost_and_what_stays(tmp_path: Path) -> None:
    """F146."""
    puzzle = PUZZLES["domain-for-which-another-makes-room"]

    result = run(tmp_path, puzzle, "--free", "domain")

    assert result.exit_code == 0, result.output
    steps = ("1. restart team-a/y", "2. restart team-a/x", "free then: NVLink domain r1: a", "2 pods restarted")
    for words in (*steps, "no plan that moves only movable pods has fewer moves", "stays: r2, because of team-a/z"):
        assert words in result.stdout
    assert "no PodDisruptionBudget was seen" not in result.stdout


def test_text_says_how_long_pods_have_run(tmp_path: Path) -> None:
    """F146: and what that amounts to, if all ages are known."""
    puzzle = PUZZLES["old-ones-stay-where-young-ones-can-go"]
    ages = {name: [node, units, {**more, "hours": 1}] for name, (node, units, more) in puzzle["pods"].items()}

    known = run(tmp_path, {**puzzle, "pods": ages}).stdout
    unknown = run(tmp_path, PUZZLES["unknown-ages-alone"]).stdout

    assert known.count("has run ") == 2
    assert "GPU-hours done" in known
    assert "priority 0, age unknown)" in unknown
    assert "GPU-hours" not in unknown


def test_plan_that_does_not_exist_is_said_and_exits_with_1(tmp_path: Path) -> None:
    """F146."""
    result = run(tmp_path, PUZZLES["two-cannot-swap"], "--free", "places")

    assert result.exit_code == 1
    assert "team-a/q: no place found" in result.stdout


def test_bad_input_is_said_with_the_remedy(tmp_path: Path) -> None:
    """F146."""
    for words, message in (("rack", "wants node, domain or places"), ("domain", "nvidia.com/gpu.clique")):
        result = run(tmp_path, PUZZLES["half-and-half"], "--free", words)
        assert isinstance(result.exception, BadInput)
        assert message in str(result.exception)
