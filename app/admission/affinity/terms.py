# SPDX-License-Identifier: Apache-2.0
"""Node affinity terms: one OR-term a dialect, each need in it that the dialect has words for, and no node lost by it.

A term asks for labels of one dialect alone, since a provisioner refuses a term that asks for one that it does not
know. What only excludes nodes stands in every term. A need by which the terms would exclude a node that fits is only
preferred; so is one that asks for labels of which nothing shows that a node to come will carry them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from app.admission.affinity.label_needs import (
    DRIVER_MAJOR,
    EXCLUDING,
    GFD,
    INFERRED,
    NEEDS,
    OLD_DRIVER_MAJOR,
    OLD_GFD,
    Expression,
    NeedContext,
    Words,
    excluding,
    exclusions,
    unsettled,
)
from app.admission.fleet_facts import FleetFacts, NodeGroup, serving
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.nodes.labels import PRODUCT
from app.policy.demand import Demand
from app.values.label_requirements import expression, requirement

NEED_WEIGHT = 100
"""Of a need that is only preferred: the highest that Kubernetes allows."""
FIRST_PRODUCT_WEIGHT, LAST_PRODUCT_WEIGHT = 50, 10
"""Of the first and the last product preferred: less than any need (a guess)."""
DRIVER_WEIGHT = 5
"""Of a driver that runs the image natively: less than any product (a guess)."""
MOST_PREFERENCES = 8

Term = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """What to write: OR-terms that are required, (weight, term) that are preferred.

    `soft`: needs that were declared and are only preferred, since nodes that fit lack the label. `unsure`: the same,
    since nothing shows that nodes to come will carry it. `closed`: labels without which a node group at zero does not
    come, where there may be such groups.
    """

    required: tuple[Term, ...] = ()
    preferred: tuple[tuple[int, Term], ...] = ()
    soft: bool = False
    unsure: bool = False
    closed: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def terms_of(demand: Demand, fleet: FleetFacts, keys: tuple[str, ...] | None, knowledge: Knowledge) -> Terms:
    """Write a demand as affinity. `keys`: the dialects to use; None: GFD, and those that the fleet's nodes speak."""
    known = replace(demand, refuse_unknown=False)  # what a label does not tell is the node's to tell
    if not _labelled(demand):
        return Terms()
    names = _dialects(fleet, keys)
    clouds = tuple(each for each in knowledge.clouds.dialects if each.name in names)
    declared = tuple(need for need in known.cuda if not need.inferred)
    asked = NeedContext(known, declared, known.compute_capability, fleet, serving(demand, fleet), knowledge, clouds)
    of_images = replace(asked, cuda=tuple(need for need in known.cuda if need.inferred), compute_capability=None)
    inferred = [words for need in INFERRED if any((words := need(of_images)).values())]
    needs = [words for need in NEEDS if any((words := need(asked)).values())]
    dialects = (*_old_names(asked, needs, names), *names)
    kept = _harmless(asked, needs, dialects)
    sure = _sure(asked, kept, dialects)
    hard = kept if sure else [words for words in kept if excluding(words)]
    soft = [words for words in (*needs, *inferred) if words not in hard]
    common = _common(asked, [words for words in (*inferred, *needs) if words not in hard], dialects)
    required = tuple(_terms(asked, hard, dialects, common))
    preferred = [(NEED_WEIGHT, term) for term in _terms(asked, soft, (GFD,) if GFD in dialects else dialects[-1:])]
    return Terms(
        _selected(demand, required),
        (*preferred, *_preferences(asked, dialects)),
        soft=len(kept) < len(needs),
        unsure=hard != kept,
        closed=_asked_keys(required[:1]) if fleet.pools or not (fleet.node_groups or fleet.provisioners) else (),
    )


def _sure(asked: NeedContext, needs: Sequence[Words], dialects: tuple[str, ...]) -> bool:
    """Tell whether some node carries, or will carry, the labels that needs ask for.

    Those that are there and fit do; those that a provisioner will bring do, where it has words for the needs. Where no
    cloud shows, nodes are labelled by the software that labels those that are there.
    """
    by_provisioner = any(
        all(words.get(name, ()) is not None for words in needs) for name in asked.fleet.provisioners if name in dialects
    )
    return bool(asked.serving) or by_provisioner or not asked.fleet.pools


def _common(asked: NeedContext, unsaid: Iterable[Words], dialects: tuple[str, ...]) -> Term:
    """List what every term excludes: what needs refuse that no term asks for, and nodes that are being changed."""
    spoken = [{name: said for name, said in words.items() if name in (*dialects, OLD_GFD)} for words in unsaid]
    found = [*(each for words in spoken for each in exclusions(asked, words)), *unsettled(asked.fleet)]
    harmless = (each for each in found if all(fulfils(group, (each,)) for group in asked.serving))
    return _distinct(harmless)


def _distinct(expressions: Iterable[Expression]) -> Term:
    return tuple({repr(each): each for each in expressions}.values())


def _asked_keys(terms: Iterable[Term]) -> tuple[str, ...]:
    """List the labels that terms ask for."""
    keys = (each["key"] for term in terms for each in term if each["operator"] not in EXCLUDING)
    return tuple(dict.fromkeys(keys))


