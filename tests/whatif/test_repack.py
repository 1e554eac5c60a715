# SPDX-License-Identifier: Apache-2.0
"""`advise repack`: the fewest moves, against a brute force over all sequences of moves, and what it says about them."""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from app.cli.advise_repack import repacked
from app.cli.main import app
from app.cluster.snapshot import fill
from app.cluster.state import State
from app.values.errors import BadInput
from app.whatif import repack_search
from app.whatif.repack import MOST_MOVES, Freed, Method, Repack
from tests.builders import gpus, knowledge, node_document, pod, shipped

RUN = CliRunner()
Puzzle = Mapping[str, Any]
PUZZLES: dict[str, Puzzle] = yaml.safe_load(Path(__file__).with_name("repack_puzzles.yaml").read_text("utf-8"))
CORES = 1000
"""CPU of a node of a puzzle that sets none."""
GUARDS: dict[str, dict[str, Any]] = {
    "no controller": {"ownerReferences": []},
    "daemon": {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "controller": True}]},
    "safe-to-evict": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
    "do-not-disrupt": {"annotations": {"karpenter.sh/do-not-disrupt": "30m"}},
    "descheduler": {"annotations": {"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}},
    "static": {"annotations": {"kubernetes.io/config.mirror": "x"}},
    "being deleted": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    "budget": {"labels": {"one": "spent"}},
    "two budgets": {"labels": {"one": "open", "other": "open"}},
}
"""What keeps a pod, as members of its metadata."""


def budget(name: str, key: str, value: str, allowed: int) -> dict[str, Any]:
    selector = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    metadata = {"name": name, "namespace": "team-a"}
    status = {"disruptionsAllowed": allowed}
    return {"kind": "PodDisruptionBudget", "metadata": metadata, "spec": {"selector": selector}, "status": status}


BUDGETS = [budget("spent", "one", "spent", 0), budget("open", "one", "open", 1), budget("second", "other", "open", 1)]


def fields(puzzle: Puzzle, name: str) -> tuple[str, int, Mapping[str, Any]]:
    node, units, *more = puzzle["pods"][name]
    return node or "", units, (more[0] if more else {})


def pod_document(puzzle: Puzzle, name: str) -> dict[str, Any]:
    where, units, more = fields(puzzle, name)
    made = pod(gpus(units), priority=more.get("priority", 0))
    made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(more.get("cpu", 1))
    owners = [{"kind": "ReplicaSet", "name": name, "controller": True}]
    guard = GUARDS.get(more.get("stays", ""), {})
    made["metadata"].update({"name": name, "uid": name, "ownerReferences": owners, **guard})
    if where:
        made["spec"]["nodeName"] = where
    if "only" in more:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [more["only"][0]]}]}
        terms = [{"matchFields": [{**term["matchFields"][0], "values": [node]}]} for node in more["only"]]
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        made["spec"]["affinity"] = {"nodeAffinity": rule}
    return made


def objects_of(puzzle: Puzzle) -> list[dict[str, Any]]:
    """Write the objects of a puzzle."""
    objects = []
    for key, units in puzzle["nodes"].items():
        domain, _, name = key.rpartition("/")
        labels = {"nvidia.com/gpu.count": str(units), "nvidia.com/gpu.memory": "81559"}
        if domain:
            labels["nvidia.com/gpu.clique"] = domain
        document = node_document(name, offers={"nvidia.com/gpu": units}, labels=labels)
        document["status"]["allocatable"].update(cpu=str(puzzle.get("cores", CORES)), memory="999Gi", pods="110")
        objects.append(document)
    return [*objects, *(pod_document(puzzle, name) for name in puzzle["pods"]), *BUDGETS]


def planned(puzzle: Puzzle) -> Repack:
    """Find the plan of a puzzle as the command does."""
    objects = objects_of(puzzle)
    state = State(knowledge())
    fill(state, objects)
    return repacked(objects, state, shipped(), list(state.nodes), Freed(puzzle["free"]), MOST_MOVES)


