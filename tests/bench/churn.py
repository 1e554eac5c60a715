# SPDX-License-Identifier: Apache-2.0
"""MIG slices that come and go: one seed of one mix and load under one policy, as the share of the slices accepted.

Poisson arrivals, exponential life, no queue: what finds no place is lost. Every policy sees the same arrivals.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from app.knowledge.geometry import Geometry, Instance
from app.knowledge.mig_placements import GPULayout
from app.placement.mig_headroom import first_fit, headroom_loss, placement_losses
from tests.builders import knowledge

GEOMETRY = knowledge().geometry["h100-80gb-hbm3"]
PROFILES = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
MIXES: Mapping[str, tuple[float, ...]] = {
    "uniform": (1, 1, 1, 1, 1, 1),
    "skew-small": (30, 25, 20, 10, 10, 5),
    "skew-big": (5, 10, 10, 20, 25, 30),
    "bimodal": (30, 15, 5, 5, 15, 30),
    "openb": (31, 0, 277, 1292, 0, 5389),
}
"""Weights of PROFILES. Families as in the MIG literature; openb: the pods of one GPU of the Alibaba trace of 2023
(openb_pod_list_default.csv), each as the smallest profile of its share."""
GPUS, A_NODE = 96, 8
WARM_UP = 3
"""The first third is not counted."""
STATES = 1 << 14
"""Answers remembered by GPU state; there are some 700."""

State = tuple[Instance, ...]
"""What lies on one GPU, sorted."""


class Arrival(NamedTuple):
    """One wish. `until`: when the instance goes, in mean lives; `luck`: in [0, 1), for policies that throw dice."""

    at: float
    profile: str
    until: float
    luck: float


class Chosen(NamedTuple):
    """Which GPU, and the first memory slice there."""

    gpu: int
    start: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """`accepted_percent`: of the memory slices asked after the warm-up. `left`: the instances at the end, by GPU."""

    accepted_percent: float
    placed: int
    ended: int
    left: tuple[State, ...]


class Fleet:
    """GPUs by index, the indices by state, and what policies found out of each node by profile, until it changes."""

    def __init__(self, gpus: int) -> None:
        self.states: list[State] = [()] * gpus
        self.by_state: dict[State, set[int]] = {(): set(range(gpus))}
        self.notes: list[dict[str, tuple[float, Chosen] | None]] = [{} for _ in range(0, gpus, A_NODE)]

    def put(self, gpu: int, state: State) -> None:
        """Change what lies on a GPU."""
        old = self.by_state[self.states[gpu]]
        old.remove(gpu)
        if not old:
            del self.by_state[self.states[gpu]]
        self.by_state.setdefault(state, set()).add(gpu)
        self.states[gpu] = state
        self.notes[gpu // A_NODE].clear()

    def node(self, number: int) -> tuple[GPULayout, ...]:
        """Give a node's GPUs as the product sees them."""
        states = self.states[number * A_NODE : (number + 1) * A_NODE]
        return tuple(GPULayout(str(index), GEOMETRY, state) for index, state in enumerate(states))


Policy = Callable[[Fleet, Arrival], Chosen | None]


def arrivals(mix: str, load: float, seed: int, count: int, gpus: int) -> Iterator[Arrival]:
    """Draw the arrivals. `load`: memory slices asked at a time, as a share of all there are."""
    chance = Random(f"{mix} {load} {seed}")
    weights = MIXES[mix]
    mean = sum(weight * GEOMETRY.slots[name].length for name, weight in zip(PROFILES, weights, strict=True))
    rate = load * gpus * GEOMETRY.memory_total / (mean / sum(weights))
    now = 0.0
    for _ in range(count):
        now += chance.expovariate(rate)
        profile = chance.choices(PROFILES, weights)[0]
        yield Arrival(now, profile, now + chance.expovariate(1.0), chance.random())


def churn(policy: Policy, wishes: Sequence[Arrival], gpus: int = GPUS) -> Outcome:
    """Play arrivals against a policy."""
    fleet = Fleet(gpus)
    going: list[tuple[float, int, Instance]] = []
    asked = accepted = placed = ended = 0
    for number, wish in enumerate(wishes):
        while going and going[0][0] <= wish.at:
            _, gpu, instance = heappop(going)
            fleet.put(gpu, tuple(each for each in fleet.states[gpu] if each != instance))
            ended += 1
        chosen = policy(fleet, wish)
        size = GEOMETRY.slots[wish.profile].length * (number * WARM_UP >= len(wishes))
        asked += size
        if chosen is not None:
            instance = Instance(wish.profile, chosen.start)
            fleet.put(chosen.gpu, tuple(sorted((*fleet.states[chosen.gpu], instance))))
            heappush(going, (wish.until, chosen.gpu, instance))
            accepted, placed = accepted + size, placed + 1
    return Outcome(100.0 * accepted / asked, placed, ended, tuple(fleet.states))


