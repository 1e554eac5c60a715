# SPDX-License-Identifier: Apache-2.0
"""Needs as node label expressions: one function per need, which returns the expressions of each label dialect.

A dialect is one vendor's or cloud's set of labels about GPUs. All expressions are necessary conditions: every node
with the dialect's labels that the filters accept fulfils them. What no label can express is left to the extender.
Which product labels a demand accepts is judged first, by the product table and the label's suffixes.

A declared need may require that a label is present. A need that was only inferred, from an image, never may: a node
group at zero does not yet have the labels that software writes on running nodes. It only excludes the values that
nodes have now and that the filters refuse, since a node without the label fulfils NotIn.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from app.knowledge.clouds import Dialect
from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed, HostFacts, judge_driver
from app.knowledge.gpu_resources import Family
from app.knowledge.mig_profiles import profile_of
from app.knowledge.tables import Knowledge
from app.nodes.conditions import (
    DRIVER,
    MIG_STATE,
    OLD_DRIVER,
    PAUSED_FOR_DRIVER,
    PAUSED_FOR_MIG,
    PLUGIN,
    PRODUCT,
    SHARING,
    UPGRADE_STATE,
)
from app.nodes.labels import read_node_class
from app.nodes.model import NodeClass, Sharing
from app.placement.class_filters import (
    MIG_STATES_AT_CHANGE,
    UPGRADE_STATES_REFUSED,
    mig_profile_offered,
    sharing_allowed,
)
from app.placement.filters import PRODUCT_FILTERS
from app.policy.demand import Demand
from app.policy.facts import UNSTATED, Fact, MatchExpression, number_at_least
from app.policy.needs import WITH_FACT, Need
from app.policy.schema_placement import SharingWish
from app.values.versions import ABOVE_ANY_MINOR, Version
from app.world.fleet_facts import STATE_KEYS, FleetFacts, NodeGroup, fitting_groups

LONGEST_LABEL_VALUE = 63
"""Characters of a label's value (Kubernetes label syntax); no node can have a longer one, and no pod select it."""


def names_only_known_products(demand: Demand) -> bool:
    """Tell whether the demand names only products and families of the table, so that a cloud's values can be listed."""
    return bool(demand.products) and all(pattern.labels is not None for any_of in demand.products for pattern in any_of)


def refused_by_label(demand: Demand, label: str, knowledge: Knowledge) -> bool:
    """Tell whether a GFD product label with its suffixes shows that no node with it can ever serve the demand."""
    node_class = _class_of(label, knowledge)
    if any(class_filter(demand, node_class) for class_filter in (*PRODUCT_FILTERS, mig_profile_offered)):
        return True
    return demand.sharing is SharingWish.Exclusive and sharing_allowed(demand, node_class) is not None


def refused_by_value(demand: Demand, dialect: Dialect, value: str, knowledge: Knowledge) -> bool:
    """Tell whether all products that a cloud's label value stands for are refused by some filter."""
    classes = [_class_of(label, knowledge) for label in dialect.values.get(value, ())]
    return bool(classes) and all(
        any(class_filter(demand, node_class) for class_filter in PRODUCT_FILTERS) for node_class in classes
    )


@lru_cache(maxsize=1024)
def _class_of(label: str, knowledge: Knowledge) -> NodeClass:
    """Build the class of a node of which only the product label is known."""
    return read_node_class({PRODUCT: label}, (), knowledge)


def _values(
    key: str, candidates: Iterable[str], refused: Callable[[str], bool], fitting: Iterable[NodeGroup], wanted: bool
) -> list[str]:
    """List the values of a product label that the demand may run on, or (not `wanted`) those that it never can.

    Values that fitting nodes carry now are always among the first.
    """
    carried = label_values(fitting, key)
    if wanted:
        return sorted({value for value in candidates if not refused(value)} | carried)
    return sorted(value for value in set(candidates) - carried if refused(value))


@lru_cache(maxsize=4)
def _products_of_clouds(knowledge: Knowledge) -> frozenset[str]:
    """List the products of CUDA that clouds offer, as GFD labels them."""
    clouds = knowledge.clouds
    named = {label for dialect in clouds.dialects for labels in dialect.values.values() for label in labels}
    named |= {label for row in clouds.instances.rows for label in row.products}
    return frozenset(label for label in named if knowledge.products.find(label))


