# SPDX-License-Identifier: Apache-2.0
"""Why a pod fits where it fits: its needs with their evidence, the count of each refusal, the verdict on each node."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from app.nodeclass import Node
from app.placement.engine import breakdown, judge, order, total
from app.policy.cuda import show_need
from app.policy.demand import Demand
from app.policy.match import Ruling


def explain(ruling: Ruling, nodes: Iterable[Node], recount: bool) -> dict[str, Any]:
    """Explain one pod against these nodes, as JSON values; nodes that fit come first, best first."""
    demand = ruling.demand
    judged = [(node, judge(demand, node, recount)) for node in nodes]
    refusals = Counter(verdict for _, verdict in judged if verdict is not None)
    fitting = [node for node, verdict in judged if verdict is None]
    fitting.sort(key=lambda node: order(total(demand, node), node.name))
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
        "best": [_seat(demand, node) for node in fitting[:BEST_SHOWN]],
    }


BEST_SHOWN = 10
"""Nodes shown with their score; the rest are counted."""


def _seat(demand: Demand, node: Node) -> dict[str, Any]:
    parts = {name: round(score, 3) for name, (score, _) in breakdown(demand, node).items()}
    return {"node": node.name, "total": round(total(demand, node), 3), "scores": parts}


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
    return lines
