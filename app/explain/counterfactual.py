# SPDX-License-Identifier: Apache-2.0
"""Counterfactuals: the smallest edits that would give a pod a node, each proven by the placement engine.

EDIT_PROPOSERS propose edits for the nodes nearest to the pod. Nodes are grouped by their objections to the pod, and
groups with the fewest objections are tried first. One edit is tried before two, and an edit of the pod before one of
the fleet. The search is bounded. It is a generator that yields often, so that a service can do other work in between.
"""

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import combinations, islice, product
from typing import Any, TypeVar

from app.explain.edits import Edit, EditProposer, NearMiss, difference, edited, edited_node, judge_edited
from app.explain.edits_gpu import GPU_EDITS, NEEDS_BY_CODE, offer_of
from app.explain.edits_in_tree import EXISTING_PODS, IN_TREE, node_left
from app.explain.edits_policy import POLICY
from app.explain.funnel import Objection
from app.explain.survey import (
    Groups,
    NodeJudge,
    ScheduledPod,
    existing_pod_constraints,
)
from app.intree.checks import InTreeCause, InTreeRefusal
from app.intree.inter_pod_constraints import InterPodConstraints
from app.knowledge.mig_profiles import profile_of
from app.kube.gpu_usage import GPUUsage
from app.kube.pod_requests import CPU
from app.nodes.model import Node
from app.values.reasons import counted
from app.world.world import World

EDIT_PROPOSERS: tuple[EditProposer, ...] = (*IN_TREE, *EXISTING_PODS, *GPU_EDITS, *POLICY)


GROUPS_TRIED, NODES_TRIED = 12, 3
"""Groups of nodes with equal objections, and nodes of each group: those with the most free units."""
MOST_POD_PROOFS = 60
"""Proofs with one edit, and again with several; each runs admission anew, about 1 ms (measured on the demo fleet)."""
MOST_EDITS = 4
"""Edits in one fix."""
MOST_FIXES, MOST_FIXES_OF_A_KIND = 5, 2
"""Fixes in one answer, and of them those with the same kinds of edits."""


@dataclass(frozen=True, slots=True)
class EvictedPod:
    """A pod that would have to be evicted.

    `holds` are its GPU units, by resource. `idle_hours` tells for how long they have been idle for certain, None where
    they work, or where that is not known.
    """

    pod: str
    priority: int
    holds: Mapping[str, int]
    idle_hours: float | None = None


