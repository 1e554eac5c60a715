# SPDX-License-Identifier: Apache-2.0
"""Which product labels mean nodes that a demand may run on: what a product's name tells, by table and by suffix."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from app.admission.fleet_facts import NodeGroup
from app.knowledge.clouds import Dialect
from app.knowledge.mig_profiles import profile_of
from app.knowledge.tables import Knowledge
from app.nodes.labels import PRODUCT, read_class
from app.nodes.model import NodeClass
from app.placement.cuda_filters import compute_capability_served, toolkit_targets_gpu
from app.placement.filters import ClassFilter, product_allowed
from app.placement.unit_filters import (
    form_factor_allowed,
    interconnect_present,
    memory_large_enough,
    mig_profile_offered,
    sharing_allowed,
)
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish

BY_PRODUCT: tuple[ClassFilter, ...] = (
    product_allowed,
    compute_capability_served,
    toolkit_targets_gpu,
    memory_large_enough,
    interconnect_present,
    form_factor_allowed,
)
"""Filters that a product decides, whatever else a node of it is."""

LONGEST_VALUE = 63
"""Characters of a label's value (Kubernetes labels syntax); no node can carry a longer one, no pod ask for it."""


def closed(demand: Demand) -> bool:
    """Tell whether only products known today can be meant, so that they can be listed."""
    return bool(demand.products) and all(pattern.labels is not None for each in demand.products for pattern in each)


def refused_by_label(demand: Demand, label: str, knowledge: Knowledge) -> bool:
    """Tell whether a GFD product label alone, with its suffixes, says that no node with it will ever do."""
    node_class = _class_of(label, knowledge)
    if any(refuses(demand, node_class) for refuses in (*BY_PRODUCT, mig_profile_offered)):
        return True
    return demand.sharing is SharingWish.Exclusive and sharing_allowed(demand, node_class) is not None


def refused_by_value(demand: Demand, dialect: Dialect, value: str, knowledge: Knowledge) -> bool:
    """Tell whether a cloud's word for a product means only products that no need lets through."""
    classes = [_class_of(label, knowledge) for label in dialect.values.get(value, ())]
    return bool(classes) and all(any(refuses(demand, each) for refuses in BY_PRODUCT) for each in classes)


@lru_cache(maxsize=1024)
def _class_of(label: str, knowledge: Knowledge) -> NodeClass:
    """Make the class of a node of which only the product label is known."""
    return read_class({PRODUCT: label}, (), knowledge)


def labels_accepted(demand: Demand, serving: Iterable[NodeGroup], knowledge: Knowledge) -> list[str]:
    """List the product labels that a closed demand may run on.

    The table's, in every form that GFD writes, and those that nodes which fit carry now.
    """
    known = {label for label in _known_labels(demand, knowledge) if not refused_by_label(demand, label, knowledge)}
    return sorted(known | carried(serving, PRODUCT))


def labels_refused(
    demand: Demand, group: Iterable[NodeGroup], serving: Iterable[NodeGroup], knowledge: Knowledge
) -> list[str]:
    """List the product labels of the fleet that a demand can never run on."""
    doubtful = carried(group, PRODUCT) - carried(serving, PRODUCT)
    return sorted(label for label in doubtful if refused_by_label(demand, label, knowledge))


def values_accepted(demand: Demand, dialect: Dialect, serving: Iterable[NodeGroup], knowledge: Knowledge) -> list[str]:
    """List a cloud's words for the products that a closed demand may run on."""
    known = {value for value in dialect.values if not refused_by_value(demand, dialect, value, knowledge)}
    return sorted(known | carried(serving, dialect.key))


def values_refused(demand: Demand, dialect: Dialect, serving: Iterable[NodeGroup], knowledge: Knowledge) -> list[str]:
    """List a cloud's words for the products that a demand can never run on, whether the fleet has them or not."""
    doubtful = set(dialect.values) - carried(serving, dialect.key)
    return sorted(value for value in doubtful if refused_by_value(demand, dialect, value, knowledge))


def carried(group: Iterable[NodeGroup], key: str) -> set[str]:
    """Collect the values of a label."""
    return {value for each in group if (value := each.label(key)) is not None}


def _known_labels(demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    """List the labels of the products that are asked for, also as old drivers wrote them.

    With -SHARED, and where a slice counts as a GPU (MIG strategy single) with -MIG-<profile>.
    """
    sliced = not any(profile_of(resource) for resource, _ in demand.resources)
    for form, product in knowledge.products.by_form.items():
        if not all(any(pattern.matches(form) for pattern in any_of) for any_of in demand.products):
            continue
        for label in (product.label, *product.aliases):
            slices = knowledge.mig.profiles(form) if sliced else ()
            for unit in (label, *(f"{label}-MIG-{profile}" for profile in slices)):
                yield from (each for each in (unit, f"{unit}-SHARED") if len(each) <= LONGEST_VALUE)
