# SPDX-License-Identifier: Apache-2.0
"""Repacking and right-sizing in runs over time, by hand and by what must always hold."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.simulate.over_time import OverTimeSimulation
from tests.bench.simulate.over_time_figures import OverTime, PlayedPod, draw_pods, right_sized
from tests.bench.simulate.policies import read_policy
from tests.bench.simulate.repacking import HOUR, RunningPod, repack
from tests.bench.simulate.run import Options, Simulation
from tests.bench.simulate.trace import Machine, Task, Trace, synthetic
from tests.builders import knowledge, shipped

RULES = (shipped(), knowledge())
ONE, TWO, CPU = Task(1000, 1024, 1, 1000), Task(1000, 1024, 2, 1000), Task(1000, 1024, 0, 0)
SHARE = Task(1000, 1024, 1, 400)
REPACK = read_policy("repack")


def simulation_of(machines: int, tasks: tuple[Task, ...]) -> tuple[Trace, Simulation]:
    """Return a trace of machines with two GPUs each, and an empty cluster of them."""
    nodes = tuple(Machine(f"n{number}", 8000, 8192, 2, "Tesla-T4") for number in range(machines))
    trace = Trace("hand", nodes, tasks, "hand", (1,) * len(tasks))
    return trace, Simulation(trace, REPACK, 1, Options(), RULES)


def spread_out(simulation: Simulation) -> list[RunningPod]:
    """Bind a pod of one GPU to each of two nodes of two; they had run for one and three hours."""
    pods = [PlayedPod(number, ONE, 50 * HOUR, 0.0, ran) for number, ran in enumerate((1 * HOUR, 3 * HOUR))]
    return [RunningPod(pod, simulation.fleet.bind(pod.number, ONE), 0.0) for pod in pods]


def test_one_restart_makes_room_for_a_pod_of_two_gpus() -> None:
    """F52: two half-full nodes become a full one and an empty one, which the pod that waits gets."""
    _, simulation = simulation_of(2, (ONE, TWO))
    running, waiting = spread_out(simulation), PlayedPod(9, TWO, HOUR, 0.0)

    repacked = repack(simulation, running, [waiting, PlayedPod(10, CPU, HOUR, 0.0)])

    (((moved, place),), ((started, seat),)) = repacked.moved, repacked.started
    assert (started, {moved.binding.position, place.position}) == (waiting, {0, 1})
    assert seat.position == moved.binding.position
    assert [sum(node.free.gpus or ()) for node in simulation.fleet.nodes.values()] == [0, 0]


def test_restarted_pod_loses_all_that_it_has_done_and_runs_for_its_whole_time() -> None:
    """F52: also what it had done before the simulation."""
    _, simulation = simulation_of(2, (TWO,))
    pod = RunningPod(PlayedPod(1, TWO, 5 * HOUR, 0.0, 2 * HOUR), simulation.fleet.bind(0, TWO), 0.0)

    again = pod.restarted(pod.binding, 4 * HOUR)

    assert (pod.ends, pod.gpu_hours(4 * HOUR)) == (5 * HOUR, 12.0)
    assert (again.ends, again.gpu_hours(4 * HOUR)) == (11 * HOUR, 0.0)


def test_run_repacks_at_each_hour_and_counts_what_it_costs() -> None:
    """F52: a pod that arrives in the first hour waits until the second begins; the other two restart none."""
    trace, simulation = simulation_of(2, (ONE, TWO))
    run = OverTimeSimulation(trace, simulation, REPACK, None, 0.0, 2 * HOUR)
    for pod in spread_out(simulation):
        run._run(pod)
    run.arrive(PlayedPod(9, TWO, 10 * HOUR, HOUR / 2))

    run.leave_until(HOUR - 1)
    run.arrive(PlayedPod(10, CPU, HOUR, 2 * HOUR))

    result = run.result("repack", 1, 1.0)
    assert (result.moves, result.still_waiting, result.wait_seconds["mean"]) == (1, 0, HOUR / 2)
    assert result.lost_gpu_hours in (2.0, 4.0)


class Watched(OverTimeSimulation):
    """A run that checks after each repacking that GPUs, CPU and memory are held by its running pods, and no others."""

    def _repack(self, now: float) -> None:
        super()._repack(now)
        fleet = self._simulation.fleet
        used, cpu = Counter[tuple[int, int]](), list(fleet.cpu)
        for running in self._running.values():
            cpu[running.binding.position] += running.pod.task.cpu_milli
            for gpu in running.binding.gpus:
                used[running.binding.position, gpu] += running.pod.task.gpu_milli
        machines = {machine.name: machine for machine in self._trace.machines}
        assert max(used.values(), default=0) <= 1000
        assert cpu == [machines[name].cpu_milli for name in fleet.names]
        for position, name in enumerate(fleet.names):
            free = sorted((1000 - used[position, gpu] for gpu in range(machines[name].gpus)), reverse=True)
            assert tuple(free) == fleet.nodes[name].free.gpus


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 999), st.sampled_from([0.95, 1.2]))
def test_what_is_held_is_held_by_the_pods_that_run(seed: int, load: float) -> None:
    """F52: whatever a plan has moved."""
    trace, policy = synthetic("gpuspec33", 12), REPACK
    running, arriving = draw_pods(trace, OverTime(load, 60), seed)
    run = Watched(trace, Simulation(trace, policy, seed, Options(), RULES), policy, None, 0.0, arriving[-1].arrives)

    run.start(running)
    for pod in arriving:
        run.arrive(pod)

    assert run.result("repack", seed, load).still_waiting >= 0


def test_half_of_the_pods_with_one_whole_gpu_ask_for_half() -> None:
    """F52: and no other; the same ones for the same seed."""
    pods = [PlayedPod(number, task, 1.0, 0.0) for number, task in enumerate((ONE, SHARE, TWO, CPU) * 1000)]

    asked = [pod.task for pod in right_sized(pods, 1)]

    changed = [(pod.task, task) for pod, task in zip(pods, asked, strict=True) if pod.task != task]
    assert set(changed) == {(ONE, replace(ONE, gpu_milli=500))}
    assert 450 <= len(changed) <= 550
    assert asked == [pod.task for pod in right_sized(pods, 1)]
