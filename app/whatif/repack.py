# SPDX-License-Identifier: Apache-2.0
"""The fewest moves of pods that free a whole node, an NVLink domain, or places for the pods that wait.

A move is the restart of a pod on another node. It is advice: nothing is moved. Pods move one at a time, each when the
one before it runs again. A node is not freed by filling an empty one, nor an NVLink domain by filling an empty domain.
Of equally many moves those are preferred that lose the fewest GPU-hours: what the pods have run since their start, as
their checkpoints are unknown. A pod whose start is unknown is taken for older than any other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from app.whatif.fleet_with_moves import FleetWithMoves
from app.whatif.repack_search import Loss, RepackPod, RepackSearch, Seats, total_loss

MOST_MOVES = 8
"""Moves of a plan by default. A guess: more restarts than the GPUs of a node are rarely worth a free one."""
MOST_EXTRA = 3
"""Pods that an exact search moves out of the way of others, in one plan; each more takes some fifty times as long."""
HIGHEST_PRIORITY = 2**31 - 1


class Freed(Enum):
    """What is to be freed."""

    Node = "node"
    Domain = "domain"
    Places = "places"


class Method(Enum):
    """How a plan was found: no plan has fewer moves, or there may be one with fewer."""

    Exact = "exact"
    Greedy = "greedy"


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that is restarted. `seat` is its new node, proven with the moves before it made.

    `gpus` are the units that it holds by resource, and `memory_mib` is their memory, None if it is not known. The pod
    has run for `hours`, which are `gpu_hours` of its units together; None if its start is not known. `controller` makes
    it again. `cordon` are nodes that the engine would prefer at that moment, so that they have to be cordoned until the
    pod runs again.
    """

    pod: str
    source: str
    seat: str
    controller: str
    priority: int
    gpus: Mapping[str, int]
    memory_mib: int | None
    hours: float | None
    gpu_hours: float | None
    cordon: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WaitingSeat:
    """A pod that waits, and the node where it runs after the first `after` moves; `node` is empty if none was found."""

    pod: str
    node: str
    after: int


@dataclass(frozen=True, slots=True)
class HeldNode:
    """A node, or NVLink domain, that cannot be freed because a pod has to stay, and why."""

    name: str
    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class Repack:
    """A plan. `freed` is what was asked for, `nodes` are those that become free, in the NVLink domain `domain` if any.

    `moves` are in order, empty where there is no plan, or where none is needed. `waiting` are the pods that wait, where
    places were asked for. `method` says whether there may be a plan with fewer moves. `most_moves` was the limit, and
    `most_extra` that of moves, for one node, domain or pod, which only make room for others.
    `restarts`, `gpus` and `memory_mib` are what it costs: pods, and the GPU units and memory that they hold.
    `gpu_hours` are those that the pods have run since their start, None where that of one is not known.
    `held` is what cannot be freed. `budgets_seen` says whether PodDisruptionBudgets were among the objects.
    """

    freed: Freed
    nodes: tuple[str, ...]
    domain: str
    moves: tuple[Move, ...]
    waiting: tuple[WaitingSeat, ...]
    method: Method
    most_moves: int
    most_extra: int
    restarts: int
    gpus: int
    memory_mib: int | None
    gpu_hours: float | None
    held: tuple[HeldNode, ...]
    budgets_seen: bool

    @property
    def possible(self) -> bool:
        """Tell whether it frees what was asked for; of pods that wait, all."""
        return all(seat.node for seat in self.waiting) if self.freed is Freed.Places else bool(self.nodes)


@dataclass(frozen=True, slots=True)
class RepackUnit:
    """What is freed as a whole: a node, or the nodes of an NVLink domain. `pods` are the GPU pods on it."""

    name: str
    nodes: tuple[str, ...]
    pods: tuple[RepackPod, ...]


