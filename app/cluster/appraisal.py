# SPDX-License-Identifier: Apache-2.0
"""Appraisals: the verdicts on every node for a demand, kept while it is asked, renewed only where nodes changed.

The scheduler asks for the same demand again and again (every pod of a Job); with ≤ 1 % of the nodes changed
since, a call costs one set comparison, not a filter run per node. The plain engine is the oracle in the tests.
"""

from collections.abc import Iterable

from app.cluster.state import State
from app.nodes import Node
from app.placement.engine import judge_class, judge_free, total
from app.policy.demand import Demand
from app.reasons import Reason

DEMANDS_KEPT = 64
"""Distinct demands at a time; one costs about 0.5 MB at 5,000 nodes."""


class Appraisal:
    """What the engine says of every known node for one demand: feasible, or refused and why; totals on request."""

    __slots__ = ("_classes", "_generation", "_recount", "_state", "_totals", "demand", "feasible", "refused")

    def __init__(self, demand: Demand, state: State, recount: bool) -> None:
        self.demand = demand
        self.feasible: set[str] = set()
        self.refused: dict[str, Reason] = {}
        self._state = state
        self._recount = recount
        self._generation = -1
        self._classes: dict[int, Reason | None] = {}
        self._totals: dict[str, float] = {}

    def renew(self) -> None:
        """Judge again the nodes that changed since the last call; all of them at first."""
        changed = self._state.changed_since(self._generation) if self._generation >= 0 else None
        if changed is None:
            self.feasible.clear()
            self.refused.clear()
            self._totals.clear()
            changed = self._state.nodes
        for name in changed:
            self._renew(name)
        self._generation = self._state.generation

    def _renew(self, name: str) -> None:
        self._totals.pop(name, None)
        node = self._state.nodes.get(name)
        refusal = self._judge(node) if node is not None else None
        if node is None or refusal is not None:
            self.feasible.discard(name)
        if refusal is not None:
            self.refused[name] = refusal
        else:
            self.refused.pop(name, None)
            if node is not None:
                self.feasible.add(name)

    def _judge(self, node: Node) -> Reason | None:
        if not self.demand.judged:
            return None
        key = id(node.node_class)  # interned by State, which keeps every class alive
        if key not in self._classes:
            self._classes[key] = judge_class(self.demand, node.node_class)
        return self._classes[key] or judge_free(self.demand, node.free, self._recount)

    def totals(self, names: Iterable[str]) -> list[float]:
        """Weigh the scorers for nodes, in the order asked; a node we do not know is worth nothing."""
        known = self._totals
        nodes = self._state.nodes
        found = []
        for name in names:
            value = known.get(name)
            if value is None:
                node = nodes.get(name)
                value = total(self.demand, node) if node is not None else 0.0
                known[name] = value
            found.append(value)
        return found


class Appraisals:
    """The appraisals of the demands asked last, at most DEMANDS_KEPT of them."""

    def __init__(self, state: State, recount: bool) -> None:
        self._state = state
        self._recount = recount
        self._kept: dict[Demand, Appraisal] = {}

    def of(self, demand: Demand) -> Appraisal:
        """Give the appraisal of a demand, renewed to the state as it is now."""
        appraisal = self._kept.pop(demand, None) or Appraisal(demand, self._state, self._recount)
        self._kept[demand] = appraisal
        if len(self._kept) > DEMANDS_KEPT:
            del self._kept[next(iter(self._kept))]
        appraisal.renew()
        return appraisal
