# SPDX-License-Identifier: Apache-2.0
"""One run: every pod of a workload arrives once, no pod leaves, and a pod without a place is dropped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from app.knowledge.products import WHOLE_MILLI
from app.knowledge.tables import Knowledge
from app.nodes.model import Node
from app.placement.ranking import best_in_turn, demand_scores, wire_scores
from app.policy.compiled import PolicySet
from app.policy.demand import DemandClass, ExpectedDemand
from app.world.demand_learning import ExpectedDemandCache, Workload
from app.world.verdict_cache import VerdictCache, VerdictTable
from tests.bench.simulate.over_time_figures import OverTime
from tests.bench.simulate.policies import BenchmarkPolicy, Demands, popular
from tests.bench.simulate.scheduler import find_feasible, nodes_to_find, select
from tests.bench.simulate.simulated_cluster import Binding, SimulatedCluster
from tests.bench.simulate.trace import Task, Trace, draw_arrivals, shift_arrivals
from tests.placement.expected_demands import expected_from_classes, unusable_milli

MARKS = (90, 95, 100, 130)
"""Arrived load in percent of all GPUs at which the published experiment takes its figures."""
LESSON = 1_000
"""Arrivals after which the free GPUs of a known workload are taken anew; each arrival does no better."""
CLASSES_KEPT = 1024
"""Demands whose verdicts are cached: a trace has some 330 at most."""


class History(Enum):
    """What the engine knows of the workload before each arrival."""

    Trace = "trace"
    """The frequencies of the demands in the whole trace, those of later arrivals included."""
    Online = "online"
    """Only the past arrivals, from which it learns as the service does."""
    Shift = "shift"
    """The past arrivals as with Online, where the order of arrival shifts the mix of demands (simulate/arrivals.py)."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of runs.

    With `all_pods` prioritize is also called for pods without GPU. `percent` is percentageOfNodesToScore; 0 is the
    scheduler's default. With `over_time` pods come and go (simulate/over_time.py).
    """

    history: History = History.Trace
    all_pods: bool = False
    percent: int = 0
    over_time: OverTime | None = None


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """The result of a run.

    `allocated_percent` is the percentage of all GPUs given to pods when a percentage of them had been requested, by
    that percentage; `fragmented_percent` is F of the fleet at the same moments. Marks that were not reached are absent.
    `failed` counts pods without a place by what they requested, `pods` all pods.
    """

    workload: str
    policy: str
    seed: int
    allocated_percent: dict[str, float]
    fragmented_percent: dict[str, float]
    failed: dict[str, int]
    pods: int


def kind_of(task: Task) -> str:
    """Say what a task asks for: a share, or a number of GPUs."""
    return f"{task.gpus} GPU" if task.gpu_milli in (0, WHOLE_MILLI) else "share"


class RunFigures:
    """The figures of a run, updated at each arrival: GPU requested and allocated so far, and F, each in milli GPU.

    F is the measure of placement/unusable_capacity.py, summed over the nodes.
    """

    def __init__(self, trace: Trace, expected_demand: ExpectedDemand, nodes: Sequence[Node]) -> None:
        self._capacity = trace.capacity_milli
        self._expected_demand = popular(expected_demand)
        self._arrived_milli = self._allocated_milli = 0
        self._fragmented_milli = sum(map(self._unusable_milli, nodes))
        self._marks: dict[int, list[tuple[int, float]]] = {mark: [] for mark in MARKS}
        self.failed: dict[str, int] = {}

    def count(self, task: Task, bound: Binding | None) -> None:
        """Count an arrival. `bound` is its place; None if it found no node."""
        self._arrived_milli += task.milli
        if bound is None:
            kind = kind_of(task)
            self.failed[kind] = self.failed.get(kind, 0) + 1
        else:
            self._allocated_milli += task.milli
            self._fragmented_milli += self._unusable_milli(bound.after) - self._unusable_milli(bound.before)
        mark = round(100 * self._arrived_milli / self._capacity)
        if mark in self._marks:
            self._marks[mark].append((self._allocated_milli, self._fragmented_milli))

    def _unusable_milli(self, node: Node) -> float:
        return unusable_milli(self._expected_demand, node.node_class.product, node.free_cpu_milli, node.free.gpus or ())

    def percents(self, column: int) -> dict[str, float]:
        """Return the average of a column over the arrivals that round to each mark."""
        return {
            str(mark): round(100 * sum(row[column] for row in rows) / len(rows) / self._capacity, 4)
            for mark, rows in self._marks.items()
            if rows
        }


class Simulation:
    """A fleet on which pods of one trace are placed by one policy."""

    def __init__(
        self, trace: Trace, policy: BenchmarkPolicy, seed: int, options: Options, rules: tuple[PolicySet, Knowledge]
    ) -> None:
        self._policy, self._options = policy, options
        self._rng = Random(f"{seed} ties")
        machines = list(trace.machines)
        Random(f"{seed} nodes").shuffle(machines)
        self.fleet = SimulatedCluster(machines, rules[1])
        self.demands = Demands(rules[0], rules[1], policy)
        self._verdicts = VerdictCache(self.fleet, recount=True, most=CLASSES_KEPT)
        self._start = 0
        self._nodes_to_find = nodes_to_find(len(machines), options.percent)

    def place(self, task: Task) -> Binding | None:
        """Place a pod as kube-scheduler does; return its place, None if no node fits."""
        position = self._choose(task)
        return None if position is None else self.fleet.bind(position, task)

    def fits(self, position: int, task: Task) -> bool:
        """Tell whether a node has room for a pod."""
        fleet = self.fleet
        name = fleet.names[position]
        return (
            fleet.cpu[position] >= task.cpu_milli
            and fleet.memory[position] >= task.memory_mib
            and sum(fleet.nodes[name].free.gpus or ()) >= task.milli
            and name in self._verdicts.of(self.demands.of(task)).feasible
        )

    def _choose(self, task: Task) -> int | None:
        fleet = self.fleet
        verdicts = self._verdicts.of(self.demands.of(task))
        feasible = [
            position
            for position in sorted(map(fleet.positions.__getitem__, verdicts.feasible))
            if fleet.cpu[position] >= task.cpu_milli and fleet.memory[position] >= task.memory_mib
        ]
        candidates, self._start = find_feasible(feasible, self._start, self._nodes_to_find)
        if self._policy.shortlist and candidates and task.gpus:
            candidates = [self._first(verdicts, candidates)]
        if len(candidates) <= 1:
            return candidates[0] if candidates else None
        prioritize = (self._policy.prioritize or (self._policy.shortlist and not task.gpus)) and self._asked(task)
        points = (
            self.scores(task, [fleet.names[position] for position in candidates])
            if prioritize
            else [0] * len(candidates)
        )
        if not prioritize and not self._policy.in_tree:
            return self._rng.choice(candidates)
        if self._policy.packs_in_tree and task.gpus:
            totals = [fleet.in_tree_packing(position, task) for position in candidates]
            best = [position for position, total in zip(candidates, totals, strict=True) if total == max(totals)]
            return self._rng.choice(best)
        return candidates[select(points, lambda index: fleet.in_tree(candidates[index], task), self._rng)]

    def _asked(self, task: Task) -> bool:
        return task.gpus > 0 or self._options.all_pods

    def _first(self, verdicts: VerdictTable, candidates: Sequence[int]) -> int:
        """Return the node that a shortlist names for a pod without soft constraints."""
        totals = verdicts.totals([self.fleet.names[position] for position in candidates])
        return candidates[best_in_turn(totals, self._rng.getrandbits(32))]

    def scores(self, task: Task, names: Sequence[str]) -> list[int]:
        """Return the scores 0..10 of these nodes, as prioritize does, or those of a baseline.

        A baseline names one best node for every pod, as in its published figures: equal scores would leave the choice
        to LeastAllocated, which spreads.
        """
        demand = self.demands.of(task)
        baseline = self._policy.baseline
        if baseline is None:
            return demand_scores(demand, names, self._verdicts.of(demand).totals(names))
        totals = [baseline(demand, self.fleet.nodes[name]) for name in names]
        return wire_scores(names, totals, ranked=True, one_best=True)


class Learning:
    """What the service would expect of the workload; all pods that exist count, also those without a place."""

    def __init__(self, fleet: SimulatedCluster) -> None:
        self._fleet = fleet
        self._workload = Workload[DemandClass]()
        self._cache = ExpectedDemandCache()
        self._made_of: tuple[int, int] | None = None
        self._expected_demand: ExpectedDemand | None = None

    def count(self, demand_class: DemandClass, pods: int) -> None:
        """Count pods that have come; a negative number has gone."""
        self._workload.add(demand_class, demand_class.limit, pods, demand_class.milli)

    def expected_demand(self) -> ExpectedDemand | None:
        """Return what is expected of the pods that were counted."""
        workload, free = self._workload, self._fleet.free_gpus
        made_of = (workload.generation, free.generation)
        if made_of != self._made_of:
            self._made_of = made_of
            self._expected_demand = self._cache.of(
                workload.shapes(), free.rounded(), workload.limits(), workload.seen_milli
            )
        return self._expected_demand


def run(
    trace: Trace,
    policy: BenchmarkPolicy,
    seed: int,
    options: Options,
    rules: tuple[PolicySet, Knowledge],
    report: Callable[[float], None] = lambda _: None,
) -> SimulationRun:
    """Run a workload. `rules` are our policies and facts; `report` is sometimes called with the share that is done."""
    order = draw_arrivals(trace.tasks, trace.capacity_milli, seed)
    if options.history is History.Shift:
        order = shift_arrivals(order, trace.tasks, seed)
    simulation = Simulation(trace, policy, seed, options, rules)
    demands = simulation.demands
    expected = expected_from_classes(map(demands.class_of, trace.tasks))
    assert expected is not None  # a trace has tasks
    figures = RunFigures(trace, expected, list(simulation.fleet.nodes.values()))
    learning = Learning(simulation.fleet)
    for count, index in enumerate(order, 1):
        task = trace.tasks[index]
        if options.history is History.Trace and count % LESSON == 1:
            demands.expect(replace(expected, free=tuple(simulation.fleet.free().items())))
        figures.count(task, simulation.place(task))
        if options.history is not History.Trace:
            learning.count(demands.class_of(task), 1)
            demands.expect(learning.expected_demand())
        if count % 100 == 0:
            report(count / len(order))
    percents = (figures.percents(0), figures.percents(1))
    failed = dict(sorted(figures.failed.items()))
    return SimulationRun(trace.workload, policy.name, seed, *percents, failed, len(order))
