# SPDX-License-Identifier: Apache-2.0
"""The product labels of nodes that a demand may run on, judged by the product table and the label's suffixes."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from app.admission.fleet_facts import FleetFacts, NodeGroup, fitting_groups
from app.knowledge.clouds import Dialect
from app.knowledge.families import Family
from app.knowledge.mig_profiles import profile_of
from app.knowledge.tables import Knowledge
from app.nodes.label_keys import PRODUCT
from app.nodes.labels import read_class
from app.nodes.model import NodeClass
from app.placement.filters import PRODUCT_FILTERS
from app.placement.unit_filters import mig_profile_offered, sharing_allowed
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish

LONGEST_VALUE = 63
"""Characters of a label's value (Kubernetes label syntax); no node can have a longer one, and no pod select it."""


def names_only_known_products(demand: Demand) -> bool:
    """Tell whether the demand names only products and families of the table, so that a cloud's values can be listed."""
    return bool(demand.products) and all(pattern.labels is not None for any_of in demand.products for pattern in any_of)


def names_only_listed_products(demand: Demand) -> bool:
    """Tell whether the demand names only single products, so that their labels can be listed.

    The labels of a family cannot: a node to come may have a variant that no table has.
    """
    return bool(demand.products) and all(pattern.listed for any_of in demand.products for pattern in any_of)


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
    return read_class({PRODUCT: label}, (), knowledge)


def labels_accepted(demand: Demand, fitting: Iterable[NodeGroup], knowledge: Knowledge) -> list[str]:
    """List the product labels that a demand for known products may run on.

    They are the table's, in every form that GFD writes, and those that fitting nodes carry now.
    """
    known = {label for label in _known_labels(demand, knowledge) if not refused_by_label(demand, label, knowledge)}
    return sorted(known | label_values(fitting, PRODUCT))


def labels_refused(
    demand: Demand, node_groups: Iterable[NodeGroup], fitting: Iterable[NodeGroup], knowledge: Knowledge
) -> list[str]:
    """List the product labels that the demand can never run on, of the fleet and, where it names families, of clouds.

    Without those of clouds an autoscaler could add a machine of another product, which the fleet does not have yet.
    """
    others = _products_of_clouds(knowledge) if names_only_known_products(demand) else frozenset[str]()
    other_labels = (label_values(node_groups, PRODUCT) | others) - label_values(fitting, PRODUCT)
    return sorted(label for label in other_labels if refused_by_label(demand, label, knowledge))


@lru_cache(maxsize=4)
def _products_of_clouds(knowledge: Knowledge) -> frozenset[str]:
    """List the products of CUDA that clouds offer, as GFD labels them."""
    clouds = knowledge.clouds
    named = {label for dialect in clouds.dialects for labels in dialect.values.values() for label in labels}
    named |= {label for row in clouds.instances.rows for label in row.products}
    return frozenset(label for label in named if knowledge.products.find(label))


def values_accepted(demand: Demand, dialect: Dialect, fitting: Iterable[NodeGroup], knowledge: Knowledge) -> list[str]:
    """List a cloud's label values of the products that a demand for known products may run on."""
    known = {value for value in dialect.values if not refused_by_value(demand, dialect, value, knowledge)}
    return sorted(known | label_values(fitting, dialect.key))


def values_refused(demand: Demand, dialect: Dialect, fitting: Iterable[NodeGroup], knowledge: Knowledge) -> list[str]:
    """List a cloud's label values of the products that the demand can never run on, in the fleet or not."""
    other_values = set(dialect.values) - label_values(fitting, dialect.key)
    return sorted(value for value in other_values if refused_by_value(demand, dialect, value, knowledge))


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
            if any(refuses(demand, read_class({key: value}, (), knowledge)) for refuses in PRODUCT_FILTERS)
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
                yield from (value for value in (unit, f"{unit}-SHARED") if len(value) <= LONGEST_VALUE)
