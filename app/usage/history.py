# SPDX-License-Identifier: Apache-2.0
"""The history of the GPUs that pods held: windows of time, and what was seen in each of them.

A window counts minutes. A minute counts as held where a series with the pod existed, and as known where the activity of
the GPU had a value then. What is not known stays so: no figure stands for it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from app.policy.schema_admission import IDLE_BELOW

MINUTE = 60
"""Seconds between two looks at a series within a window; exporters are scraped every 15 to 60 s."""
KNOWN_SHARE = 0.9
"""The share of a window in which activity must be known for the window to count as idle. One lost scrape in fifteen
minutes leaves a window idle; a longer gap ends what is known of idleness. A guess, on the safe side."""


class Window(NamedTuple):
    """What was seen of a held GPU in one window of time.

    `number` counts windows from the start of the history. `held` and `known` are minutes, `active` is the sum of the
    activity over the known minutes, in minutes of full activity. `peak` is the highest activity, and `extent` the
    highest share of multiprocessors in use, both as a share of one. `memory_mib` is the most memory in use. None is
    unknown.
    """

    number: int
    held: float
    known: float = 0.0
    active: float = 0.0
    peak: float | None = None
    extent: float | None = None
    memory_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """A GPU, or a MIG instance of it, that a pod held.

    `gpu` is its UUID, or its number where there is none. `instance` and `profile` are empty for a whole GPU. `model` is
    the product as DCGM writes it. `shared` tells that the values are of all pods on the GPU together.
    """

    namespace: str
    pod: str
    node: str
    gpu: str
    instance: str
    profile: str
    model: str
    shared: bool
    windows: tuple[Window, ...]

    @property
    def device(self) -> tuple[str, str]:
        """The identity of the GPU or of the instance."""
        return self.gpu if self.gpu.startswith("GPU-") else f"{self.node}/{self.gpu}", self.instance


@dataclass(frozen=True, slots=True)
class UseHistory:
    """What is known of the GPUs that pods held, from `start` to `end` in seconds since the epoch.

    `window_seconds` is the length of a window. `problems` say which part could not be read, or is not to be trusted.
    """

    start: float
    end: float
    window_seconds: int
    holds: tuple[Hold, ...]
    problems: tuple[str, ...] = ()

    @property
    def windows(self) -> int:
        return round((self.end - self.start) / self.window_seconds)

    @property
    def minutes(self) -> int:
        return self.window_seconds // MINUTE


Pace = Callable[[Iterable[Any]], Iterable[Any]]
"""Goes through holds or rows at the pace of the caller, which may rest between two (cluster/usage_polling.py)."""


def with_sharing(history: UseHistory, shared_nodes: frozenset[str] = frozenset(), pace: Pace = iter) -> UseHistory:
    """Mark the GPUs that several pods held at once, and all whole GPUs of `shared_nodes`, as shared.

    Where the exporter does not know of time-slicing, it names one of the pods that share a GPU, and the metrics cannot
    tell which (NVIDIA/dcgm-exporter internal/pkg/transformation/kubernetes.go, toDeviceToPod): that is what
    `shared_nodes` is for.
    """
    crowded = set(_crowded(history, pace))
    holds = (
        replace(hold, shared=True)
        if hold.device in crowded or (hold.node in shared_nodes and not hold.instance)
        else hold
        for hold in pace(history.holds)
    )
    return replace(history, holds=tuple(holds))


def _crowded(history: UseHistory, pace: Pace) -> Iterator[tuple[str, str]]:
    """Yield the devices that two pods held at the same time for certain: each for most of one window."""
    most = 0.75 * history.minutes
    holders: dict[tuple[tuple[str, str], int], str] = {}
    for hold in pace(history.holds):
        for window in hold.windows:
            if window.held > most:
                pod = f"{hold.namespace}/{hold.pod}"
                if holders.setdefault((hold.device, window.number), pod) != pod:
                    yield hold.device


def held_now(hold: Hold, history: UseHistory) -> bool:
    """Tell whether the pod held the GPU in the last window."""
    return bool(hold.windows) and hold.windows[-1].number == history.windows - 1


def idle_seconds(holds: Iterable[Hold], history: UseHistory, below: float = IDLE_BELOW) -> float:
    """Give for how long a GPU has been idle for certain until the end of the history; 0 where that is not known.

    `holds` are those of one pod on one GPU, or of all pods that share it. A window is idle where the activity is known
    and was never above `below`. The first window from the end that is not, ends the count, whatever the cause.
    """
    by_number: dict[int, list[Window]] = {}
    for hold in holds:
        for window in hold.windows:
            by_number.setdefault(window.number, []).append(window)
    idle = 0
    for number in range(history.windows - 1, -1, -1):
        windows = by_number.get(number)
        if not windows or not all(_is_idle(window, history, below) for window in windows):
            break
        idle += 1
    return float(idle * history.window_seconds)


def _is_idle(window: Window, history: UseHistory, below: float) -> bool:
    known = min(window.known, window.held) >= KNOWN_SHARE * history.minutes
    return known and window.peak is not None and window.peak <= below