@dataclass(frozen=True, slots=True)
class FixStep:
    """One edit of a fix. `of` is what it edits: pod, policy or fleet."""

    kind: str
    of: str
    text: str
    evicts: tuple[EvictedPod, ...] = ()


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits with which the pod fits, proven on `node`. `opens` is the number of nodes that it then fits on.

    `patch` is the edit of the pod as its user wrote it, as JSON Patch (RFC 6902); empty where the pod is not edited.
    """

    edits: tuple[FixStep, ...]
    node: str
    opens: int
    patch: tuple[Mapping[str, Any], ...] = ()

    @property
    def opened_nodes(self) -> str:
        """The nodes that it opens, in words."""
        return f"{counted(self.opens, 'node')}, such as {self.node}"


Change = TypeVar("Change")
Edits = tuple[Edit, ...]
RECREATE = Edit("recreate", "delete the pod and create it again: admission then completes it", 5, lambda _pod: None)


class FixSearch:
    """The search for fixes. `base` is the Pod as its user wrote it, which is what the fixes edit."""

    def __init__(
        self,
        scheduled_pod: ScheduledPod,
        base: Mapping[str, object],
        snapshot: World,
        constraints: InterPodConstraints | None,
    ) -> None:
        self._scheduled_pod = scheduled_pod
        self._constraints = constraints
        self._base = base
        self._snapshot = snapshot
        self._proven: dict[Edits, str] = {}
        self.tried: dict[str, None] = {}
        """The kinds of edits that were proposed, in the order in which that happened."""

    def run(self, node_groups: Groups, live: bool) -> Generator[None, None, tuple[Fix, ...]]:
        """Search for fixes. `live` is true where the pod is in the cluster already."""
        # 1. The nodes nearest to the pod.
        refusing = ((objections, names) for objections, names in node_groups.items() if objections)
        groups = sorted(refusing, key=lambda group: (len(group[0]), -len(group[1])))
        nearest = []
        for group, names in groups[:GROUPS_TRIED]:
            nearest.append((group, (yield from self._nearest(group, names))))
        # 2. Proofs: creating the pod again, one edit, several edits.
        if live:
            self.tried[RECREATE.kind] = None
            yield from self._try((((RECREATE,), names) for _, names in nearest), MOST_POD_PROOFS)
        if not self._proven:
            yield from self._try(self._single_edits(nearest), MOST_POD_PROOFS)
        if not any(all(edit.of == "pod" for edit in edits) for edits in self._proven):
            yield from self._try(self._combined_edits(nearest), MOST_POD_PROOFS)
        # 3. The fixes, the smallest first.
        return (yield from self._fixes(sorted(self._proven, key=_rank)))

    def _nearest(self, group: tuple[Objection, ...], names: Sequence[str]) -> Generator[None, None, list[str]]:
        """Choose nodes of a group: those that offer most of what it objects to, and those with the most free units.

        Units are those of the requested resources; where these are equal, units of the same kind count: MIG slices, or
        other resources.
        """
        offers = [offer for objection in group if (offer := self._offer(objection)) is not None]
        most: dict[int, tuple[Any, tuple[int, int, int, str]]] = {}
        resources = [resource for resource, _ in self._scheduled_pod.demand.resources]
        sliced = any(map(profile_of, resources))

        def free(name: str) -> tuple[int, int, int, str]:
            units, used = self._snapshot.nodes[name].free.units, self._snapshot.used.get(name, {})
            same_kind = sum(
                amount for resource, amount in units.items() if (profile_of(resource) is not None) is sliced
            )
            return -sum(units.get(resource, 0) for resource in resources), -same_kind, used.get(CPU, 0), name

        best: list[tuple[int, int, int, str]] = []
        for start in range(0, len(names), NAMES_AT_ONCE):
            part = list(map(free, names[start : start + NAMES_AT_ONCE]))
            best = nsmallest(NODES_TRIED, [*best, *part])
            for index, offer in enumerate(offers):
                offered = [(value, key) for key in part if (value := offer(self._snapshot.nodes[key[-1]])) is not None]
                known = [most[index]] if index in most else []
                if offered or known:
                    top = max(value for value, _ in (*known, *offered))
                    most[index] = min(entry for entry in (*known, *offered) if entry[0] == top)
            yield
        return list(dict.fromkeys((*(key[-1] for _, key in most.values()), *(name for *_, name in best))))

    def _offer(self, objection: Objection) -> Callable[[Node], Any] | None:
        """Return how much nodes offer of what an objection is about; None where that has no order."""
        if isinstance(objection, InTreeRefusal):
            if objection.cause is not InTreeCause.InsufficientResource:
                return None
            resource = objection.about[0]
            return lambda node: node_left(node, self._snapshot.used.get(node.name, {}), resource)
        code = objection.code
        return (lambda node: offer_of(code, self._scheduled_pod.demand, node)) if code in NEEDS_BY_CODE else None

    def _single_edits(
        self, nearest: list[tuple[tuple[Objection, ...], list[str]]]
    ) -> Iterator[tuple[Edits, list[str]]]:
        seen: set[tuple[str, str]] = set()
        for group, names in nearest:
            for name in names:
                for edit in (edit for objection in group for edit in self._edits(name, objection)):
                    if (edit.kind, edit.text) not in seen:
                        seen.add((edit.kind, edit.text))
                        yield (edit,), [edit.on] if edit.on else names

    def _combined_edits(
        self, nearest: list[tuple[tuple[Objection, ...], list[str]]]
    ) -> Iterator[tuple[Edits, list[str]]]:
        """Combine edits against different objections: two of them, or the first edit against each."""
        seen: set[frozenset[str]] = set()
        for group, names in nearest:
            for name in names:
                edits_by_objection = list(filter(None, (tuple(self._edits(name, objection)) for objection in group)))
                pairs = (pair for one, other in combinations(edits_by_objection, 2) for pair in product(one, other))
                one_each = (
                    [tuple(choices[0] for choices in edits_by_objection)]
                    if 2 < len(edits_by_objection) <= MOST_EDITS
                    else []
                )
                for edits in (*pairs, *one_each):
                    texts = frozenset(edit.text for edit in edits)
                    if texts not in seen and not any(set(proven) <= set(edits) for proven in self._proven):
                        seen.add(texts)
                        yield edits, [name]

    def _edits(self, name: str, objection: Objection) -> Iterator[Edit]:
        near_miss = NearMiss(self._scheduled_pod, self._snapshot.nodes[name], objection, self._snapshot)
        for propose in EDIT_PROPOSERS:
            for edit in propose(near_miss):
                self.tried[edit.kind] = None
                yield edit

    def _try(self, candidates: Iterator[tuple[Edits, list[str]]], most: int) -> Generator[None, None, None]:
        nodes = self._snapshot.nodes
        for edits, names in islice(candidates, most):
            judge = self._judge(edits)
            proven = next((name for name in names if judge.fits(edited_node(nodes[name], edits))), None)
            if proven is not None:
                self._proven.setdefault(edits, proven)
            yield

    def _judge(self, edits: Edits) -> NodeJudge:
        if all(edit.of == "fleet" for edit in edits):
            return NodeJudge(self._scheduled_pod, self._snapshot.used, self._constraints)
        return judge_edited(self._base, edits, self._snapshot, self._constraints_of)

    def _constraints_of(self, scheduled_pod: ScheduledPod) -> InterPodConstraints | None:
        """Count the existing pods' constraints on an edited pod anew only where the edit touches them."""
        before, spread = self._scheduled_pod, bool(scheduled_pod.pod_among_others.spread)
        same = scheduled_pod.pod_among_others == before.pod_among_others and (
            not spread or scheduled_pod.pod_constraints == before.pod_constraints
        )
        return self._constraints if same else existing_pod_constraints(scheduled_pod, self._snapshot)

    def _fixes(self, ranked: list[Edits]) -> Generator[None, None, tuple[Fix, ...]]:
        shown: list[Fix] = []
        for edits in few_of_a_kind(ranked, lambda edits: tuple(edit.kind for edit in edits)):
            if len(shown) == MOST_FIXES:
                break
            judge, opens = self._judge(edits), 0
            for index, node in enumerate(self._snapshot.nodes.values()):
                opens += judge.fits(edited_node(node, edits))
                if index % NODES_JUDGED_AT_ONCE == 0:
                    yield
            steps = tuple(_step(edit, self._snapshot.idle) for edit in edits)
            shown.append(Fix(steps, self._proven[edits], opens, self._patch(edits)))
        return tuple(shown)

    def _patch(self, edits: Edits) -> tuple[Mapping[str, Any], ...]:
        return tuple(operation.as_json() for operation in difference(self._base, edited(self._base, edits)))


