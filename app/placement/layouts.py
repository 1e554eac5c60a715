# SPDX-License-Identifier: Apache-2.0
"""The free filter of MIG layouts: whether slices that are carved on demand find a place (F60, PAINS P13, P14)."""

from app.knowledge.layout import places
from app.knowledge.mig import profile_of
from app.nodeclass import Free
from app.policy.demand import Demand
from app.reasons import Code, Reason, reason


def layout_fits(demand: Demand, free: Free) -> Reason | None:
    """Refuse a node whose GPUs have no place for the MIG slices asked, beside those that lie there (F60).

    By slots, never by counts, and only where slices are carved on demand: a device plugin's are fixed, and its counts
    are exact. It repeats what kube-scheduler's DynamicResources plugin counts itself, by the shared counters of the
    same ResourceSlices (KEP-4815), so that behind a live scheduler our later view would only add false refusals.
    """
    if free.layouts is None:
        return None
    asked = [(name, amount) for name, amount in demand.resources if profile_of(name) and name in free.uncounted]
    if not asked:
        return None
    wants = " and ".join(f"{amount} {name}" for name, amount in asked)
    refusal = reason(Code.LayoutDoesNotFit, "no place for the MIG slices beside others", wants)
    if sum(amount for _, amount in asked) > sum(layout.geometry.compute_total for layout in free.layouts):
        return refusal  # every slice takes a compute slice; and nobody's billion is spelt out below
    wanted = [profile_of(name) or "" for name, amount in asked for _ in range(amount)]
    return None if places(free.layouts, wanted) is not None else refusal
