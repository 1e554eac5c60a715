# SPDX-License-Identifier: Apache-2.0
"""Repacking in a simulation over time: the plans of `plan repack` on the simulated cluster (whatif/repack.py).

A pod that is moved starts again on another node, so that the work that it has done is lost. Plans are carried out at
once, and the pods for which they make room get it, as where nodes are cordoned until the moves are made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.demo.sample_fleets import WHOLE_GPU
from app.knowledge.products import WHOLE_MILLI
from app.placement.engine import total
from app.placement.ranking import ranking_key
from app.whatif.fleet_with_moves import FleetWithMoves
from app.whatif.repack import Repacking
from app.whatif.repack_search import RepackPod
from tests.bench.simulate.over_time_figures import PlayedPod
from tests.bench.simulate.run import Simulation
from tests.bench.simulate.simulated_cluster import Binding

HOUR = 3600.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod that runs on a node since a moment, in seconds from the start of the simulation."""

    pod: PlayedPod
    binding: Binding
    since: float

    @property
    def ends(self) -> float:
        """The moment at which it leaves."""
        return self.since + self.pod.seconds

    def gpu_hours(self, now: float) -> float:
        """Return the work that it has done since it was started last, before the simulation too, in GPU hours."""
        return self.pod.task.milli / WHOLE_MILLI * (self.pod.ran + now - self.since) / HOUR

    def restarted(self, binding: Binding, now: float) -> "RunningPod":
        """Return it as it starts again on another node."""
        return RunningPod(replace(self.pod, seconds=self.pod.ran + self.pod.seconds, ran=0.0), binding, now)


class RepackedFleet(FleetWithMoves):
    """The simulated cluster as a fleet whose pods a plan moves. A pod that is put back gets the very GPUs that it had.

    Every judgement is the simulation's own, so that nothing of a snapshot is kept.

    `running` and `waiting` are the GPU pods by name.
    """

    def __init__(
        self, simulation: Simulation, running: Mapping[str, RunningPod], waiting: Mapping[str, PlayedPod]
    ) -> None:
        self._simulation, self._fleet = simulation, simulation.fleet
        self._tasks = {name: pod.pod.task for name, pod in running.items()}
        self._tasks.update((name, pod.task) for name, pod in waiting.items())
        self._origins = {name: pod.binding for name, pod in running.items()}
        self.bindings = dict(self._origins)
        """Where each pod is now, by name."""

    def fits(self, pod: str, node: str) -> bool:
        """Tell whether a node has room for a pod."""
        return self._simulation.fits(self._fleet.positions[node], self._tasks[pod])

    def could_fit(self, pod: str, node: str, without: Sequence[str]) -> bool:
        """Tell by sums of GPU, CPU and memory whether a pod may fit without other pods of the node."""
        task, position, fleet = self._tasks[pod], self._fleet.positions[node], self._fleet
        leaving = [self._tasks[name] for name in without]
        return (
            sum(fleet.nodes[node].free.gpus or ()) + sum(other.milli for other in leaving) >= task.milli
            and fleet.cpu[position] + sum(other.cpu_milli for other in leaving) >= task.cpu_milli
            and fleet.memory[position] + sum(other.memory_mib for other in leaving) >= task.memory_mib
        )

    def place(self, pod: str, node: str) -> None:
        """Bind a pod, to the GPUs that it had where it comes back."""
        position, origin = self._fleet.positions[node], self._origins.get(pod)
        if origin is not None and origin.position == position:
            self._fleet.bind_again(origin, self._tasks[pod])
            self.bindings[pod] = origin
        else:
            self.bindings[pod] = self._fleet.bind(position, self._tasks[pod])

    def remove(self, pod: str) -> None:
        """Take a pod from its node."""
        self._fleet.release(self.bindings.pop(pod), self._tasks[pod])

    def rank(self, pod: str, node: str) -> tuple[float, tuple[int, str]]:
        """Return the sort key of a node that fits, the one that the engine prefers first."""
        return ranking_key(total(self._simulation.demands.of(self._tasks[pod]), self._fleet.nodes[node]), node)

    def preferred(self, pod: str, node: str) -> list[str]:  # noqa: ARG002  # the simulation has no cordons
        """List no node to cordon, because a simulated pod goes where the plan says."""
        return []

    def nodes(self) -> Sequence[str]:
        """Return the names of the nodes."""
        return self._fleet.names


@dataclass(frozen=True, slots=True)
class Repacked:
    """What a plan has changed: pods that were restarted, and pods that have waited and run now, each with its place."""

    moved: tuple[tuple[RunningPod, Binding], ...]
    started: tuple[tuple[PlayedPod, Binding], ...]


def repack(simulation: Simulation, running: Sequence[RunningPod], waiting: Sequence[PlayedPod]) -> Repacked:
    """Move as few pods as make room for the pods that wait, as `plan repack` plans it; the cluster is changed."""
    running_by_name = {str(pod.pod.number): pod for pod in running if pod.pod.task.gpus}
    waiting_by_name = {str(pod.number): pod for pod in waiting if pod.task.gpus}
    fleet = RepackedFleet(simulation, running_by_name, waiting_by_name)
    nodes = simulation.fleet.names
    pods = [_repack_pod(pod.pod, nodes[pod.binding.position]) for pod in running_by_name.values()]
    pods += [_repack_pod(pod, "") for pod in waiting_by_name.values()]
    plan = Repacking(fleet, pods, lambda _: None, budgets_seen=True).place_waiting()
    return Repacked(
        tuple((running_by_name[move.pod], fleet.bindings[move.pod]) for move in plan.moves),
        tuple((waiting_by_name[seat.pod], fleet.bindings[seat.pod]) for seat in plan.waiting if seat.node),
    )


def _repack_pod(pod: PlayedPod, node: str) -> RepackPod:
    return RepackPod(str(pod.number), node, ((WHOLE_GPU, pod.task.gpus),))
