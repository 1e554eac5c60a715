# SPDX-License-Identifier: Apache-2.0
"""A run over time: pods arrive, wait for a node as in kube-scheduler's queue, run, and leave.

Events are played in their order; nothing takes time but running and waiting. A pod that leaves comes before one that
arrives at the same moment.
"""

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush

from app.knowledge.products import WHOLE_MILLI
from app.knowledge.tables import Knowledge
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.policy.demand import ExpectedDemand
from tests.bench.simulate.over_time_figures import (
    DIGITS,
    PARTS,
    OverTime,
    OverTimeRun,
    PlayedPod,
    TimeAverages,
    draw_pods,
    mean_by_kind,
    right_sized,
    wait_figures,
)
from tests.bench.simulate.policies import BenchmarkPolicy, popular
from tests.bench.simulate.repacking import HOUR, RunningPod, repack
from tests.bench.simulate.run import LESSON, History, Learning, Options, Simulation, kind_of
from tests.bench.simulate.scheduler import SchedulingQueue
from tests.bench.simulate.trace import Trace
from tests.placement.expected_demand import expected_from_classes, unusable_milli

WARM_UP = 3
"""The first of so many parts of the arrivals is not measured."""
_HELD, _FRAGMENTED, _WAITING, _WAITING_MILLI = range(4)


class OverTimeSimulation:
    """A fleet on which pods come and go, placed by one policy."""

    def __init__(
        self,
        trace: Trace,
        simulation: Simulation,
        policy: BenchmarkPolicy,
        known: ExpectedDemand | None,
        begin: float,
        end: float,
    ) -> None:
        """Make it. `known` is the expected demand if it is known beforehand; None to learn it. Measure from `begin`."""
        self._trace, self._simulation, self._known = trace, simulation, known
        self._begin, self._end = begin, end
        self._learning = Learning(simulation.fleet)
        self._queue = SchedulingQueue()
        self._running: dict[int, RunningPod] = {}
        self._leaving: list[tuple[float, int]] = []
        """When which pod leaves; of a pod that was restarted also when it would have left."""
        self._repack_seconds = policy.repack_hours * HOUR
        self._next_repack = self._repack_seconds
        self._moves, self._lost_gpu_hours = 0, 0.0
        self._averages = TimeAverages(begin, end, 4)
        self._measure = popular(expected_of(trace, simulation))
        self._averages.add(0.0, sum(map(self._unusable_milli, simulation.fleet.nodes.values())))
        self._placed = 0
        self.waits: dict[int, float] = {}
        """For how many seconds each GPU pod that arrived while it was measured has waited, by its number."""
        self._kinds: dict[int, str] = {}
        """What each of these pods asks for."""

    def start(self, running: list[PlayedPod]) -> None:
        """Place the pods that run at the start. What is learnt of them is known before the first is placed."""
        for pod in running:
            self._learning.count(self._simulation.demands.class_of(pod.task), 1)
        for pod in running:
            self._come(pod, 0.0)

    def arrive(self, pod: PlayedPod) -> None:
        """Let a pod arrive, after all that leave before it."""
        while 0 < self._next_repack <= pod.arrives:
            self.leave_until(self._next_repack)
            self._repack(self._next_repack)
            self._next_repack += self._repack_seconds
        self.leave_until(pod.arrives)
        self._learning.count(self._simulation.demands.class_of(pod.task), 1)
        self._come(pod, pod.arrives)

    def leave_until(self, now: float) -> None:
        """Let the pods leave whose time is over, and have the waiting ones tried after each."""
        while self._leaving and self._leaving[0][0] <= now:
            moment, number = heappop(self._leaving)
            running = self._running.get(number)
            if running is None or running.ends != moment:
                continue
            del self._running[number]
            task = running.pod.task
            self._averages.advance(moment)
            self._count(self._simulation.fleet.release(running.binding, task), -task.milli)
            self._learning.count(self._simulation.demands.class_of(task), -1)
            self._wake(running.binding.position, moment)
        self._averages.advance(now)

    def _wake(self, position: int, now: float) -> None:
        """Have the pods that wait tried again, after a pod has left a node."""
        self._expect()
        self._queue.wake(
            now,
            lambda waiting: self._simulation.fits(position, waiting),
            lambda pod: self._leave_queue(pod, now),
        )

    def _repack(self, now: float) -> None:
        """Make room for the pods that wait by restarting others."""
        waiting = sorted(self._queue, key=lambda pod: pod.number)
        if not any(pod.task.gpus for pod in waiting):
            return
        before = dict(self._simulation.fleet.nodes)
        repacked = repack(self._simulation, list(self._running.values()), waiting)
        for name, node in self._simulation.fleet.nodes.items():
            if node is not before[name]:
                self._count((before[name], node), 0)
        for running, binding in repacked.moved:
            self._run(running.restarted(binding, now))
            if now >= self._begin:
                self._moves += 1
                self._lost_gpu_hours += running.gpu_hours(now)
        self._queue.remove({pod.number for pod, _ in repacked.started})
        for pod, binding in repacked.started:
            self._run(RunningPod(pod, binding, now))
            self._averages.add(float(pod.task.milli), 0.0)
            self._count_wait(pod, now)
        for running, _ in repacked.moved:
            self._wake(running.binding.position, now)

    def _run(self, running: RunningPod) -> None:
        self._running[running.pod.number] = running
        heappush(self._leaving, (running.ends, running.pod.number))

    def result(self, policy: str, seed: int, load: float) -> OverTimeRun:
        """Return the figures; the run has ended."""
        waiting = [pod for pod in self._queue if pod.task.gpus]
        for pod in waiting:
            if pod.number in self.waits:
                self.waits[pod.number] = self._end - pod.arrives
        percents = [self._percents(quantity) for quantity in (_HELD, _FRAGMENTED)]
        hours = (self._end - self._begin) / HOUR
        gpus = self._trace.capacity_milli / WHOLE_MILLI
        waits = self.waits.values()
        return OverTimeRun(
            workload=self._trace.workload,
            policy=policy,
            seed=seed,
            load_percent=round(100 * load, DIGITS),
            pods=len(waits),
            waited_percent=round(100 * sum(wait > 0 for wait in waits) / max(1, len(waits)), DIGITS),
            wait_seconds=wait_figures(list(waits)),
            mean_wait_by_kind=mean_by_kind(self._waits_by_kind()),
            held_percent=percents[0],
            fragmented_percent=percents[1],
            waiting_pods=tuple(round(value, DIGITS) for value in self._averages.averages(_WAITING)),
            waiting_gpus=tuple(round(milli / WHOLE_MILLI, DIGITS) for milli in self._averages.averages(_WAITING_MILLI)),
            hours=round(hours, DIGITS),
            gpu_hours=round(
                sum(self._averages.averages(_HELD)) / PARTS / self._trace.capacity_milli * gpus * hours, DIGITS
            ),
            still_waiting=len(waiting),
            still_waiting_gpus=round(sum(pod.task.milli for pod in waiting) / WHOLE_MILLI, DIGITS),
            moves=self._moves,
            lost_gpu_hours=round(self._lost_gpu_hours, DIGITS),
        )

    def _waits_by_kind(self) -> dict[str, list[float]]:
        waits: dict[str, list[float]] = {}
        for number, wait in self.waits.items():
            waits.setdefault(self._kinds[number], []).append(wait)
        return waits

    def _come(self, pod: PlayedPod, now: float) -> None:
        self._expect()
        if pod.task.gpus and self._begin <= pod.arrives:
            self.waits[pod.number] = 0.0
            self._kinds[pod.number] = kind_of(pod.task)
        if not self._place(pod, now):
            self._queue.add(pod, now)
            self._averages.add(0.0, 0.0, float(pod.task.gpus > 0), float(pod.task.milli))

    def _leave_queue(self, pod: PlayedPod, now: float) -> None:
        """Place a pod that has waited, on a node that fits."""
        placed = self._place(pod, now)
        assert placed  # the queue has asked
        self._count_wait(pod, now)

    def _count_wait(self, pod: PlayedPod, now: float) -> None:
        """Count a pod that has waited until now."""
        self._averages.add(0.0, 0.0, -float(pod.task.gpus > 0), -float(pod.task.milli))
        if pod.number in self.waits:
            self.waits[pod.number] = now - pod.arrives

    def _place(self, pod: PlayedPod, now: float) -> bool:
        binding = self._simulation.place(pod.task)
        if binding is None:
            return False
        self._placed += 1
        self._run(RunningPod(pod, binding, now))
        self._count((binding.before, binding.after), pod.task.milli)
        return True

    def _expect(self) -> None:
        """Give what is expected now to the demands."""
        demands, fleet = self._simulation.demands, self._simulation.fleet
        if self._known is None:
            demands.expect(self._learning.expected_demand())
        elif self._placed % LESSON == 0:
            demands.expect(replace(self._known, free=tuple(fleet.free().items())))

    def _count(self, change: tuple[Node, Node], milli: int) -> None:
        before, after = map(self._unusable_milli, change)
        self._averages.add(float(milli), after - before)

    def _unusable_milli(self, node: Node) -> float:
        return unusable_milli(self._measure, node.node_class.product, node.free_cpu_milli, node.free.gpus or ())

    def _percents(self, quantity: int) -> tuple[float, ...]:
        capacity = self._trace.capacity_milli
        return tuple(round(100 * value / capacity, DIGITS) for value in self._averages.averages(quantity))


