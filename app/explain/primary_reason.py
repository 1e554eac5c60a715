# SPDX-License-Identifier: Apache-2.0
"""The reason to look at first of all those for which a pod is pending (docs/decisions/0021)."""

from collections.abc import Mapping
from dataclasses import replace

from app.explain.claim_objections import erring
from app.explain.claim_repairs import OTHER_CLASS
from app.explain.counterfactual import Fix
from app.explain.explanation import Refused
from app.explain.funnel import Objection, first_objection, is_transient, objection_name, objection_text
from app.explain.node_values import values_of
from app.explain.survey import Groups
from app.nodes.model import Node
from app.values.reasons import Code

OTHER_PRODUCTS = {Code.ProductNotAllowed.name, Code.GPUFactsMissing.name, Code.ResourceNotOffered.name}
"""Codes of the nodes whose product is another, or not known, or none."""
OFFER_NONE = {Code.OfferedByClaimOnly.name: 1, Code.GhostGPUs.name: 1, Code.ResourceNotOffered.name: 2}
"""Codes of the nodes that offer no GPUs, those that never will last."""


def primary_reason(groups: Groups, fixes: tuple[Fix, ...], nodes: Mapping[str, Node]) -> Refused | None:
    """Choose the reason to look at first: of the nodes with only transient objections, or else of the nearest nodes.

    A claim that kube-scheduler gives up on comes before all.

    The nearest nodes are among those of a product that the pod allows, if there are any. They are those of the smallest
    fix, or without a fix those with the fewest objections. A node that offers no GPUs is chosen only where all nodes
    offer none.
    """
    transient = {
        objections: names for objections, names in groups.items() if objections and all(map(is_transient, objections))
    }
    candidates = erring(groups) or transient or _of_allowed_products(groups) or groups
    as_asked = [fix for fix in fixes if fix.edits[0].kind != OTHER_CLASS]  # which is served by another kind of node
    fixed = (objections for fix in as_asked for objections, names in candidates.items() if fix.node in names)
    nearest = next(fixed, None) or min(candidates, key=_distance, default=None)
    if nearest is None:
        return None
    objection = first_objection(nearest)
    refusing = [
        nodes[name].node_class
        for objections, names in groups.items()
        if first_objection(objections) == objection
        for name in names
    ]
    refused = refused_by(objection, len(refusing))
    return replace(refused, have=values_of(refused.reason, refusing))


def _of_allowed_products(groups: Groups) -> Groups:
    """Return the nodes whose product is known to be allowed; none where the pod allows every product."""
    codes = {objections: set(map(objection_name, objections)) for objections in groups}
    if not any(Code.ProductNotAllowed.name in names for names in codes.values()):
        return {}
    return {objections: names for objections, names in groups.items() if not codes[objections] & OTHER_PRODUCTS}


def _distance(objections: tuple[Objection, ...]) -> tuple[int, int]:
    names = set(map(objection_name, objections))
    return max((OFFER_NONE.get(name, 0) for name in names), default=0), len(objections)


def refused_by(objection: Objection, count: int) -> Refused:
    """Count the nodes that one objection refuses."""
    return Refused(objection_name(objection), objection_text(objection), count, objection.remedy)
