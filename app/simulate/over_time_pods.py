# SPDX-License-Identifier: Apache-2.0
"""The pods of a simulation over time: those that run when it starts, and those that arrive."""

from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from app.nodes.model import WHOLE_MILLI
from app.simulate.trace import Task, Trace
from app.values.errors import BadInput

RIGHT_SIZED_SHARE = 0.5
"""The share of the pods with one whole GPU that `right_sized` gives half of one. An assumption."""


@dataclass(frozen=True, slots=True)
class OverTime:
    """What is played over time.

    `load` is the GPU time that arriving pods ask for per second, as a share of the GPUs of the cluster. `pods` is how
    many of them arrive. Of the machines of the trace every `every`th is played.
    """

    load: float
    pods: int
    every: int = 1


@dataclass(frozen=True, slots=True)
class PlayedPod:
    """A pod: its number, its task, for how many seconds it runs, and when it arrives, in seconds from the start.

    `ran` is for how many seconds it had run before the simulation, beside `seconds`.
    """

    number: int
    task: Task
    seconds: float
    arrives: float
    ran: float = 0.0


def draw_pods(trace: Trace, played: OverTime, seed: int) -> tuple[list[PlayedPod], list[PlayedPod]]:
    """Draw the pods that run at the start, and those that arrive, from the tasks of a trace whose duration is known.

    Arrivals are a Poisson process, tasks are drawn with replacement. What runs at the start is drawn as it would be
    found after a long time without a queue (M/G/∞: a task by its duration, of which what is left is uniform), because
    the longest pods of the published trace run for five months, and half of the GPU time is theirs.

    Raises BadInput where the trace says of no task how long it runs.
    """
    known = [(task, float(seconds)) for task, seconds in zip(trace.tasks, trace.seconds, strict=True) if seconds]
    asked_per_pod = sum(task.milli * seconds for task, seconds in known) / max(1, len(known))
    if not asked_per_pod:
        raise BadInput(f"--load: workload {trace.workload[:40]!r} does not say how long pods with GPUs run")
    rng = Random(f"{seed} over time")
    running = _draw_running(known, played.load * trace.capacity_milli, rng)
    rate = played.load * trace.capacity_milli / asked_per_pod
    now, arriving = 0.0, []
    for number in range(len(running), len(running) + played.pods):
        now += rng.expovariate(rate)
        arriving.append(PlayedPod(number, *rng.choice(known), now))
    return running, arriving


def right_sized(pods: list[PlayedPod], seed: int) -> list[PlayedPod]:
    """Return the pods where half of those that ask for one whole GPU ask for half of one, and run as long.

    No trace says how much of its GPUs a pod uses: that half of them would do with half a GPU is an assumption.
    """
    rng = Random(f"{seed} right-sized")
    return [
        replace(pod, task=replace(pod.task, gpu_milli=WHOLE_MILLI // 2))
        if pod.task.milli == WHOLE_MILLI and rng.random() < RIGHT_SIZED_SHARE
        else pod
        for pod in pods
    ]


def _draw_running(known: list[tuple[Task, float]], milli: float, rng: Random) -> list[PlayedPod]:
    """Draw pods that run at the start until they ask for so many thousandths of a GPU."""
    weights = list(accumulate(seconds for _, seconds in known))
    running: list[PlayedPod] = []
    while milli > 0:
        ((task, seconds),) = rng.choices(known, cum_weights=weights)
        left = rng.uniform(0, seconds)
        running.append(PlayedPod(len(running), task, left, 0.0, seconds - left))
        milli -= task.milli
    return running
