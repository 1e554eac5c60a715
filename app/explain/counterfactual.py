# SPDX-License-Identifier: Apache-2.0
"""Counterfactuals: the smallest edits by which a pod would find a node, each proven by the same engine (F84).

Nodes are grouped by what stands against them; the groups with the least are tried first. One edit goes before two,
and an edit of the pod before one of the fleet. The search is bounded, and a generator, so that a service can rest.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import combinations, islice, product
from typing import Any

from app.explain.edits import Edit, NearMiss, edited
from app.explain.funnel import Objection
from app.explain.json_difference import difference
from app.explain.remedies import REMEDIES
from app.explain.survey import ClusterSnapshot, Groups, NodeJudge, ScheduledPod, company_of, pose
from app.intree.inter_pod_constraints import InterPodConstraints
from app.knowledge.mig_profiles import profile_of
from app.kube.gpu_usage import GPUUsage
from app.kube.pod_requests import CPU
from app.nodes.model import Node

GROUPS_TRIED, NODES_TRIED = 12, 3
"""Groups of nodes with the same objections, and nodes of each: those with the most free."""
MOST_PROOFS = 60
"""Of one edit, and again of several; each runs admission anew, some 1 ms (measured on the demo fleet)."""
MOST_EDITS = 4
SHOWN, SHOWN_OF_A_KIND = 5, 2


@dataclass(frozen=True, slots=True)
class EvictedPod:
    """A pod that would have to go."""

    pod: str
    priority: int
    holds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FixStep:
    """One edit. `of`: pod, policy or fleet."""

    kind: str
    of: str
    text: str
    evicts: tuple[EvictedPod, ...] = ()


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits by which the pod fits, proven on `node`. `opens`: nodes that it fits on then.

    `patch`: what is edited of the pod as its user wrote it, as JSON Patch (RFC 6902); empty where nothing of it is.
    """

    edits: tuple[FixStep, ...]
    node: str
    opens: int
    patch: tuple[Mapping[str, Any], ...] = ()


Edits = tuple[Edit, ...]
RECREATE = Edit("recreate", "delete the pod and create it again: admission then completes it", 5, lambda _pod: None)