def _selected(demand: Demand, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Add the policies' node selectors to every term: they are in the operator's own words, whatever the dialect."""
    selector = tuple(map(expression, demand.node_selector))
    return tuple((*term, *selector) for term in terms or ((),)) if selector else terms


def _labelled(demand: Demand) -> bool:
    """Tell whether it is of NVIDIA's GPUs, which the labels are about; other vendors' nodes carry none of them."""
    domain = PRODUCT.partition("/")[0] + "/"
    return bool(demand.claims) or any(resource.startswith(domain) for resource, _ in demand.resources)


def _dialects(fleet: FleetFacts, keys: tuple[str, ...] | None) -> tuple[str, ...]:
    """Order the dialects: the provisioner's last.

    Karpenter tries the first term together with the heaviest preference, and drops all terms but the last before it
    drops a preference (kubernetes-sigs/karpenter pkg/controllers/provisioning/scheduling/preferences.go).
    """
    spoken = [name for name in fleet.provisioners if keys is None or name in keys]
    return (*(name for name in (keys or (GFD,)) if name not in spoken), *spoken)


def _old_names(asked: NeedContext, needs: Sequence[Words], names: tuple[str, ...]) -> tuple[str, ...]:
    """Add GFD's deprecated names where nodes that fit have no others, and they make a difference."""
    old = any(group.label(OLD_DRIVER_MAJOR) and not group.label(DRIVER_MAJOR) for group in asked.serving)
    of_drivers = any(words.get(GFD) != words.get(OLD_GFD) for words in needs)
    return (OLD_GFD,) if GFD in names and old and of_drivers else ()


def _harmless(asked: NeedContext, needs: list[Words], dialects: tuple[str, ...]) -> list[Words]:
    """Take needs out until every node that fits fulfils some term."""
    kept = list(needs)
    for group in asked.serving:
        if not _admits(asked, kept, dialects, group):
            fewer = [[words for words in kept if fulfils(group, words.get(dialect, ()))] for dialect in dialects]
            fewer.append([words for words in kept if all(fulfils(group, words.get(each, ())) for each in dialects)])
            suited = [each for each in fewer if len(each) < len(kept) and _admits(asked, each, dialects, group)]
            kept = max(suited, key=len, default=[])
    return kept


def _admits(asked: NeedContext, needs: Sequence[Words], dialects: tuple[str, ...], group: NodeGroup) -> bool:
    terms = list(_terms(asked, needs, dialects))
    return not terms or any(fulfils(group, term) for term in terms)


def _terms(asked: NeedContext, needs: Iterable[Words], dialects: tuple[str, ...], common: Term = ()) -> Iterator[Term]:
    """Write one term a dialect that can meet all needs; beside others, each with a label that only its nodes have.

    One term for all where the needs only exclude nodes. `common`: what stands in every term.
    """
    needs = list(needs)
    able = [dialect for dialect in dialects if all(words.get(dialect, ()) is not None for words in needs)]
    terms = [tuple(said for words in needs for said in words.get(dialect) or ()) for dialect in able]
    if not any(_asks(term) for term in terms):
        together = _distinct((*(each for term in terms for each in term), *common))
        yield from (together,) if together else ()
        return
    for dialect, term in zip(able, terms, strict=True):
        anchor = () if _asks(term) else ({"key": _anchor(asked.knowledge, dialect), "operator": "Exists"},)
        yield _distinct((*anchor, *term, *common))


def _asks(term: Term) -> bool:
    """Tell whether a term asks for a label, so that a node without it does not fulfil it."""
    return any(each["operator"] not in EXCLUDING for each in term)


def _anchor(knowledge: Knowledge, dialect: str) -> str:
    return next((each.key for each in knowledge.clouds.dialects if each.name == dialect), PRODUCT)


def fulfils(group: NodeGroup, term: Iterable[Expression] | None) -> bool:
    """Tell whether nodes of a kind meet all expressions, as kube-scheduler reads them."""
    return term is not None and all(
        requirement(each["key"], each["operator"], each.get("values", ())).allows(group.label(each["key"]))
        for each in term
    )


def _preferences(asked: NeedContext, dialects: tuple[str, ...]) -> Iterator[tuple[int, Term]]:
    """Write what is preferred, best first, in GFD's words and those of the provisioner (F136)."""
    patterns = asked.demand.preferred_products[:MOST_PREFERENCES]
    step = (FIRST_PRODUCT_WEIGHT - LAST_PRODUCT_WEIGHT) // max(1, len(patterns) - 1)
    for place, pattern in enumerate(patterns):
        for dialect in dialects:
            key, values = _preferred_values(asked, dialect, pattern)
            if values:
                said = {"key": key, "operator": "In", "values": values}
                yield FIRST_PRODUCT_WEIGHT - place * step, (said,)
    natives = [need.native[0] for need in (*asked.demand.cuda, *asked.demand.cuda_wishes)]
    if max(natives, default=0) > 0 and GFD in dialects:
        yield DRIVER_WEIGHT, ({"key": DRIVER_MAJOR, "operator": "Gt", "values": [str(max(natives) - 1)]},)


def _preferred_values(asked: NeedContext, dialect: str, pattern: ProductPattern) -> tuple[str, list[str]]:
    """List a pattern's products in a dialect: plain names, and in GFD's also those that the fleet's nodes carry."""
    products = asked.knowledge.products.by_form
    meant = {product.label for form, product in products.items() if pattern.matches(form)}
    if dialect == GFD:
        seen = {
            label
            for group in asked.fleet.node_groups
            if (label := group.label(PRODUCT))
            and group.node_class.product
            and pattern.matches(group.node_class.product)
        }
        return PRODUCT, sorted(meant | seen)
    spoken = next((each for each in asked.knowledge.clouds.dialects if each.name == dialect), None)
    if spoken is None:
        return PRODUCT, []
    return spoken.key, sorted(value for value, may in spoken.values.items() if meant & set(may))