def vendor_exclusions(
    demand: Demand, families: Iterable[Family], fleet: FleetFacts, knowledge: Knowledge
) -> Iterator[tuple[dict[str, Any], ...]]:
    """Exclude the values of a vendor's own labels that nodes have and that show that no node can serve the demand.

    A node to come may lack the labels, and another value may serve. The result is one term, or none.
    """
    names = {family.name for family in families}
    keys = [
        key for row in knowledge.clouds.vendors if row.family in names for key in (*row.product_keys, *row.memory_keys)
    ]
    fitting = fitting_groups(demand, fleet)
    expressions = []
    for key in keys:
        refused = sorted(
            value
            for value in label_values(fleet.node_groups, key) - label_values(fitting, key)
            if any(refuses(demand, read_node_class({key: value}, (), knowledge)) for refuses in PRODUCT_FILTERS)
        )
        if refused:
            expressions.append({"key": key, "operator": "NotIn", "values": refused})
    if expressions:
        yield tuple(expressions)


def label_values(node_groups: Iterable[NodeGroup], key: str) -> set[str]:
    """Collect the values of a label in node groups."""
    return {value for group in node_groups if (value := group.label(key)) is not None}


def _known_labels(demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    """List the labels of the requested products, also as old drivers wrote them.

    Each label comes with the suffix -SHARED too, and where a slice counts as a GPU (MIG strategy single) with
    -MIG-<profile>.
    """
    sliced = not any(profile_of(resource) for resource, _ in demand.resources)
    for form, product in knowledge.products.by_form.items():
        if not all(any(pattern.matches(form) for pattern in any_of) for any_of in demand.products):
            continue
        for label in (product.label, *product.aliases):
            slices = knowledge.mig.profiles(form) if sliced else ()
            for unit in (label, *(f"{label}-MIG-{profile}" for profile in slices)):
                yield from (value for value in (unit, f"{unit}-SHARED") if len(value) <= LONGEST_LABEL_VALUE)


GFD, OLD_GFD = "GFD", "GFD, old names"
"""The dialects of GPU Feature Discovery; the second has the driver labels that v0.20.0 deprecates but still writes."""
DRIVER_MAJOR, OLD_DRIVER_MAJOR = f"{DRIVER[0]}.major", f"{OLD_DRIVER[0]}.major"

EXCLUDING = ("NotIn", "DoesNotExist")
"""Operators that a node without the label fulfils, also in Karpenter (kubernetes-sigs/karpenter
pkg/scheduling/requirements.go Compatible); so expressions with them from several dialects may stand in one term."""
ExpressionsByDialect = Mapping[str, tuple[MatchExpression, ...] | None]
"""Expressions by dialect. A dialect without a label for the need is absent; None means that no node of it will do."""


@dataclass(frozen=True, slots=True)
class NeedContext:
    """What the needs are written from.

    `considered` is the demand with those needs alone that are considered: the declared or the inferred ones.
    `fitting_groups` are the node groups of the fleet that fit the demand. `clouds` are the cloud dialects to use.
    """

    demand: Demand
    considered: Demand
    fleet: FleetFacts
    fitting_groups: tuple[NodeGroup, ...]
    knowledge: Knowledge
    clouds: tuple[Dialect, ...]


def product_expressions(context: NeedContext) -> ExpressionsByDialect:
    """Require a product by its label: a list of values where the products are known, else all but refused ones."""
    demand, knowledge = context.demand, context.knowledge
    expressions: dict[str, tuple[MatchExpression, ...] | None] = {}
    # The labels of a family cannot be listed: a node to come may have a variant that no table has.
    listed = bool(demand.products) and all(pattern.listed for any_of in demand.products for pattern in any_of)
    known = names_only_known_products(demand)
    if listed:
        candidates: Iterable[str] = _known_labels(demand, knowledge)
    else:  # without those of clouds an autoscaler could add a machine of another product, which the fleet has not yet
        clouds = _products_of_clouds(knowledge) if known else frozenset[str]()
        candidates = label_values(context.fleet.node_groups, PRODUCT) | clouds
    by_gfd = _values(
        PRODUCT, candidates, lambda one: refused_by_label(demand, one, knowledge), context.fitting_groups, listed
    )
    expressions[GFD] = expressions[OLD_GFD] = _product_expressions(demand, PRODUCT, by_gfd, listed)
    for dialect in context.clouds:
        refused = partial(refused_by_value, demand, dialect, knowledge=knowledge)
        values = _values(dialect.key, dialect.values, refused, context.fitting_groups, known)
        expressions[dialect.name] = _product_expressions(demand, dialect.key, values, known)
    return expressions


def _product_expressions(
    demand: Demand, key: str, values: list[str], listed: bool
) -> tuple[MatchExpression, ...] | None:
    """Write In for products that can be listed, else NotIn; the label must exist if any are allowed or denied."""
    if listed:
        return ({"key": key, "operator": "In", "values": values},) if values else None
    present = ({"key": key, "operator": "Exists"},) if demand.products or demand.denied_products else ()
    return (*present, *(({"key": key, "operator": "NotIn", "values": values},) if values else ()))


def fact_expressions(need: Need[Any], fact: Fact, context: NeedContext) -> ExpressionsByDialect:
    """Require the labels of a fact. A slice requested by name may have a value of its own, which no label says.

    See docs/reference/sharing-and-memory.md#memory.
    """
    wanted = need.wanted(context.considered)
    sliced = fact.by_unit and any(profile_of(resource) for resource, _ in context.demand.resources)
    if wanted in UNSTATED or sliced or not fact.label:
        return {}
    keys = {dialect.name: getattr(dialect, fact.dialect_label) for dialect in context.clouds if fact.dialect_label}
    keys = {GFD: fact.label, OLD_GFD: fact.label, **keys}
    return {name: fact.compared.on_label(key, wanted) for name, key in keys.items() if key}


def driver_expressions(context: NeedContext) -> ExpressionsByDialect:
    """Require a lowest driver branch, and exclude branches of the fleet that an image refuses in every release."""
    accept = context.demand.accept
    least = max((branch for need in context.considered.cuda if (branch := _lowest_branch(need, accept))), default=None)
    if least is None:
        return {}
    label_majors = {
        value for key in (DRIVER_MAJOR, OLD_DRIVER_MAJOR) for value in label_values(context.fleet.node_groups, key)
    }
    branches = sorted(
        int(value) for value in label_majors if value.isdecimal() and least <= int(value) <= ABOVE_ANY_MINOR
    )
    refused = [
        str(branch) for branch in branches if any(_refuses(need, branch, context) for need in context.considered.cuda)
    ]

    def driver_branches(key: str) -> tuple[MatchExpression, ...]:
        exclusion = ({"key": key, "operator": "NotIn", "values": refused},) if refused else ()
        return (*number_at_least(key, least), *exclusion)

    return {GFD: driver_branches(DRIVER_MAJOR), OLD_GFD: driver_branches(OLD_DRIVER_MAJOR)}


def _lowest_branch(need: CUDANeed, accept: AcceptedCompatibility) -> int | None:
    """Return the oldest driver branch on which the need could start; None where that is not known."""
    branches = [need.floor(accept)[0]]
    if accept is AcceptedCompatibility.ForwardCompatible:
        if need.trusts_requirement:
            return None  # forward compatibility: the author of the requirement answers for the driver
        branches += [branch for branch, _ in need.forward]
    return min(branches)


def _refuses(need: CUDANeed, branch: int, context: NeedContext) -> bool:
    """Tell whether even the last driver of a branch is refused; a requirement of the environment is not judged."""
    newest: Version = (branch, ABOVE_ANY_MINOR, ABOVE_ANY_MINOR)
    best = HostFacts(newest, context.knowledge.cuda.highest_cuda(newest), None, datacenter=True)
    return not need.requirement and judge_driver(need, best) < context.demand.accept


def sharing_expressions(context: NeedContext) -> ExpressionsByDialect:
    """Require shared or exclusive GPUs, where a unit of the requested resource may be either."""
    sharing = context.demand.sharing
    if not any(_is_whole_gpu(name, context.knowledge) for name, _ in context.demand.resources):
        return {}
    if sharing is SharingWish.Any:
        return _no_single_units(context) if _asks_for_several(context) else {}
    if sharing is SharingWish.Shared:
        several = _asks_for_several(context) and not context.demand.several_units
        values = ["time-slicing"] if several else ["mps", "time-slicing"]
        shared = ({"key": SHARING, "operator": "In", "values": values},)
        by_cloud = {dialect.name: _sharing_labels(dialect, "Exists") for dialect in context.clouds}
    else:
        shared = ({"key": SHARING, "operator": "NotIn", "values": ["mps", "time-slicing"]},)
        by_cloud = {dialect.name: _sharing_labels(dialect, "DoesNotExist") for dialect in context.clouds}
    return {
        GFD: shared,
        OLD_GFD: shared,
        **{name: expressions for name, expressions in by_cloud.items() if expressions},
    }


def _asks_for_several(context: NeedContext) -> bool:
    """Tell whether one container asks for several units, of which device plugins may give only one."""
    return any(
        amount > 1 and _is_whole_gpu(name, context.knowledge) for name, amount in context.demand.max_per_container
    )


def _no_single_units(context: NeedContext) -> ExpressionsByDialect:
    """Exclude nodes with MPS shares, where the fleet has any, unless the policy says that several of them are given.

    A cloud's own device plugin decides for its nodes: only what it refuses on each of them is excluded.
    """
    expressions: dict[str, tuple[MatchExpression, ...]] = {}
    classes = [group.node_class for group in context.fleet.node_groups]
    if not context.demand.several_units and any(node.sharing is Sharing.MPS for node in classes):
        not_mps = ({"key": SHARING, "operator": "NotIn", "values": ["mps"]},)
        expressions = {GFD: not_mps, OLD_GFD: not_mps}
    if any(node.refuses_several for node in classes):
        refused = {row.key: row.values_refused() for row in context.knowledge.clouds.sharing}
        for dialect in context.clouds:
            if values := refused.get(dialect.sharing_key or ""):
                expressions[dialect.name] = ({"key": dialect.sharing_key, "operator": "NotIn", "values": values},)
    return expressions


def _is_whole_gpu(resource: str, knowledge: Knowledge) -> bool:
    family = knowledge.families.of(resource)
    return family is not None and resource == family.whole


def _sharing_labels(dialect: Dialect, operator: str) -> tuple[MatchExpression, ...]:
    """Require the cloud's label of shared GPUs, or exclude it together with the cloud's label of MIG slices."""
    keys: Iterable[str | None] = (dialect.sharing_key,)
    if operator == "DoesNotExist":
        keys = (dialect.sharing_key, dialect.slice_key)
    return tuple({"key": key, "operator": operator} for key in keys if key)


NEED_EXPRESSIONS: tuple[Callable[[NeedContext], ExpressionsByDialect], ...] = (
    product_expressions,
    *(partial(fact_expressions, need, fact) for need, fact in WITH_FACT),
    driver_expressions,
    sharing_expressions,
)
"""The order in which a person reads the expressions of a term."""
INFERABLE_NEEDS: tuple[Callable[[NeedContext], ExpressionsByDialect], ...] = (
    *(partial(fact_expressions, need, fact) for need, fact in WITH_FACT if need.inferable),
    driver_expressions,
)
"""Needs that an image alone can imply; `product_expressions` excludes the products that an image refuses."""


def exclude_changing_nodes(fleet: FleetFacts) -> tuple[MatchExpression, ...]:
    """Exclude nodes whose MIG layout or driver is being changed, where an operator writes labels about that.

    The filters refuse such nodes too. But when the label changes, kube-scheduler certainly retries only those pods
    that node affinity kept off the node.
    """
    if not any(group.label(key) for group in fleet.node_groups for key in STATE_KEYS):
        return ()
    refused = {
        MIG_STATE: MIG_STATES_AT_CHANGE,
        UPGRADE_STATE: sorted(UPGRADE_STATES_REFUSED),
        PLUGIN: (PAUSED_FOR_DRIVER, PAUSED_FOR_MIG),
    }
    return tuple({"key": key, "operator": "NotIn", "values": list(values)} for key, values in refused.items())
