# SPDX-License-Identifier: Apache-2.0
"""Node affinity terms of a demand: one term per label dialect; the terms are ORed, and no node that fits is lost.

A term requires labels of one dialect alone, since a provisioner refuses a term with a label that it does not know.
Expressions that only exclude nodes stand in every term. A need whose terms would exclude a node that fits is only
preferred; so is a need for labels of which nothing shows that a future node will have them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from app.admission.affinity_labels import (
    DRIVER_MAJOR,
    EXCLUDING,
    GFD,
    INFERABLE_NEEDS,
    NEED_EXPRESSIONS,
    OLD_DRIVER_MAJOR,
    OLD_GFD,
    ExpressionsByDialect,
    NeedContext,
    exclude_changing_nodes,
    label_values,
    vendor_exclusions,
)
from app.knowledge.gpu_resources import Family
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.nodes.conditions import ARCHITECTURE, PRODUCT, SHARING
from app.policy.demand import Demand
from app.policy.facts import MatchExpression
from app.policy.needs import WITH_FACT
from app.values.label_requirements import label_requirement, match_expression
from app.world.fleet_facts import FleetFacts, NodeGroup, fitting_groups

NEED_WEIGHT = 100
"""Weight of a need that is only preferred: the highest that Kubernetes allows."""
FIRST_PRODUCT_WEIGHT, LAST_PRODUCT_WEIGHT = 50, 10
"""Weights of the first and the last preferred product: below that of any need (a guess)."""
DRIVER_WEIGHT = 5
"""Weight of a driver that runs the image natively: below that of any product (a guess)."""
MOST_PREFERRED_PRODUCTS = 8
"""Preferred products that are written into a pod; the others are left out."""

NEED_WORDS = {DRIVER_MAJOR: "the driver version", SHARING: "how GPUs are shared"}
BY_PRODUCT = frozenset(fact.label for _, fact in WITH_FACT if fact.by_product)
"""Labels whose values the product decides."""
Term = tuple[MatchExpression, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms to write: ORed ones that are required, and (weight, term) that are preferred.

    `soft` is true where a declared need is only preferred because nodes that fit lack the label. `unsure` is true
    where it is only preferred because nothing shows that future nodes will have the label. `scale_up_labels` are the
    labels of the first required term, in a cluster that may have node groups without a node: cluster-autoscaler adds
    the first node to such a group only if the group's template has these labels. They are empty in other clusters.
    """

    required: tuple[Term, ...] = ()
    preferred: tuple[tuple[int, Term], ...] = ()
    soft: bool = False
    unsure: bool = False
    scale_up_labels: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    told: bool = False


@lru_cache(maxsize=256)
def affinity_terms_of(
    demand: Demand, fleet: FleetFacts, keys: tuple[str, ...] | None, knowledge: Knowledge, lasting: bool = False
) -> Terms:
    """Write a demand as node affinity. `keys` are the dialects to use; None means GFD and the fleet's.

    With `lasting` the terms do not say what nodes are going through, such as a driver upgrade.
    """
    demand_by_labels = replace(demand, refuse_unknown=False)  # a label that is absent decides nothing
    families = _families_of(demand, knowledge)
    if families and not any(family.cuda for family in families):
        return Terms(
            _with_node_selector(demand, tuple(vendor_exclusions(demand_by_labels, families, fleet, knowledge)))
        )
    if not families and not demand.claims:
        return Terms()
    names = _dialects(fleet, keys)
    clouds = tuple(dialect for dialect in knowledge.clouds.dialects if dialect.name in names)
    declared, by_images = (
        tuple(need for need in demand_by_labels.cuda if need.inferred is inferred) for inferred in (False, True)
    )
    groups = fitting_groups(demand, fleet)
    considered = replace(demand_by_labels, cuda=declared)
    context = NeedContext(demand_by_labels, considered, fleet, groups, knowledge, clouds)
    image_context = replace(context, considered=Demand(resources=demand.resources, cuda=by_images))
    inferred = [expressions for need in INFERABLE_NEEDS if any((expressions := need(image_context)).values())]
    needs = [expressions for need in NEED_EXPRESSIONS if any((expressions := need(context)).values())]
    dialects = (*_deprecated_names(context, needs, names), *names)
    harmless = _without_harmful(context, needs, dialects)
    certain = _labels_expected(context, harmless, dialects)
    required_needs = harmless if certain else [expressions for expressions in harmless if only_excludes(expressions)]
    preferred_needs = [expressions for expressions in (*needs, *inferred) if expressions not in required_needs]
    common = _common_expressions(
        context, [expressions for expressions in (*inferred, *needs) if expressions not in required_needs], dialects
    )
    if not lasting:
        common = (*common, *_harmless(context, exclude_changing_nodes(context.fleet)))
    required = tuple(_terms(context, required_needs, dialects, common))
    preferred = [
        *_architecture_preference(demand, fleet),
        *(
            (NEED_WEIGHT, term)
            for term in _terms(context, preferred_needs, (GFD,) if GFD in dialects else dialects[-1:])
        ),
    ]
    scaled_by = [item["key"] for term in required[:1] for item in term if item["operator"] not in EXCLUDING]
    return Terms(
        _with_node_selector(demand, tuple(_selectable(required, fleet))),
        tuple(
            (weight, term)
            for weight, wish in (*preferred, *_preferences(context, dialects))
            for term in _selectable((wish,), fleet)
        ),
        soft=len(harmless) < len(needs),
        unsure=required_needs != harmless,
        scale_up_labels=tuple(dict.fromkeys(scaled_by)) if _may_scale_from_zero(fleet) else (),
        left_out=tuple(dict.fromkeys(_left_out((*needs, *inferred), fleet))),
        told=any(_left_out(needs, fleet)),
    )


