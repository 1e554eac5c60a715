# SPDX-License-Identifier: Apache-2.0
"""MIG slices that come and go: the share of the slices that a policy accepts, for one seed of a mix and a load.

Arrivals are a Poisson process, lives are exponential, and there is no queue: a slice without a place is lost. Every
policy gets the same arrivals.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from app.knowledge.mig_geometry import Geometry, GPULayout, Instance
from app.placement.mig_slices import first_fit, headroom_loss, placement_losses
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
"""1 / the share of the arrivals, at the beginning, that is not counted."""
STATES = 1 << 14
"""Size of the cache of answers by GPU state, of which there are about 700."""

State = tuple[Instance, ...]
"""The instances on one GPU, sorted."""


class Arrival(NamedTuple):
    """A slice that is requested at the time `at`.

    `until` is the time of its end; both are in mean lives. `luck` is in [0, 1), for policies that choose at random.
    """

    at: float
    profile: str
    until: float
    luck: float


class Chosen(NamedTuple):
    """The chosen GPU, and the index of the first memory slice on it."""

    gpu: int
    start: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run.

    `accepted_percent` is a share of the memory slices requested after the warm-up. `left` holds the instances at the
    end, by GPU.
    """

    accepted_percent: float
    placed: int
    ended: int
    left: tuple[State, ...]


class Fleet:
    """The states of the GPUs, the GPUs of each state, and the notes of policies on each node until it changes."""

    def __init__(self, gpus: int) -> None:
        self.states: list[State] = [()] * gpus
        self.by_state: dict[State, set[int]] = {(): set(range(gpus))}
        self.notes: list[dict[str, tuple[float, Chosen] | None]] = [{} for _ in range(0, gpus, A_NODE)]

    def put(self, gpu: int, state: State) -> None:
        """Set the instances of a GPU."""
        old = self.by_state[self.states[gpu]]
        old.remove(gpu)
        if not old:
            del self.by_state[self.states[gpu]]
        self.by_state.setdefault(state, set()).add(gpu)
        self.states[gpu] = state
        self.notes[gpu // A_NODE].clear()

    def node(self, number: int) -> tuple[GPULayout, ...]:
        """Return the layouts of a node's GPUs in the form that the product uses."""
        states = self.states[number * A_NODE : (number + 1) * A_NODE]
        return tuple(GPULayout(str(index), GEOMETRY, state) for index, state in enumerate(states))


Policy = Callable[[Fleet, Arrival], Chosen | None]


def arrivals(mix: str, load: float, seed: int, count: int, gpus: int) -> Iterator[Arrival]:
    """Draw the arrivals; `load` is the mean of the memory slices requested at a time, as a share of all there are."""
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
    requested = accepted = placed = ended = 0
    for number, wish in enumerate(wishes):
        while going and going[0][0] <= wish.at:
            _, gpu, instance = heappop(going)
            fleet.put(gpu, tuple(remaining for remaining in fleet.states[gpu] if remaining != instance))
            ended += 1
        chosen = policy(fleet, wish)
        size = GEOMETRY.slots[wish.profile].length * (number * WARM_UP >= len(wishes))
        requested += size
        if chosen is not None:
            instance = Instance(wish.profile, chosen.start)
            fleet.put(chosen.gpu, tuple(sorted((*fleet.states[chosen.gpu], instance))))
            heappush(going, (wish.until, chosen.gpu, instance))
            accepted, placed = accepted + size, placed + 1
    return Outcome(100.0 * accepted / requested, placed, ended, tuple(fleet.states))


Cost = Callable[[Geometry, State, str], tuple[tuple[float, ...], int] | None]
"""Returns (cost, start) of the best start on a GPU in some state, or None where the profile has no place."""


def lowest(cost: Cost) -> Policy:
    """Make the policy that takes the GPU and start of the lowest cost, and the first GPU of several such."""
    remembered_cost = lru_cache(STATES)(cost)

    def choose(fleet: Fleet, wish: Arrival) -> Chosen | None:
        placements = [
            (answer[0], min(gpus), answer[1])
            for state, gpus in fleet.by_state.items()
            if (answer := remembered_cost(GEOMETRY, state, wish.profile)) is not None
        ]
        return Chosen(*min(placements)[1:]) if placements else None

    return choose


def _first(geometry: Geometry, state: State, profile: str) -> tuple[tuple[float, ...], int] | None:
    return next((((), start) for _, start in placement_losses(geometry, state, profile)), None)


def _fullest(geometry: Geometry, state: State, profile: str) -> tuple[tuple[float, ...], int] | None:
    """Return the GPU's free memory slices and its lowest start, which is the one that a driver's list names first."""
    starts = [start for _, start in placement_losses(geometry, state, profile)]
    return ((_free(geometry, state),), min(starts)) if starts else None


def _fullest_from_above(geometry: Geometry, state: State, profile: str) -> tuple[tuple[float, ...], int] | None:
    """Prefer the highest start on a GPU and among equally full GPUs, which leaves the low ones for large instances.

    This is the best best-fit policy that was found.
    """
    starts = [start for _, start in placement_losses(geometry, state, profile)]
    return ((_free(geometry, state), -max(starts)), max(starts)) if starts else None


def _free(geometry: Geometry, state: State) -> float:
    return geometry.memory_total - geometry.occupancy(state).taken_memory.bit_count()


def _spoilt(geometry: Geometry, state: State, profile: str) -> tuple[tuple[float, ...], int] | None:
    """Return the least loss of placements; app's own least_spoiling is too slow for so many."""
    best = min(((loss, -start) for loss, start in placement_losses(geometry, state, profile)), default=None)
    return (best, -best[1]) if best else None


def at_random(fleet: Fleet, wish: Arrival) -> Chosen | None:
    """Take a random GPU that has room, and a random start on it."""
    able = sorted(
        gpu for state, gpus in fleet.by_state.items() if placement_losses(GEOMETRY, state, wish.profile) for gpu in gpus
    )
    if not able:
        return None
    gpu = able[int(wish.luck * len(able))]
    starts = placement_losses(GEOMETRY, fleet.states[gpu], wish.profile)
    return Chosen(gpu, starts[int(wish.luck * len(able) * len(starts)) % len(starts)][1])


def by_node(cost: Callable[[tuple[GPULayout, ...], str], float] | None) -> Policy:
    """Make the policy that chooses a node of eight GPUs, where kube-scheduler's allocator takes its first place.

    `cost` is minimised, and of several such nodes the first is taken; None takes a random node that has room.
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
        places = [note for notes in fleet.notes if (note := notes[wish.profile]) is not None]
        if not places:
            return None
        return min(places)[1] if cost else places[int(wish.luck * len(places))][1]

    return choose


def _node_free(layouts: tuple[GPULayout, ...], _profile: str) -> float:
    return sum(_free(GEOMETRY, layout.taken) for layout in layouts)


def _node_spoilt(layouts: tuple[GPULayout, ...], profile: str) -> float:
    """Return the score that app.placement.scorers.mig_layout gives a node."""
    return headroom_loss(layouts, (profile,)) or 0.0


POLICIES: Mapping[str, Policy] = {
    "random": at_random,
    "first-fit": lowest(_first),
    "best-fit": lowest(_fullest),
    "best-fit from above": lowest(_fullest_from_above),
    "ours": lowest(_spoilt),
}
"""Policies that choose a GPU and a start on it."""
BY_NODE: Mapping[str, Policy] = {
    "any node": by_node(None),
    "fullest node": by_node(_node_free),
    "MIGLayout": by_node(_node_spoilt),
}
"""Policies that choose a node, as a scheduler extender can; kube-scheduler then chooses the slice."""
