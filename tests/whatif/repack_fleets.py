# SPDX-License-Identifier: Apache-2.0
"""Fleets for `plan repack` as objects, and the brute force with which plans are compared."""

import datetime as dt
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from app.cli.plan_pods import repacked
from app.whatif.repack import MOST_MOVES, Freed, Repack
from app.whatif.repack_search import Loss
from tests.builders import gpus, node_document, pod, shipped, state_of

Puzzle = Mapping[str, Any]
PUZZLES: dict[str, Puzzle] = yaml.safe_load(Path(__file__).with_name("repack_puzzles.yaml").read_text("utf-8"))
NOW = 1_790_000_000.0
"""The time at which puzzles are solved, in seconds since the epoch."""
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


KEPT = {"stays": "no controller"}
BUDGETS = [budget("spent", "one", "spent", 0), budget("open", "one", "open", 1), budget("second", "other", "open", 1)]


def fields(puzzle: Puzzle, name: str) -> tuple[str, int, Mapping[str, Any]]:
    node, units, *more = puzzle["pods"][name]
    return node or "", units, (more[0] if more else {})


def pod_document(puzzle: Puzzle, name: str) -> dict[str, Any]:
    where, units, more = fields(puzzle, name)
    made = pod(gpus(units), priority=more.get("priority", 0))
    made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(more.get("cpu", 1))
    owners = [{"kind": "ReplicaSet", "name": name, "controller": True}]
    guard = {"labels": more.get("labels", {}), **GUARDS.get(more.get("stays", ""), {})}
    made["metadata"].update({"name": name, "uid": name, "ownerReferences": owners, **guard})
    if where:
        made["spec"]["nodeName"] = where
    if "hours" in more:
        start = dt.datetime.fromtimestamp(NOW - 3600 * more["hours"], dt.UTC)
        made["status"] = {"startTime": f"{start:%Y-%m-%dT%H:%M:%SZ}"}
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
    state = state_of(objects)
    return repacked(objects, state, shipped(), list(state.nodes), Freed(puzzle["free"]), MOST_MOVES, NOW)


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

    def loss(self, at: Mapping[str, str]) -> Loss:
        """Add up GPUs of unknown age, known GPU-hours, and GPUs of the pods that are elsewhere than at first."""
        moved = [self.pods[name] for name, where in self.start.items() if at[name] != where]
        unknown = sum(units for _, units, more in moved if "hours" not in more)
        hours = sum(units * more.get("hours", 0) for _, units, more in moved)
        return unknown, float(hours), sum(units for _, units, _ in moved)

    def best(self) -> tuple[int, Loss] | None:
        """Return the fewest moves that free what is asked for, and the least that so many lose; None without any."""
        if self.puzzle["free"] == "places":
            return min(self._places(), default=None)
        used = {self.unit[where] for where in self.start.values()}
        plans: list[tuple[int, Loss]] = []
        units = {
            self.unit[key.rpartition("/")[2]]
            for key in self.puzzle["nodes"]
            if self.puzzle["free"] == "node" or "/" in key
        }
        for unit in used & units:
            closed = {node for node, its in self.unit.items() if its == unit or its in units - used}
            reached = self.positions(self.start, closed, 10**9, MOST_MOVES)
            free = ((moves, at) for moves, at in reached if unit not in {self.unit[where] for where in at.values()})
            plans += self._cheapest(free)
        return min(plans, default=None)

    def _cheapest(self, plans: Iterator[tuple[int, dict[str, str]]]) -> list[tuple[int, Loss]]:
        """Return the best of the plans with the fewest moves, which come first; empty without any."""
        losses: list[tuple[int, Loss]] = []
        for moves, at in plans:
            if losses and moves > losses[0][0]:
                break
            losses.append((moves, self.loss(at)))
        return [min(losses)] if losses else []

    def _places(self) -> list[tuple[int, Loss]]:
        """Seat the one pod that waits."""
        (name,) = (name for name, (where, _, _) in self.pods.items() if not where)
        priority = self.pods[name][2].get("priority", 0)
        reached = self.positions(self.start, set(), priority, MOST_MOVES)
        return self._cheapest(
            (moves, at) for moves, at in reached if any(self.fits(name, node, at) for node in self.capacity)
        )


def loss_of(plan: Repack) -> Loss:
    """Add up what the moves of a plan lose by what it says of them."""
    unknown = sum(sum(move.gpus.values()) for move in plan.moves if move.hours is None)
    return unknown, sum(move.gpu_hours or 0.0 for move in plan.moves), plan.gpus


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