def _left_out(needs: Iterable[ExpressionsByDialect], fleet: FleetFacts) -> Iterator[str]:
    """List the needs that are said by no label by which the platform of all nodes lets pods select.

    What the product decides is said by the platform's own label of it.
    """
    for expressions in needs if fleet.selectable is not None else ():
        keys = {item["key"] for items in expressions.values() for item in items or ()}
        if keys.isdisjoint({*(fleet.selectable or ()), *BY_PRODUCT}):
            yield from (NEED_WORDS.get(str(item["key"]), str(item["key"])) for item in expressions.get(GFD) or ())


def _selectable(terms: Iterable[Term], fleet: FleetFacts) -> Iterator[Term]:
    """Leave out what a platform would refuse the pod for; a term of which nothing is left says nothing."""
    for term in terms:
        allowed = tuple(item for item in term if fleet.selectable is None or item["key"] in fleet.selectable)
        if allowed:
            yield allowed


def _architecture_preference(demand: Demand, fleet: FleetFacts) -> Iterator[tuple[int, Term]]:
    """Prefer the CPU architecture that the images are built for, in a fleet that has others too."""
    wanted = {platform.architecture for platform in demand.platforms}
    present = {group.node_class.architecture for group in fleet.node_groups} - {None}
    if len(wanted) == 1 and present - wanted:
        yield NEED_WEIGHT, ({"key": ARCHITECTURE, "operator": "In", "values": sorted(wanted)},)


def _may_scale_from_zero(fleet: FleetFacts) -> bool:
    """Tell whether node groups without a node may exist whose labels cannot be seen.

    That is so where node pools are seen whose labels no autoscaler knows before a node exists, and where there is
    neither a GPU node nor a provisioner.
    """
    return bool(fleet.pools) or not (fleet.node_groups or fleet.provisioners)


def _labels_expected(context: NeedContext, needs: Sequence[ExpressionsByDialect], dialects: tuple[str, ...]) -> bool:
    """Tell whether some node has, or will have, the labels that the needs require.

    That is so where fitting nodes exist, where an autoscaler knows a dialect's labels for all the needs before a node
    exists, or where no node pool of another kind is seen: then new nodes are labelled by the software that labels the
    present ones.
    """
    by_provisioner = any(
        all(expressions.get(name, ()) is not None for expressions in needs)
        for name in context.fleet.provisioners
        if name in dialects and name in context.knowledge.clouds.on_templates()
    )
    return bool(context.fitting_groups) or by_provisioner or not context.fleet.pools


def _common_expressions(context: NeedContext, needs: Iterable[ExpressionsByDialect], dialects: tuple[str, ...]) -> Term:
    """List what every term excludes: what the needs refuse without requiring a label."""
    by_dialect = [
        {name: items for name, items in expressions.items() if name in (*dialects, OLD_GFD)} for expressions in needs
    ]
    return _harmless(context, (item for expressions in by_dialect for item in exclusions(context, expressions)))


def _harmless(context: NeedContext, expressions: Iterable[MatchExpression]) -> Term:
    """Keep the expressions that exclude no node that fits."""
    return _distinct(
        item for item in expressions if all(group_fulfils(group, (item,)) for group in context.fitting_groups)
    )


