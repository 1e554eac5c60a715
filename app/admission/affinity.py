# SPDX-License-Identifier: Apache-2.0
"""Needs as node affinity: what labels can say, said where kube-scheduler and autoscalers see it (DESIGN §1.2).

kube-scheduler shows an extender only a sample of the nodes; a need that only the extender knows starves.
The affinity is a necessary condition: it never excludes a node that the filter would accept.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.admission.case import Case
from app.admission.patch import Operation, append, apply, put
from app.nodes import PRODUCT
from app.placement.filters import product_allowed
from app.policy.demand import Demand
from app.policy.schema import SharingWish

_NODE_AFFINITY = ("spec", "affinity", "nodeAffinity")
REQUIRED = (*_NODE_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
PREFERRED = (*_NODE_AFFINITY, "preferredDuringSchedulingIgnoredDuringExecution")
PREFERENCE_WEIGHT = 100
"""The highest that Kubernetes allows: a need outweighs a user's own preferences."""


def expressions(case: Case) -> tuple[dict[str, Any], ...]:
    """List the needs that node labels can express, as matchExpressions."""
    labels = product_labels(case)
    if labels is None:
        return ()
    return ({"key": PRODUCT, "operator": "In", "values": labels},)


def product_labels(case: Case) -> list[str] | None:
    """List every product label that the filter would accept; None if nothing is asked or no label is known.

    Names of the table, as old drivers wrote them too, their -SHARED form where sharing may be, and whatever
    labels the fleet has (which covers slices of strategy single).
    """
    demand = case.ruling.demand
    if not demand.products:
        return None
    found = set(_known_labels(case, demand))
    found |= {
        kin.product_label
        for kin in case.fleet.kin
        if kin.product_label and product_allowed(demand, kin.node_class) is None
    }
    return sorted(found) or None


def _known_labels(case: Case, demand: Demand) -> Iterator[str]:
    for form, product in case.knowledge.products.by_form.items():
        allowed = all(any(pattern.matches(form) for pattern in any_of) for any_of in demand.products)
        if not allowed or any(pattern.matches(form) for pattern in demand.denied_products):
            continue
        for label in (product.label, *product.aliases):
            yield label
            if demand.sharing is not SharingWish.Exclusive:
                yield f"{label}-SHARED"


def require(document: Mapping[str, Any], wanted: tuple[dict[str, Any], ...]) -> tuple[Operation, ...]:
    """Build the operations that AND the expressions into every required term of the user, or make the first term."""
    terms = _get(document, REQUIRED)
    if not terms:
        return (put(document, REQUIRED, [{"matchExpressions": list(wanted)}]),)
    operations: list[Operation] = []
    for index, term in enumerate(terms):
        present = term.get("matchExpressions") or [] if isinstance(term, dict) else []
        if not isinstance(term, dict) or not term:
            continue  # an empty term selects no node; ANDing into it would make it select some
        for expression in wanted:
            if expression not in present:
                operation = append(apply(document, operations), (*REQUIRED, str(index), "matchExpressions"), expression)
                operations.append(operation)
    return tuple(operations)


def prefer(document: Mapping[str, Any], wanted: tuple[dict[str, Any], ...]) -> tuple[Operation, ...]:
    """Build the operation that adds the expressions as one preferred term, unless it is there."""
    term = {"weight": PREFERENCE_WEIGHT, "preference": {"matchExpressions": list(wanted)}}
    if term in (_get(document, PREFERRED) or ()):
        return ()
    return (append(document, PREFERRED, term),)


def _get(document: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document