class Repacking:
    """Makes the plans for one fleet. `pods` are all GPU pods, running and waiting, the latter in their order.

    `memory_mib` returns the memory of the units that a pod holds on a node, None if it is not known.
    """

    def __init__(
        self,
        fleet: FleetWithMoves,
        pods: Iterable[RepackPod],
        memory_mib: Callable[[RepackPod], int | None],
        budgets_seen: bool,
        most_moves: int = MOST_MOVES,
    ) -> None:
        self._fleet = fleet
        self._pods = {pod.name: pod for pod in pods}
        self._memory_mib = memory_mib
        self._budgets_seen = budgets_seen
        self._most_moves = most_moves
        self._search = RepackSearch(fleet, self._pods)
        self._moves: list[Move] = []
        self._method = Method.Exact

    def free_unit(self, freed: Freed, units: Mapping[str, Sequence[str]], chosen: Iterable[str]) -> Repack:
        """Free one of the `chosen` units. `units` are the nodes of every unit of the fleet, by its name.

        Pods may also move to nodes that belong to no unit.
        """
        on: dict[str, list[RepackPod]] = {}
        for pod in self._pods.values():
            on.setdefault(pod.node, []).append(pod)
        made = {
            name: RepackUnit(name, tuple(nodes), tuple(pod for node in nodes for pod in on.get(node, ())))
            for name, nodes in units.items()
        }
        empty = frozenset(node for unit in made.values() if not unit.pods for node in unit.nodes)
        candidates = [made[name] for name in chosen if made[name].pods]
        held = tuple(HeldNode(unit.name, pod.name, pod.kept) for unit in candidates for pod in _first_kept(unit))
        free = sorted((unit for unit in candidates if not any(_first_kept(unit))), key=_cost)
        unit = self._free_first(free, empty)
        return self._answer(freed, unit.nodes if unit else (), unit.name if unit else "", (), held)

    def place_waiting(self) -> Repack:
        """Find places for the pods that wait, one after another; those of higher priority than it are not moved."""
        waiting = [pod for pod in self._pods.values() if not pod.node]
        seats = tuple(self._place(pod) for pod in waiting)
        return self._answer(Freed.Places, (), "", seats, ())

    def _free_first(self, units: Sequence[RepackUnit], empty: frozenset[str]) -> RepackUnit | None:
        """Free the unit that takes the fewest moves, and of those the one that loses least."""
        for moves in range(1, self._most_moves + 1):
            untried = any(moves - 1 - len(unit.pods) > MOST_EXTRA for unit in units)
            exact = not (untried or self._search.exhausted)
            best: tuple[RepackUnit, Seats] | None = None
            below: Loss | None = None
            for unit in units:
                extra = moves - len(unit.pods)
                if 0 <= extra <= MOST_EXTRA and (seats := self._seats(unit, extra, empty, below=below)):
                    best, below = (unit, seats), self._search.loss(seats)
            if best is not None:
                self._method = Method.Exact if exact else Method.Greedy
                self._make(best[1])
                return best[0]
        if not self._search.exhausted:
            return None
        self._method = Method.Greedy
        for unit in units:
            if len(unit.pods) <= self._most_moves and (seats := self._seats(unit, 0, empty, greedy=True)):
                self._make(seats)
                return unit
        return None

    def _seats(
        self, unit: RepackUnit, extra: int, empty: frozenset[str], greedy: bool = False, below: Loss | None = None
    ) -> Seats | None:
        """Find places for the pods of a unit."""
        names = [pod.name for pod in unit.pods]
        closed = empty | frozenset(unit.nodes)
        for name in names:
            self._fleet.remove(name)
        seats = self._search.find(names, extra, closed, HIGHEST_PRIORITY, greedy, below)
        for pod in unit.pods:
            self._fleet.place(pod.name, pod.node)
        return seats

    def _place(self, pod: RepackPod) -> WaitingSeat:
        """Place a pod that waits, with as few moves as it takes."""
        for greedy in (False, True):
            for extra in range(min(MOST_EXTRA, self._most_moves - len(self._moves)) + 1):
                exact = not self._search.exhausted
                seats = self._search.find([pod.name], extra, frozenset(), pod.priority, greedy)
                if seats is not None:
                    self._method = self._method if exact else Method.Greedy
                    self._make(seats)
                    return WaitingSeat(pod.name, seats[-1][1], len(self._moves))
            if not self._search.exhausted:
                return WaitingSeat(pod.name, "", len(self._moves))
        self._method = Method.Greedy
        return WaitingSeat(pod.name, "", len(self._moves))

    def _make(self, seats: Seats) -> None:
        """Make the moves in the fleet, and note each with what it costs at that moment."""
        for name, node in seats:
            pod = self._pods[name]
            if pod.node:
                self._fleet.remove(name)
                cordon = tuple(self._fleet.preferred(name, node))
                self._moves.append(
                    Move(
                        name,
                        pod.node,
                        node,
                        pod.controller,
                        pod.priority,
                        dict(pod.units),
                        self._memory_mib(pod),
                        pod.hours,
                        None if pod.hours is None else round(pod.gpus * pod.hours, 2),
                        cordon,
                    )
                )
            self._fleet.place(name, node)
        self._search.settle(seats)

    def _answer(
        self,
        freed: Freed,
        nodes: tuple[str, ...],
        domain: str,
        waiting: tuple[WaitingSeat, ...],
        held: tuple[HeldNode, ...],
    ) -> Repack:
        memory = [move.memory_mib for move in self._moves if move.memory_mib is not None]
        hours = [move.gpu_hours for move in self._moves if move.gpu_hours is not None]
        return Repack(
            freed=freed,
            nodes=nodes,
            domain=domain if freed is Freed.Domain else "",
            moves=tuple(self._moves),
            waiting=waiting,
            method=self._method,
            most_moves=self._most_moves,
            most_extra=MOST_EXTRA,
            restarts=len(self._moves),
            gpus=sum(sum(move.gpus.values()) for move in self._moves),
            memory_mib=sum(memory) if len(memory) == len(self._moves) else None,
            gpu_hours=round(sum(hours), 2) if len(hours) == len(self._moves) else None,
            held=held,
            budgets_seen=self._budgets_seen,
        )


def _first_kept(unit: RepackUnit) -> tuple[RepackPod, ...]:
    """Return the first pod of a unit that has to stay; empty if there is none."""
    return tuple(pod for pod in unit.pods if pod.kept)[:1]


def _cost(unit: RepackUnit) -> tuple[Loss, int, str]:
    return total_loss(unit.pods), sum(pod.priority for pod in unit.pods), unit.name