def _distinct(expressions: Iterable[MatchExpression]) -> Term:
    return tuple({repr(item): item for item in expressions}.values())


def _with_node_selector(demand: Demand, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Add the policies' node selectors to every term; their labels are the operator's own, of no dialect."""
    selector = tuple(map(match_expression, demand.node_selector))
    return tuple((*term, *selector) for term in terms or ((),)) if selector else terms


def _families_of(demand: Demand, knowledge: Knowledge) -> tuple[Family, ...]:
    """List the families of what a demand asks for; a DeviceClass of the cluster's own tells none."""
    by_resource = (knowledge.families.of(resource) for resource, _ in demand.resources)
    by_claim = (knowledge.families.of_device_class(name) for name, _ in demand.claims)
    return tuple(filter(None, (*by_resource, *by_claim)))


def _dialects(fleet: FleetFacts, keys: tuple[str, ...] | None) -> tuple[str, ...]:
    """Order the dialects, the provisioner's last.

    Karpenter tries the first term together with the heaviest preference, and drops all terms but the last before it
    drops a preference (kubernetes-sigs/karpenter pkg/controllers/provisioning/scheduling/preferences.go).
    """
    provisioners = [name for name in fleet.provisioners if keys is None or name in keys]
    named = (name for name in (keys or (GFD,)) if name not in provisioners)
    return (*(name for name in named if name != GFD or not _without_gfd(fleet)), *provisioners)


def _without_gfd(fleet: FleetFacts) -> bool:
    """Tell whether no pod can select by GFD's labels: a platform refuses it, or no node has any label about GPUs.

    In the second case ResourceSlices say which products they are.

    No component sets the labels in such a cluster, as one whose GPU Operator leaves GPUs to DRA; terms on them would
    keep a pod from every node to come as well.
    """
    groups = fleet.node_groups
    if fleet.selectable is not None and PRODUCT not in fleet.selectable:
        return True
    return not any(group.labels for group in groups) and any(group.node_class.product for group in groups)


def _deprecated_names(
    context: NeedContext, needs: Sequence[ExpressionsByDialect], names: tuple[str, ...]
) -> tuple[str, ...]:
    """Add GFD's deprecated names where some fitting node has no others and the needs differ between the two."""
    deprecated = any(
        group.label(OLD_DRIVER_MAJOR) and not group.label(DRIVER_MAJOR) for group in context.fitting_groups
    )
    differs = any(expressions.get(GFD) != expressions.get(OLD_GFD) for expressions in needs)
    return (OLD_GFD,) if GFD in names and deprecated and differs else ()


def _without_harmful(
    context: NeedContext, needs: list[ExpressionsByDialect], dialects: tuple[str, ...]
) -> list[ExpressionsByDialect]:
    """Drop needs, as few as possible, until every node that fits fulfils some term."""
    remaining = list(needs)
    for group in context.fitting_groups:
        if not _some_term_fits(context, remaining, dialects, group):
            subsets = [
                [expressions for expressions in remaining if group_fulfils(group, expressions.get(dialect, ()))]
                for dialect in dialects
            ]
            subsets.append(
                [
                    expressions
                    for expressions in remaining
                    if all(group_fulfils(group, expressions.get(dialect, ())) for dialect in dialects)
                ]
            )
            fitting = [
                subset
                for subset in subsets
                if len(subset) < len(remaining) and _some_term_fits(context, subset, dialects, group)
            ]
            remaining = max(fitting, key=len, default=[])
    return remaining


def _some_term_fits(
    context: NeedContext, needs: Sequence[ExpressionsByDialect], dialects: tuple[str, ...], group: NodeGroup
) -> bool:
    terms = list(_terms(context, needs, dialects))
    return not terms or any(group_fulfils(group, term) for term in terms)


def _terms(
    context: NeedContext, needs: Iterable[ExpressionsByDialect], dialects: tuple[str, ...], common: Term = ()
) -> Iterator[Term]:
    """Write one term for each dialect that can meet all needs, with a label that only the dialect's nodes have.

    Where the needs only exclude nodes, one term stands for all dialects. `common` stands in every term.
    """
    needs = list(needs)
    able_dialects = [
        dialect for dialect in dialects if all(expressions.get(dialect, ()) is not None for expressions in needs)
    ]
    terms = [
        tuple(items for expressions in needs for items in expressions.get(dialect) or ()) for dialect in able_dialects
    ]
    if not any(_requires_label(term) for term in terms):
        together = _distinct((*(item for term in terms for item in term), *common))
        yield from (together,) if together else ()
        return
    for dialect, term in zip(able_dialects, terms, strict=True):
        key = next((cloud.key for cloud in context.knowledge.clouds.dialects if cloud.name == dialect), PRODUCT)
        anchor = () if _requires_label(term) else ({"key": key, "operator": "Exists"},)
        yield _distinct((*anchor, *term, *common))


def _requires_label(term: Term) -> bool:
    """Tell whether a term requires a label, so that a node without it does not fulfil the term."""
    return any(item["operator"] not in EXCLUDING for item in term)


def group_fulfils(group: NodeGroup, term: Iterable[MatchExpression] | None) -> bool:
    """Tell whether the nodes of a group fulfil all expressions, by kube-scheduler's rules."""
    return term is not None and all(
        label_requirement(item["key"], item["operator"], item.get("values", ())).allows(group.label(item["key"]))
        for item in term
    )


def _preferences(context: NeedContext, dialects: tuple[str, ...]) -> Iterator[tuple[int, Term]]:
    """Write the preferences, best first, in the labels of GFD and of the provisioner."""
    patterns = context.demand.preferred_products[:MOST_PREFERRED_PRODUCTS]
    step = (FIRST_PRODUCT_WEIGHT - LAST_PRODUCT_WEIGHT) // max(1, len(patterns) - 1)
    for index, pattern in enumerate(patterns):
        for dialect in dialects:
            key, values = _preferred_values(context, dialect, pattern)
            if values:
                item = {"key": key, "operator": "In", "values": values}
                yield FIRST_PRODUCT_WEIGHT - index * step, (item,)
    natives = [need.native[0] for need in (*context.demand.cuda, *context.demand.preferred_cuda)]
    if max(natives, default=0) > 0 and GFD in dialects:
        yield DRIVER_WEIGHT, ({"key": DRIVER_MAJOR, "operator": "Gt", "values": [str(max(natives) - 1)]},)


def _preferred_values(context: NeedContext, dialect: str, pattern: ProductPattern) -> tuple[str, list[str]]:
    """List a pattern's products as label values of a dialect; for GFD also those that the fleet's nodes carry."""
    products = context.knowledge.products.by_form
    labels = {product.label for form, product in products.items() if pattern.matches(form)}
    if dialect == GFD:
        fleet_labels = {
            label
            for group in context.fleet.node_groups
            if (label := group.label(PRODUCT))
            and group.node_class.product
            and pattern.matches(group.node_class.product)
        }
        return PRODUCT, sorted(labels | fleet_labels)
    cloud = next(
        (dialect_row for dialect_row in context.knowledge.clouds.dialects if dialect_row.name == dialect), None
    )
    if cloud is None:
        return PRODUCT, []
    return cloud.key, sorted(value for value, product_labels in cloud.values.items() if labels & set(product_labels))


def only_excludes(expressions: ExpressionsByDialect) -> bool:
    """Tell whether nodes without any of the labels fulfil the expressions of every dialect."""
    lists = expressions.values()
    return all(items is not None and all(item["operator"] in EXCLUDING for item in items) for items in lists)


def exclusions(context: NeedContext, expressions: ExpressionsByDialect) -> Iterator[MatchExpression]:
    """Rewrite a need as exclusions: the label values that GPU nodes have now and that its expressions refuse.

    No value of a node that fits is excluded. A node's deprecated GFD names count only where it has no others.
    """
    for dialect, items in expressions.items():
        nodes = [group for group in context.fleet.node_groups if dialect != OLD_GFD or not group.label(DRIVER_MAJOR)]
        for key in dict.fromkeys(item["key"] for item in items or ()):
            key_items = [item for item in items or () if item["key"] == key]
            yield from (item for item in key_items if item["operator"] == "DoesNotExist")
            values = _refused_values(key_items, label_values(nodes, key)) - label_values(context.fitting_groups, key)
            if values:
                yield {"key": key, "operator": "NotIn", "values": sorted(values)}


def _refused_values(expressions: Sequence[MatchExpression], values: set[str]) -> set[str]:
    """List the refused values of a label: those that the expressions name, and those of `values` that they exclude."""
    named = {value for item in expressions if item["operator"] == "NotIn" for value in item["values"]}
    asking = [item for item in expressions if item["operator"] != "DoesNotExist"]
    requirements = [label_requirement(item["key"], item["operator"], item.get("values", ())) for item in asking]
    return named | {value for value in values if not all(item.allows(value) for item in requirements)}