def few_of_a_kind(ranked: Iterable[Change], kind_of: Callable[[Change], Hashable]) -> Iterator[Change]:
    """Yield at most MOST_FIXES_OF_A_KIND changes of each kind, in their order."""
    kinds: Counter[Hashable] = Counter()
    for change in ranked:
        kinds[kind_of(change)] += 1
        if kinds[kind_of(change)] <= MOST_FIXES_OF_A_KIND:
            yield change


NODES_JUDGED_AT_ONCE = 32
"""Nodes judged between two yields; one node takes about 20 µs."""
NAMES_AT_ONCE = 256
"""Nodes compared between two yields where they are not judged; one node takes about 3 µs."""


def _rank(edits: Edits) -> tuple[int, int, float, str]:
    others = sum(edit.of != "pod" for edit in edits)
    return len(edits), others, sum(edit.weight for edit in edits), " ".join(edit.text for edit in edits)


def _step(edit: Edit, idle: Mapping[str, float]) -> FixStep:
    return FixStep(edit.kind, edit.of, edit.text, tuple(_evicted_pod(usage, idle) for usage in edit.evicts))


def _evicted_pod(usage: GPUUsage, idle: Mapping[str, float]) -> EvictedPod:
    seconds = idle.get(usage.name)
    return EvictedPod(usage.name, usage.priority, dict(usage.units), seconds / 3600 if seconds else None)