Cost = Callable[[Geometry, State, str], tuple[tuple[float, ...], int] | None]
"""(Cost, start) of the best start on a GPU in some state; None: the profile has no place there."""


def lowest(cost: Cost) -> Policy:
    """Make the policy that takes the GPU and start of the lowest cost, of equals the first GPU."""
    known = lru_cache(STATES)(cost)

    def choose(fleet: Fleet, wish: Arrival) -> Chosen | None:
        found = [
            (answer[0], min(gpus), answer[1])
            for state, gpus in fleet.by_state.items()
            if (answer := known(GEOMETRY, state, wish.profile)) is not None
        ]
        return Chosen(*min(found)[1:]) if found else None

    return choose


def _first(geometry: Geometry, state: State, profile: str) -> tuple[tuple[float, ...], int] | None:
    return next((((), start) for _, start in placement_losses(geometry, state, profile)), None)


def _fullest(geometry: Geometry, state: State, profile: str) -> tuple[tuple[float, ...], int] | None:
    """Give the GPU's free memory slices, and its lowest start: the one that a driver's list names first."""
    starts = [start for _, start in placement_losses(geometry, state, profile)]
    return ((_free(geometry, state),), min(starts)) if starts else None


def _fullest_from_above(geometry: Geometry, state: State, profile: str) -> tuple[tuple[float, ...], int] | None:
    """Prefer the highest start, of one GPU and of equally full ones: the low ones stay for large instances.

    The strongest best-fit that was found.
    """
    starts = [start for _, start in placement_losses(geometry, state, profile)]
    return ((_free(geometry, state), -max(starts)), max(starts)) if starts else None


def _free(geometry: Geometry, state: State) -> float:
    return geometry.memory_total - geometry.free_slices(state).memory.bit_count()


def _spoilt(geometry: Geometry, state: State, profile: str) -> tuple[tuple[float, ...], int] | None:
    """Do as least_spoiling does, which is too slow for so many."""
    found = min(((loss, -start) for loss, start in placement_losses(geometry, state, profile)), default=None)
    return (found, -found[1]) if found else None


def at_random(fleet: Fleet, wish: Arrival) -> Chosen | None:
    """Take any GPU that has room, and any start there."""
    able = sorted(
        gpu for state, gpus in fleet.by_state.items() if placement_losses(GEOMETRY, state, wish.profile) for gpu in gpus
    )
    if not able:
        return None
    gpu = able[int(wish.luck * len(able))]
    starts = placement_losses(GEOMETRY, fleet.states[gpu], wish.profile)
    return Chosen(gpu, starts[int(wish.luck * len(able) * len(starts)) % len(starts)][1])


def by_node(cost: Callable[[tuple[GPULayout, ...], str], float] | None) -> Policy:
    """Make the policy that chooses a node of eight alone: kube-scheduler's allocator then takes what it lists first.

    `cost`: of equals the first node; None: any node that has room.
    """

    def look(fleet: Fleet, number: int, profile: str) -> tuple[float, Chosen] | None:
        layouts = fleet.node(number)
        place = first_fit(layouts, (profile,))
        if place is None:
            return None
        return cost(layouts, profile) if cost else 0.0, Chosen(number * A_NODE + place[0].gpu, place[0].start)

    def choose(fleet: Fleet, wish: Arrival) -> Chosen | None:
        for number, notes in enumerate(fleet.notes):
            if wish.profile not in notes:
                notes[wish.profile] = look(fleet, number, wish.profile)
        found = [note for notes in fleet.notes if (note := notes[wish.profile]) is not None]
        if not found:
            return None
        return min(found)[1] if cost else found[int(wish.luck * len(found))][1]

    return choose


def _node_free(layouts: tuple[GPULayout, ...], _profile: str) -> float:
    return sum(_free(GEOMETRY, each.taken) for each in layouts)


def _node_spoilt(layouts: tuple[GPULayout, ...], profile: str) -> float:
    """Give what app.placement.mig_layouts.mig_layout scores a node by."""
    return headroom_loss(layouts, (profile,)) or 0.0


POLICIES: Mapping[str, Policy] = {
    "random": at_random,
    "first-fit": lowest(_first),
    "best-fit": lowest(_fullest),
    "best-fit from above": lowest(_fullest_from_above),
    "ours": lowest(_spoilt),
}
"""Those that choose GPU and start."""
BY_NODE: Mapping[str, Policy] = {
    "any node": by_node(None),
    "fullest node": by_node(_node_free),
    "MIGLayout": by_node(_node_spoilt),
}
"""Those that choose a node, as a scheduler extender can; which slice, kube-scheduler says."""