class BruteForce:
    """All sequences of moves of a puzzle, breadth first, by the arithmetic of whole GPUs and cores alone."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle
        self.capacity = {key.rpartition("/")[2]: units for key, units in puzzle["nodes"].items()}
        self.unit = {key.rpartition("/")[2]: key.rpartition("/")[0] or key for key in puzzle["nodes"]}
        self.pods = {name: fields(puzzle, name) for name in puzzle["pods"]}
        self.start = {name: where for name, (where, _, _) in self.pods.items() if where}

    def fits(self, name: str, node: str, at: Mapping[str, str]) -> bool:
        _, units, more = self.pods[name]
        there = [self.pods[other] for other, where in at.items() if where == node and other != name]
        cores = sum(pod[2].get("cpu", 1) for pod in there) + more.get("cpu", 1)
        return (
            sum(pod[1] for pod in there) + units <= self.capacity[node]
            and cores <= self.puzzle.get("cores", CORES)
            and node in more.get("only", self.capacity)
        )

    def positions(
        self, start: Mapping[str, str], closed: set[str], highest: int, most: int
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield where all pods can be after 0, 1, 2 … moves; no pod moves twice, or onto closed nodes."""
        queue, seen = deque([(0, dict(start))]), {tuple(sorted(start.items()))}
        while queue:
            moves, at = queue.popleft()
            yield moves, at
            for name, where in at.items() if moves < most else ():
                more = self.pods[name][2]
                if "stays" in more or more.get("priority", 0) > highest or where != self.start.get(name):
                    continue
                for node in self.capacity:
                    after = {**at, name: node}
                    if node == where or node in closed or not self.fits(name, node, at):
                        continue
                    if (key := tuple(sorted(after.items()))) not in seen:
                        seen.add(key)
                        queue.append((moves + 1, after))

    def fewest(self) -> int | None:
        """Return the fewest moves that free what is asked for; None if no sequence does."""
        if self.puzzle["free"] == "places":
            return self._places()
        used = {self.unit[where] for where in self.start.values()}
        fewest: list[int] = []
        units = {
            self.unit[key.rpartition("/")[2]]
            for key in self.puzzle["nodes"]
            if self.puzzle["free"] == "node" or "/" in key
        }
        for unit in used & units:
            closed = {node for node, its in self.unit.items() if its == unit or its in units - used}
            reached = self.positions(self.start, closed, 10**9, MOST_MOVES)
            fewest += [moves for moves, at in reached if unit not in {self.unit[where] for where in at.values()}][:1]
        return min(fewest, default=None)

    def _places(self) -> int | None:
        """Seat the one pod that waits."""
        (name,) = (name for name, (where, _, _) in self.pods.items() if not where)
        priority = self.pods[name][2].get("priority", 0)
        reached = self.positions(self.start, set(), priority, MOST_MOVES)
        return next((moves for moves, at in reached if any(self.fits(name, node, at) for node in self.capacity)), None)


def check_plan(puzzle: Puzzle, plan: Repack) -> None:
    """Replay a plan by the arithmetic alone: each pod has room when its turn comes, and what was asked for is free."""
    brute = BruteForce(puzzle)
    at = dict(brute.start)
    for move in plan.moves:
        assert at[move.pod.partition("/")[2]] == move.source != move.seat
        del at[move.pod.partition("/")[2]]
        assert brute.fits(move.pod.partition("/")[2], move.seat, at)
        at[move.pod.partition("/")[2]] = move.seat
    for seat in plan.waiting:
        if seat.node:
            assert brute.fits(seat.pod.partition("/")[2], seat.node, at)
            at[seat.pod.partition("/")[2]] = seat.node
    assert not set(plan.nodes) & set(at.values())


@pytest.mark.parametrize("name", PUZZLES)
def test_puzzle_takes_as_few_moves_as_brute_force_finds(name: str) -> None:
    """F64: the known optimum, by the whole way from objects to plan."""
    puzzle = PUZZLES[name]
    waiting = sum(where is None for where, *_ in puzzle["pods"].values())

    plan = planned(puzzle)

    assert (plan.restarts if plan.possible else None) == puzzle["moves"]
    assert waiting > 1 or BruteForce(puzzle).fewest() == puzzle["moves"]
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
            if draw(st.booleans()):
                more["only"] = sorted({node, *draw(st.lists(st.sampled_from(sorted(nodes)), max_size=2))})
            pods[f"p{number}"] = [node, units, more]
    freed = draw(st.sampled_from(["node", "places"]))
    if freed == "places":
        pods["q"] = [None, draw(st.integers(1, 4)), {}]
    return {"nodes": nodes, "pods": pods, "free": freed}


@settings(max_examples=60, deadline=None)
@given(fleets())
def test_any_small_fleet_takes_as_few_moves_as_brute_force_finds(puzzle: Puzzle) -> None:
    """F64: up to MOST_EXTRA moves out of the way of others, beyond which the search does not go."""
    fewest = BruteForce(puzzle).fewest()

    plan = planned(puzzle)

    assert (plan.restarts if plan.possible else None) == fewest
    check_plan(puzzle, plan)


