# SPDX-License-Identifier: Apache-2.0
"""Node affinity written into a pod: it is ANDed into what the user wrote, and replaces none of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.admission.affinity.label_needs import Expression
from app.admission.affinity.terms import Term
from app.admission.json_patch import Operation, append, apply, put

NODE_AFFINITY = ("spec", "affinity", "nodeAffinity")
REQUIRED = (*NODE_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
PREFERRED = (*NODE_AFFINITY, "preferredDuringSchedulingIgnoredDuringExecution")
MOST_TERMS = 16
"""Required terms of one pod, after the user's terms are multiplied with ours (docs/reference/admission.md#affinity)."""


def require_terms(document: Mapping[str, Any], wanted: Sequence[Term]) -> tuple[Operation, ...] | None:
    """Build the operations that AND the wanted terms into every required term of the user.

    Terms are ORed, so that each of the user's terms is needed once per wanted term: with the first one in its place,
    with the others as copies at the end. Returns None where that would be more than MOST_TERMS.
    """
    terms = member_at(document, REQUIRED)
    if not terms:
        if member_at(document, REQUIRED[:-1]) is not None:
            return ()  # a selector without terms selects no node, and the API server refuses it; ours would widen it
        return (put(document, REQUIRED, [{"matchExpressions": list(term)} for term in wanted]),)
    # An empty term selects no node; an expression added to it would make it select some.
    open_terms = [index for index, term in enumerate(terms) if _selects(term) and not _covers_one(term, wanted)]
    if len(terms) + len(open_terms) * (len(wanted) - 1) > MOST_TERMS and open_terms:
        return None
    operations: list[Operation] = []
    for index in open_terms:
        for expression in _missing(terms[index], wanted[0]):
            path = (*REQUIRED, str(index), "matchExpressions")
            operations.append(append(apply(document, operations), path, expression))
    for term in wanted[1:]:
        for index in open_terms:
            present = terms[index].get("matchExpressions") or []
            copy = {**terms[index], "matchExpressions": [*present, *_missing(terms[index], term)]}
            operations.append(Operation("add", (*REQUIRED, "-"), copy))
    return tuple(operations)


def prefer_terms(document: Mapping[str, Any], wanted: Sequence[tuple[int, Term]]) -> tuple[Operation, ...]:
    """Build the operations that add (weight, term) as preferred terms, unless the pod has them."""
    present = member_at(document, PREFERRED) or ()
    operations: list[Operation] = []
    for weight, expressions in wanted:
        term = {"weight": weight, "preference": {"matchExpressions": list(expressions)}}
        if term not in present:
            operations.append(append(apply(document, operations), PREFERRED, term))
    return tuple(operations)


def _selects(term: Mapping[str, Any]) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _covers_one(term: Mapping[str, Any], wanted: Sequence[Term]) -> bool:
    """Tell whether a term has all expressions of some wanted one already, by an earlier pass or by the user."""
    return any(not list(_missing(term, wanted_term)) for wanted_term in wanted)


def _missing(term: Mapping[str, Any], wanted: Term) -> Iterator[Expression]:
    present = term.get("matchExpressions") or ()
    return (expression for expression in wanted if expression not in present)


def member_at(document: Any, path: tuple[str, ...]) -> Any:
    """Follow members of JSON objects; None where one is missing."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document
