# SPDX-License-Identifier: Apache-2.0
"""Why a pod fits where it fits: its needs with their evidence, the count of each refusal, the verdict on each node."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from app.nodeclass import Node
from app.placement.doubts import DOUBTS
from app.placement.engine import breakdown, facts, judge, judge_class, total
from app.placement.ranking import order, wire_scores
from app.policy.cuda import show_need
from app.policy.demand import Demand
from app.policy.match import Ruling
from app.reasons import either


def explain(ruling: Ruling, nodes: Iterable[Node], recount: bool) -> dict[str, Any]:
    """Explain one pod against these nodes, as JSON values; nodes that fit come first, best first."""
    demand = ruling.demand
    judged = [(node, judge(demand, node, recount)) for node in nodes]
    refusals = Counter(verdict for _, verdict in judged if verdict is not None)
    fitting = [node for node, verdict in judged if verdict is None]
    totals = [total(demand, node) for node in fitting]
    scores = wire_scores([node.name for node in fitting], totals, demand.ranked) if fitting else []
    seats = sorted(zip(fitting, totals, scores, strict=True), key=lambda seat: order(seat[1], seat[0].name))
    return {
        "policies": list(ruling.policies),
        "asks": dict(demand.resources),
        "needs": needs(demand),
        "origins": [{"field": field, "from": origin} for field, origin in ruling.origins],
        "conflicts": [each.message for each in ruling.conflicts],
        "nodes": len(judged),
        "fits": len(fitting),
        "refused": [
            {"reason": each.code.name, "message": each.message, "nodes": count, "remedy": each.remedy}
            for each, count in refusals.most_common()
        ],
        "best": [_seat(demand, *seat) for seat in seats[:BEST_SHOWN]],
    }


BEST_SHOWN = 10
"""Nodes shown with their score; the rest are counted."""


def _seat(demand: Demand, node: Node, value: float, score: int) -> dict[str, Any]:
    """Break a total down: each scorer's part of it as score x weight, and what lowered it (F56)."""
    parts = breakdown(demand, node)
    return {
        "node": node.name,
        "gives": {resource: node.node_class.unit(resource).value for resource, _ in demand.resources},
        "score": score,
        "total": round(value, 3),
        "scores": {name: {"score": round(found, 3), "weight": weight} for name, (found, weight) in parts.items()},
        "lowered_by": doubts(demand, node),
    }


def doubts(demand: Demand, node: Node) -> list[str]:
    """Name what halves a node's total, in words."""
    missed = demand.warned is not None and judge_class(demand.warned, facts(demand.warned, node))
    warned = [f"a policy that warns: {missed.message}"] if missed else []
    return [*warned, *(doubt.__name__.replace("_", " ") for doubt in DOUBTS if doubt(demand, node.node_class))]


def needs(demand: Demand) -> list[str]:
    """Write every need on a line, with its evidence where there is one."""
    lines = [f"{amount} x {resource}" for resource, amount in demand.resources]
    lines += ["products " + ", ".join(pattern.text for pattern in any_of) for any_of in demand.products]
    lines += [f"not product {pattern.text}" for pattern in demand.denied_products]
    lines += [show_need(need) for need in demand.cuda]
    lines += [f"preferred: {show_need(need)}" for need in demand.cuda_wishes]
    if demand.memory_mib:
        lines.append(f"memory per GPU >= {demand.memory_mib} MiB")
    if demand.compute_capability:
        lines.append(f"compute capability >= {'.'.join(map(str, demand.compute_capability))}")
    if demand.sharing.value != "Any":
        lines.append(f"sharing {demand.sharing.value}")
    if demand.mig_profile:
        lines.append(f"MIG profile {'>= ' if demand.mig_profile[1] else ''}{demand.mig_profile[0]}")
    if demand.nvlink:
        lines.append("NVLink")
    if demand.form_factors is not None:
        lines.append("form factor " + either(sorted(each.value for each in demand.form_factors)))
    lines += [f"node label {each.key}" for each in demand.node_selector]
    if demand.declared_mib:
        lines.append(f"declares {demand.declared_mib} MiB of each shared GPU")
    return lines