class FixSearch:
    """Looks for fixes. `base`: the Pod as its user wrote it, which is what is edited."""

    def __init__(
        self,
        scheduled_pod: ScheduledPod,
        base: Mapping[str, object],
        world: ClusterSnapshot,
        company: InterPodConstraints | None,
    ) -> None:
        self._posed = scheduled_pod
        self._company = company
        self._base = base
        self._world = world
        self._found: dict[Edits, str] = {}

    def run(self, found: Groups, live: bool) -> Generator[None, None, tuple[Fix, ...]]:
        """Search. `live`: the pod is in the cluster, as it is."""
        groups = sorted((each for each in found.items() if each[0]), key=lambda each: (len(each[0]), -len(each[1])))
        nearest = []
        for group, names in groups[:GROUPS_TRIED]:
            nearest.append((group, (yield from self._freest(names))))
        if live:
            yield from self._try((((RECREATE,), names) for _, names in nearest), MOST_PROOFS)
        if not self._found:
            yield from self._try(self._singles(nearest), MOST_PROOFS)
        if not any(_of_pod(edits) for edits in self._found):
            yield from self._try(self._several(nearest), MOST_PROOFS)
        return (yield from self._counted(sorted(self._found, key=_size)))

    def _freest(self, names: Sequence[str]) -> Generator[None, None, list[str]]:
        """Choose the nodes of a group that have the most free of what is asked, or else of its kind: slices, or not."""
        resources = [resource for resource, _ in self._posed.demand.resources]
        sliced = any(map(profile_of, resources))

        def free(name: str) -> tuple[int, int, int, str]:
            units, used = self._world.nodes[name].free.units, self._world.used.get(name, {})
            alike = sum(amount for each, amount in units.items() if (profile_of(each) is not None) is sliced)
            return -sum(units.get(each, 0) for each in resources), -alike, used.get(CPU, 0), name

        best: list[tuple[int, int, int, str]] = []
        for start in range(0, len(names), NAMES_AT_ONCE):
            best = nsmallest(NODES_TRIED, [*best, *map(free, names[start : start + NAMES_AT_ONCE])])
            yield
        return [name for *_, name in best]

    def _singles(self, nearest: list[tuple[tuple[Objection, ...], list[str]]]) -> Iterator[tuple[Edits, list[str]]]:
        seen: set[tuple[str, str]] = set()
        for group, names in nearest:
            for name in names:
                for edit in (each for objection in group for each in self._edits(name, objection)):
                    if (edit.kind, edit.text) not in seen:
                        seen.add((edit.kind, edit.text))
                        yield (edit,), [edit.on] if edit.on else names

    def _several(self, nearest: list[tuple[tuple[Objection, ...], list[str]]]) -> Iterator[tuple[Edits, list[str]]]:
        """Combine edits against different objections: two, then one against each."""
        seen: set[frozenset[str]] = set()
        for group, names in nearest:
            for name in names:
                per = list(filter(None, (tuple(self._edits(name, objection)) for objection in group)))
                pairs = (pair for one, other in combinations(per, 2) for pair in product(one, other))
                whole = [tuple(each[0] for each in per)] if 2 < len(per) <= MOST_EDITS else []
                for edits in (*pairs, *whole):
                    texts = frozenset(each.text for each in edits)
                    if texts not in seen and not any(set(known) <= set(edits) for known in self._found):
                        seen.add(texts)
                        yield edits, [name]

    def _edits(self, name: str, objection: Objection) -> Iterator[Edit]:
        near_miss = NearMiss(self._posed, self._world.nodes[name], objection, self._world)
        return (edit for remedy in REMEDIES for edit in remedy(near_miss))

    def _try(self, candidates: Iterator[tuple[Edits, list[str]]], most: int) -> Generator[None, None, None]:
        for edits, names in islice(candidates, most):
            judge = self._judge(edits)
            proven = next((name for name in names if judge.fits(self._changed(name, edits))), None)
            if proven is not None:
                self._found.setdefault(edits, proven)
            yield

    def _judge(self, edits: Edits) -> NodeJudge:
        if all(each.of == "fleet" for each in edits):
            return NodeJudge(self._posed, self._world.used, self._company)
        scheduled_pod = pose(edited(self._base, edits), ruled(self._world, edits), admit=True)
        return NodeJudge(scheduled_pod, self._world.used, self._met(scheduled_pod))

    def _met(self, scheduled_pod: ScheduledPod) -> InterPodConstraints | None:
        """Count the company of an edited pod anew only where the edit touches that."""
        known, spread = self._posed, bool(scheduled_pod.pod_among_others.spread)
        same = scheduled_pod.pod_among_others == known.pod_among_others and (
            not spread or scheduled_pod.pod_constraints == known.pod_constraints
        )
        return self._company if same else company_of(scheduled_pod, self._world)

    def _changed(self, name: str, edits: Edits) -> Node:
        node = self._world.nodes[name]
        for edit in edits:
            if edit.node is not None and edit.on == name:
                node = edit.node(node)
        return node

    def _counted(self, ranked: list[Edits]) -> Generator[None, None, tuple[Fix, ...]]:
        shown: list[Fix] = []
        kinds: dict[tuple[str, ...], int] = {}
        for edits in ranked:
            kind = tuple(each.kind for each in edits)
            kinds[kind] = kinds.get(kind, 0) + 1
            if len(shown) == SHOWN or kinds[kind] > SHOWN_OF_A_KIND:
                continue
            judge, opens = self._judge(edits), 0
            for index, name in enumerate(self._world.nodes):
                opens += judge.fits(self._changed(name, edits))
                if index % NODES_AT_ONCE == 0:
                    yield
            shown.append(Fix(tuple(map(_change, edits)), self._found[edits], opens, self._patch(edits)))
        return tuple(shown)

    def _patch(self, edits: Edits) -> tuple[Mapping[str, Any], ...]:
        return tuple(each.as_json() for each in difference(self._base, edited(self._base, edits)))


NODES_AT_ONCE = 32
"""Between two rests; a node is some 20 µs."""
NAMES_AT_ONCE = 256
"""Between two rests where nodes are only compared, which is some 3 µs each."""


def _of_pod(edits: Edits) -> bool:
    return all(each.of == "pod" for each in edits)


def _size(edits: Edits) -> tuple[int, int, int, str]:
    others = sum(each.of != "pod" for each in edits)
    return len(edits), others, sum(each.weight for each in edits), " ".join(each.text for each in edits)


def _change(edit: Edit) -> FixStep:
    return FixStep(edit.kind, edit.of, edit.text, tuple(map(_evicted, edit.evicts)))


def ruled(world: ClusterSnapshot, edits: Edits) -> ClusterSnapshot:
    """Give the world under the policies as they would be."""
    policies = world.setting.policies
    for edit in edits:
        policies = edit.policies(policies) if edit.policies else policies
    return replace(world, setting=replace(world.setting, policies=policies))


def _evicted(holding: GPUUsage) -> EvictedPod:
    return EvictedPod(holding.name, holding.priority, dict(holding.units))
