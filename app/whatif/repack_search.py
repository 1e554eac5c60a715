# SPDX-License-Identifier: Apache-2.0
"""The search for the fewest moves that place displaced pods, each move proven when its turn comes.

A pod without a place takes a node that has room, or one that has it once other pods are moved away, which then need
places themselves. Plans of fewer moves are tried first, and no pod is moved twice. In a plan of the fewest moves every
moved pod either had to go, or makes room for a pod that takes its place: the search visits all such plans, so that the
first one is of the fewest moves, as long as a pod that leaves a node refuses nothing to others. Of those it then looks
for the one that loses least (`Loss`), and passes over what loses as much already. Bounds make it give up (`exhausted`);
then `greedy` takes the first place that there is for each pod.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from app.whatif.fleet_with_moves import FleetWithMoves

MOST_PROOFS = 200_000
"""Places that are judged in all exact searches for a plan, in up to 30 µs each; greedy ones have as many again."""
MOST_BETTER = 20_000
"""Places that are judged in search of plans of as many moves that lose less: a tenth of MOST_PROOFS. A guess."""

Loss = tuple[int, float, int]
"""What restarts lose, compared in this order: the GPUs of pods whose age is unknown, which are taken for the oldest;
the GPU-hours that the others have run; the GPUs of all."""
NO_LOSS: Loss = (0, 0.0, 0)
Seats = tuple[tuple[str, str], ...]
"""(pod, node) in the order in which pods are moved."""


@dataclass(frozen=True, slots=True)
class RepackPod:
    """A GPU pod. `node` is empty while it waits. `units` are its GPU resources; `gpus` is their sum.

    `kept` says why it has to stay where it is; empty if it may be restarted. `controller` is what makes it again.
    `hours` are those since its start, None if that is not known.
    """

    name: str
    node: str
    units: tuple[tuple[str, int], ...]
    priority: int = 0
    controller: str = ""
    kept: str = ""
    hours: float | None = None

    @property
    def gpus(self) -> int:
        """The units that it holds or asks for."""
        return sum(units for _, units in self.units)

    @property
    def loss(self) -> Loss:
        """What its restart loses; nothing while it waits."""
        if not self.node:
            return NO_LOSS
        return (self.gpus, 0.0, self.gpus) if self.hours is None else (0, self.gpus * self.hours, self.gpus)


def total_loss(pods: Iterable[RepackPod]) -> Loss:
    """Add up what restarts lose."""
    unknown, hours, gpus = zip(NO_LOSS, *(pod.loss for pod in pods), strict=True)
    return sum(unknown), sum(hours), sum(gpus)


class Search(Enum):
    """The searches, each with a number of judgements of its own."""

    Exact = "exact"
    Better = "better"
    Greedy = "greedy"


class Exhausted(Exception):
    """The bound of a search is reached. It never leaves this module."""


class RepackSearch:
    """Searches for moves. `pods` are all GPU pods by name; exact searches make at most `most_proofs` judgements."""

    def __init__(self, fleet: FleetWithMoves, pods: Mapping[str, RepackPod], most_proofs: int = MOST_PROOFS) -> None:
        self._fleet = fleet
        self._pods = pods
        self._proofs_left = {Search.Exact: most_proofs, Search.Better: MOST_BETTER, Search.Greedy: MOST_PROOFS}
        self._on: dict[str, list[str]] = {}
        for pod in sorted(pods.values(), key=lambda pod: (pod.gpus, pod.priority, pod.name)):
            self._on.setdefault(pod.node, []).append(pod.name)
        self._search = Search.Exact
        self._below: Loss | None = None
        self._closed: frozenset[str] = frozenset()
        self._highest = 0
        self._moved: frozenset[str] = frozenset()
        self.exhausted = False
        """Whether a search has given up before it had tried everything."""

    def settle(self, moves: Seats) -> None:
        """Take moves as made: these pods are not moved again."""
        self._moved |= {name for name, _ in moves}

    def find(
        self,
        displaced: Sequence[str],
        extra: int,
        closed: frozenset[str],
        highest: int,
        greedy: bool = False,
        below: Loss | None = None,
    ) -> Seats | None:
        """Find places for removed pods with exactly `extra` moves of others; the fleet is as before afterwards.

        `displaced` are pods without a node, removed or pending. No pod is placed on the nodes in `closed`, and no other
        is moved whose priority is above `highest`. The result is in the order in which the moves can be made, and loses
        least of what was tried; None if there is none, or none that loses less than `below`.
        """
        self._search = Search.Greedy if greedy else Search.Better if below else Search.Exact
        self._below, self._closed, self._highest = below, closed, highest
        self._visited = set[tuple[frozenset[str], frozenset[tuple[str, str]]]]()
        order = tuple(sorted(displaced, key=lambda name: (-self._pods[name].gpus, name)))
        best = None
        try:
            with closing(self._plans(order, (), extra)) as plans:  # which puts the pods back
                for best in plans:
                    if greedy:
                        break
                    self._search, self._below = Search.Better, self.loss(best)
        except Exhausted:
            self.exhausted = self.exhausted or self._search is Search.Exact
        return best

    def loss(self, seats: Seats, displaced: Iterable[str] = ()) -> Loss:
        """Give what the moves of a plan lose, and those of pods that are still without a place."""
        return total_loss(self._pods[name] for name in (*displaced, *(name for name, _ in seats)))

    def _plans(self, displaced: tuple[str, ...], placed: Seats, extra: int) -> Generator[Seats, None, None]:
        key = frozenset(displaced), frozenset(placed)
        if key in self._visited:
            return
        self._visited.add(key)
        if self._below is not None and self.loss(placed, displaced) >= self._below:
            return
        if not displaced:
            if (order := self._in_order(placed)) is not None:
                yield order
            return
        pod = displaced[0]
        for node, evicted in self._places(pod, {*displaced, *(name for name, _ in placed)}, extra):
            for name in evicted:
                self._fleet.remove(name)
            self._fleet.place(pod, node)
            try:
                yield from self._plans((*displaced[1:], *evicted), (*placed, (pod, node)), extra - len(evicted))
            finally:
                self._fleet.remove(pod)
                for name in evicted:
                    self._fleet.place(name, node)

    def _places(self, pod: str, moving: Collection[str], extra: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the places that a pod can take, each with the pods that leave it; fewer of them, and less loss, first.

        Pods that are `moving` already do not leave another place.
        """
        open_nodes = [name for name in self._fleet.nodes() if name not in self._closed and name != self._pods[pod].node]
        for count in range(extra + 1):
            places = []
            for node in open_nodes:
                there = [name for name in self._on.get(node, ()) if name not in moving and self._may_move(name)]
                for evicted in combinations(there, count):
                    if self._fits_without(pod, node, evicted):
                        places.append((self._fleet.rank(pod, node), node, evicted))
            places.sort(key=lambda place: (total_loss(self._pods[name] for name in place[2]), place[0], place[2]))
            greedy = self._search is Search.Greedy
            yield from ((node, evicted) for _, node, evicted in (places[:1] if greedy else places))
            if greedy and places:
                return

    def _may_move(self, name: str) -> bool:
        pod = self._pods[name]
        return not pod.kept and pod.priority <= self._highest and name not in self._moved

    def _fits_without(self, pod: str, node: str, evicted: tuple[str, ...]) -> bool:
        could_fit = self._fleet.could_fit(pod, node, evicted)
        self._proofs_left[self._search] -= could_fit or bool(evicted)
        if self._proofs_left[self._search] < 0:
            raise Exhausted
        if not could_fit:
            return False
        for name in evicted:
            self._fleet.remove(name)
        fits = self._fleet.fits(pod, node)
        for name in evicted:
            self._fleet.place(name, node)
        return fits

    def _in_order(self, placed: Seats) -> Seats | None:
        """Order moves so that each pod has room when its turn comes; waiting pods come last. None if there is none.

        Judgements are not counted here: there are at most as many as sets of the moves, times their number.
        """
        for name, _ in placed:
            self._fleet.remove(name)
        for name, _ in placed:
            if self._pods[name].node:
                self._fleet.place(name, self._pods[name].node)
        moving = [move for move in placed if self._pods[move[0]].node]
        waiting = tuple(move for move in placed if not self._pods[move[0]].node)
        order = self._ordered(moving, waiting, set())
        for name, _ in moving:
            self._fleet.remove(name)
        for name, node in placed:
            self._fleet.place(name, node)
        return order

    def _ordered(self, moving: Sequence[tuple[str, str]], waiting: Seats, dead: set[frozenset[str]]) -> Seats | None:
        """Try the moves that are left in every order; `dead` are the sets of moves left from which none leads on."""
        if not moving:
            return waiting if all(self._fleet.fits(*move) for move in waiting) else None
        left = frozenset(name for name, _ in moving)
        if left in dead:
            return None
        for move in moving:
            origin = self._pods[move[0]].node
            self._fleet.remove(move[0])
            rest = None
            if self._fleet.fits(*move):
                self._fleet.place(*move)
                rest = self._ordered([other for other in moving if other is not move], waiting, dead)
                self._fleet.remove(move[0])
            self._fleet.place(move[0], origin)
            if rest is not None:
                return (move, *rest)
        dead.add(left)
        return None
