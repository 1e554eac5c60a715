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


Expression = dict[str, Any]


def expressions(case: Case) -> tuple[Expression, ...]:
    """List the needs that node labels can express, as matchExpressions."""
    demand = case.ruling.demand
    if not demand.products and not demand.denied_products:
        return ()
    if demand.products and all(pattern.labels is not None for any_of in demand.products for pattern in any_of):
        accepted = sorted({*_labels_of_known(case, demand), *_labels_of_fleet(case, demand, accepted=True)})
        return ({"key": PRODUCT, "operator": "In", "values": accepted},) if accepted else ()
    return tuple(_open_ended(case, demand))


def _open_ended(case: Case, demand: Demand) -> Iterator[Expression]:
    """Express a pattern that products of tomorrow may match: a product is known, and none that is refused today."""
    yield {"key": PRODUCT, "operator": "Exists"}
    refused = sorted(_labels_of_fleet(case, demand, accepted=False))
    if refused:
        yield {"key": PRODUCT, "operator": "NotIn", "values": refused}


def _labels_of_known(case: Case, demand: Demand) -> Iterator[str]:
    """List the labels of the table's products that the filter would accept, in every form that GFD writes them.

    Names, also as old drivers wrote them; where slices or shares may be, also with -MIG-<profile> and -SHARED.
    """
    for form, product in case.knowledge.products.by_form.items():
        allowed = all(any(pattern.matches(form) for pattern in any_of) for any_of in demand.products)
        if not allowed or any(pattern.matches(form) for pattern in demand.denied_products):
            continue
        for label in (product.label, *product.aliases):
            yield label
            if demand.sharing is not SharingWish.Exclusive:
                yield f"{label}-SHARED"
                for profile in case.knowledge.mig.profiles(form):
                    yield from (f"{label}-MIG-{profile}", f"{label}-MIG-{profile}-SHARED")


def _labels_of_fleet(case: Case, demand: Demand, accepted: bool) -> set[str]:
    """Collect the product labels that nodes carry now, of products that the filter accepts, or refuses."""
    return {
        kin.product_label
        for kin in case.fleet.kin
        if kin.product_label and (product_allowed(demand, kin.node_class) is None) is accepted
    }


def serving_nodes_unlabelled(case: Case) -> bool:
    """Tell whether nodes that fit are known by another label than GFD's: a required term would exclude them."""
    demand = case.ruling.demand
    known_otherwise = (kin for kin in case.fleet.kin if not kin.product_label and kin.node_class.product is not None)
    return any(product_allowed(demand, kin.node_class) is None for kin in known_otherwise)


def require(document: Mapping[str, Any], wanted: tuple[dict[str, Any], ...]) -> tuple[Operation, ...]:
    """Build the operations that AND the expressions into every required term of the user, or make the first term."""
    terms = _get(document, REQUIRED)
    if not terms:
        return (put(document, REQUIRED, [{"matchExpressions": list(wanted)}]),)
    operations: list[Operation] = []
    for index, term in enumerate(terms):
        if not isinstance(term, dict) or not (term.get("matchExpressions") or term.get("matchFields")):
            continue  # an empty term selects no node; ANDing into it would make it select some
        present = term.get("matchExpressions") or []
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