def expected_of(trace: Trace, simulation: Simulation) -> ExpectedDemand:
    """Return the frequencies of demands in a trace."""
    expected = expected_from_classes(map(simulation.demands.class_of, trace.tasks))
    assert expected is not None  # a trace has tasks
    return expected


def run_over_time(
    trace: Trace,
    policy: BenchmarkPolicy,
    seed: int,
    options: Options,
    rules: tuple[PolicySet, Knowledge],
    report: Callable[[float], None] = lambda _: None,
) -> OverTimeRun:
    """Run a workload over time. `report` is sometimes called with the share that is done.

    Raises BadInput where the trace does not say how long its pods run.
    """
    played = options.over_time or OverTime(1.0, 0)
    trace = replace(trace, machines=trace.machines[:: played.every])
    running, arriving = draw_pods(trace, played, seed)
    if policy.right_sized:
        running, arriving = right_sized(running, seed), right_sized(arriving, seed)
    simulation = Simulation(trace, policy, seed, options, rules)
    known = expected_of(trace, simulation) if options.history is History.Trace else None
    over_time = OverTimeSimulation(
        trace, simulation, policy, known, arriving[len(arriving) // WARM_UP].arrives, arriving[-1].arrives
    )
    over_time.start(running)
    for number, pod in enumerate(arriving, 1):
        over_time.arrive(pod)
        if number % 100 == 0:
            report(number / len(arriving))
    return over_time.result(policy.name, seed, played.load)
