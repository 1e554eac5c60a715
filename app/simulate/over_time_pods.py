# SPDX-License-Identifier: Apache-2.0
"""The pods of a simulation over time: those that run when it starts, and those that arrive."""

from dataclasses import dataclass
from itertools import accumulate
from random import Random

from app.simulate.trace import Task, Trace
from app.values.errors import BadInput


@dataclass(frozen=True, slots=True)
class OverTime:
    """What is played over time.

    `load` is the GPU time that arriving pods ask for per second, as a share of the GPUs of the cluster. `pods` is how
    many of them arrive.
    """

    load: float
    pods: int


@dataclass(frozen=True, slots=True)
class PlayedPod:
    """A pod: its number, its task, for how many seconds it runs, and when it arrives, in seconds from the start."""

    number: int
    task: Task
    seconds: float
    arrives: float


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


def _draw_running(known: list[tuple[Task, float]], milli: float, rng: Random) -> list[PlayedPod]:
    """Draw pods that run at the start until they ask for so many thousandths of a GPU."""
    weights = list(accumulate(seconds for _, seconds in known))
    running: list[PlayedPod] = []
    while milli > 0:
        ((task, seconds),) = rng.choices(known, cum_weights=weights)
        running.append(PlayedPod(len(running), task, rng.uniform(0, seconds), 0.0))
        milli -= task.milli
    return running
