# SPDX-License-Identifier: Apache-2.0
"""Objections to a node that come from the pod's ResourceClaims."""

from app.explain.funnel import Objection
from app.explain.survey import Groups
from app.intree.causes import InTreeCause, InTreeRefusal
from app.values.reasons import Stage


def is_of_claims(objection: object) -> bool:
    """Tell whether an objection is one of the claims."""
    return isinstance(objection, InTreeRefusal) and objection.cause.stage is Stage.Claims


def with_claim_errors(groups: Groups) -> Groups:
    """Let a claim that kube-scheduler cannot handle on a node stand against all nodes that would fit.

    It gives up on a pod whose claim fails on any node that it asks about, as where a selector reads an attribute that a
    device lacks (plugins/dynamicresources/dynamicresources.go Filter, statusError).
    """
    errors = [objections for objections in groups if len(objections) == 1 and is_claim_error(objections[0])]
    if not errors or () not in groups:
        return groups
    others = {objections: names for objections, names in groups.items() if objections}
    return {**others, errors[0]: [*others[errors[0]], *groups[()]]}


def is_claim_error(objection: Objection) -> bool:
    """Tell whether an objection is a claim that kube-scheduler gives up on."""
    return isinstance(objection, InTreeRefusal) and objection.cause is InTreeCause.ClaimNotUsable


def erring(groups: Groups) -> Groups:
    """Return the nodes that have nothing but a claim that kube-scheduler gives up on against the pod."""
    return {
        objections: names
        for objections, names in groups.items()
        if len(objections) == 1 and is_claim_error(objections[0])
    }