@pytest.mark.parametrize("guard", GUARDS)
def test_pod_that_is_protected_stays_and_the_plan_says_why(guard: str) -> None:
    """F64: no controller, DaemonSet, static pod, annotations of three projects, PodDisruptionBudgets."""
    plan = planned(
        {"nodes": {"a": 8, "b": 8}, "pods": {"x": ["a", 1, {"stays": guard}], "y": ["b", 2]}, "free": "node"}
    )

    assert [(move.pod, move.seat) for move in plan.moves] == [("team-a/y", "a")]
    assert [(held.name, held.pod) for held in plan.held] == [("a", "team-a/x")]
    assert plan.held[0].why


def test_costs_are_said_and_nodes_that_would_be_preferred_are_to_be_cordoned() -> None:
    """F64: memory by the label, and where the engine would put the pod otherwise."""
    pods = {"q": [None, 8, {"only": ["a"]}], "x": ["a", 2], "y": ["b", 6], "z": ["c", 1]}
    puzzle = {"nodes": {"a": 8, "b": 8, "c": 8}, "pods": pods, "free": "places"}

    plan = planned(puzzle)

    assert [(move.pod, move.source, move.controller) for move in plan.moves] == [("team-a/x", "a", "ReplicaSet/x")]
    assert (plan.restarts, plan.gpus, plan.memory_mib) == (1, 2, 2 * 81559)
    assert plan.moves[0].cordon == ()
    assert plan.moves[0].seat == "b"


def test_search_that_gives_up_is_greedy_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """F64: it still finds what takes one seat after another."""
    monkeypatch.setattr(repack_search.RepackSearch.__init__, "__defaults__", (0,))
    kept = {"stays": "budget"}
    pods = {"x": ["a", 1], "y": ["a", 1], "z": ["b", 6, kept], "w": ["c", 7, kept]}
    puzzle = {"nodes": {"a": 8, "b": 8, "c": 8}, "pods": pods, "free": "node"}

    plan = planned(puzzle)

    assert plan.method is Method.Greedy
    check_plan(puzzle, plan)


def test_pods_that_exclude_each_other_are_not_seated_together() -> None:
    """F64: anti-affinity, also towards a pod that has moved before."""
    pods = {"x": ["a", 1], "y": ["a", 1], "z": ["b", 7], "w": ["c", 7]}
    puzzle = {"nodes": {"a": 8, "b": 8, "c": 8}, "pods": pods, "free": "node"}
    objects = objects_of(puzzle)
    rule = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "lonely"}}}
    for document in objects:
        if document["kind"] == "Node":
            document["metadata"]["labels"]["kubernetes.io/hostname"] = document["metadata"]["name"]
        if document["kind"] == "Pod" and document["metadata"]["name"] in ("x", "z"):
            document["metadata"]["labels"] = {"app": "lonely"}
            terms = {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}
            document["spec"]["affinity"] = {"podAntiAffinity": terms}
    state = State(knowledge())
    fill(state, objects)

    plan = repacked(objects, state, shipped(), ["a"], Freed.Node, MOST_MOVES)

    assert {move.pod: move.seat for move in plan.moves} == {"team-a/x": "c", "team-a/y": "b"}


def run(tmp_path: Path, puzzle: Puzzle, *words: str) -> Result:
    (tmp_path / "fleet.json").write_text(json.dumps({"kind": "List", "items": objects_of(puzzle)}), "utf-8")
    return RUN.invoke(app, ["advise", "repack", "--snapshot", str(tmp_path / "fleet.json"), *words])


def test_text_has_the_steps_their_cost_and_what_stays(tmp_path: Path) -> None:
    """F64."""
    puzzle = PUZZLES["domain-for-which-another-makes-room"]

    result = run(tmp_path, puzzle, "--free", "domain")

    assert result.exit_code == 0, result.output
    steps = ("1. restart team-a/y", "2. restart team-a/x", "free then: NVLink domain r1: a", "2 pods restarted")
    for words in (*steps, "no plan of these rules has fewer moves", "stays: r2, because of team-a/z"):
        assert words in result.stdout
    assert "no PodDisruptionBudget was seen" not in result.stdout


def test_plan_that_does_not_exist_is_said_and_exits_with_1(tmp_path: Path) -> None:
    """F64."""
    result = run(tmp_path, PUZZLES["two-cannot-swap"], "--free", "places")

    assert result.exit_code == 1
    assert "team-a/q: no place found" in result.stdout


def test_bad_input_is_said_with_the_remedy(tmp_path: Path) -> None:
    """F64."""
    for words, message in (("rack", "wants node, domain or places"), ("domain", "nvidia.com/gpu.clique")):
        result = run(tmp_path, PUZZLES["half-and-half"], "--free", words)
        assert isinstance(result.exception, BadInput)
        assert message in str(result.exception)
