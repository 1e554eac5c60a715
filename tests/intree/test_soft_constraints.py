# SPDX-License-Identifier: Apache-2.0
"""What the soft constraints of a pod can tell apart."""

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.intree.soft_constraints import MOST_SOFT_CONSTRAINTS, SoftConstraints, read_soft_constraints
from app.kube.pod_limits import MOST_CONSTRAINTS
from app.kube.pod_object import pod_object
from app.nodes.model import FreeResources, Node, NodeClass

ZONE = "topology.kubernetes.io/zone"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SOFT = ("maintenance", "soon", "PreferNoSchedule")


def node(zone: str = "a", *taints: tuple[str, str, str], disk: str = "") -> Node:
    labels = {ZONE: zone, **({"disk": disk} if disk else {})}
    return Node("n", NodeClass(), FreeResources({}), labels, taints)


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


def preferring(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = [{"weight": 1, "preference": {"matchExpressions": [expression]}} for expression in expressions]
    return pod(affinity={"nodeAffinity": {PREFERRED: terms}})


def spread(when: str) -> dict[str, Any]:
    return {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": when, "labelSelector": {}}


def weighted(kind: str) -> dict[str, Any]:
    return pod(affinity={kind: {PREFERRED: [{"weight": 5, "podAffinityTerm": {"topologyKey": ZONE}}]}})


def traits(soft: SoftConstraints, nodes: list[Node]) -> list[tuple[Hashable, ...]]:
    """Tell what is told apart, node by node."""
    return list(zip(*soft.traits(nodes), strict=True))


@pytest.mark.parametrize(
    "document",
    [weighted("podAffinity"), weighted("podAntiAffinity"), pod(topologySpreadConstraints=[spread("ScheduleAnyway")])],
    ids=["pod affinity", "pod anti-affinity", "spread"],
)
def test_zones_are_told_apart_by_a_preference_among_pods(document: dict[str, Any]) -> None:
    soft = read_soft_constraints(pod_object(document))

    assert soft.wants_something
    one, same, other = traits(soft, [node("a"), node("a", disk="ssd"), node("b")])
    assert one == same != other


def test_preferred_node_affinity_tells_selected_nodes_apart() -> None:
    soft = read_soft_constraints(pod_object(preferring({"key": "disk", "operator": "In", "values": ["ssd"]})))

    ssd, hdd, none = traits(soft, [node(disk="ssd"), node(disk="hdd"), node()])
    assert ssd != hdd == none


LABELS = st.dictionaries(st.sampled_from(["disk", "size"]), st.sampled_from(["1", "2", "x"]))
EXPRESSIONS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["disk", "size", "other"]),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "near"]),
        "values": st.lists(st.sampled_from(["1", "2", "x"]), max_size=2),
    }
)
FIELDS = st.fixed_dictionaries(
    {"key": st.just("metadata.name"), "operator": st.sampled_from(["In", "NotIn"]), "values": st.just(["n1"])}
)
TERMS = st.fixed_dictionaries(
    {"matchExpressions": st.lists(EXPRESSIONS, max_size=3), "matchFields": st.lists(FIELDS, max_size=1)}
)


@given(TERMS, st.lists(LABELS, min_size=1, max_size=12))
def test_a_term_selects_the_nodes_that_it_selects_one_by_one(preference: dict[str, Any], own: list[Any]) -> None:
    """Nodes with equal labels are evaluated once, which must not show."""
    affinity = {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": preference}]}}
    soft = read_soft_constraints(pod_object(pod(affinity=affinity)))
    nodes = [Node(f"n{index}", NodeClass(), FreeResources({}), labels) for index, labels in enumerate(own)]

    *columns, _ = soft.traits(nodes)

    assert columns == [[term.selects(node) for node in nodes] for term in soft.terms]


def test_hard_constraints_are_no_wish() -> None:
    assert not read_soft_constraints(
        pod_object(pod(topologySpreadConstraints=[spread("DoNotSchedule")]))
    ).wants_something


def test_soft_taint_counts_unless_it_is_tolerated() -> None:
    tolerant = read_soft_constraints(pod_object(pod(tolerations=[{"key": "maintenance", "operator": "Exists"}])))

    assert SoftConstraints().soft_taints(node("a", SOFT)) == 1
    assert SoftConstraints().soft_taints(node("a", ("maintenance", "soon", "NoSchedule"))) == 0
    assert tolerant.soft_taints(node("a", SOFT)) == 0


@pytest.mark.parametrize(
    "document",
    [
        {},
        pod(affinity=None, topologySpreadConstraints=None, tolerations=None),
        pod(affinity={"nodeAffinity": {PREFERRED: [{"preference": None}]}, "podAffinity": {PREFERRED: [{}]}}),
        preferring({"key": None, "operator": None, "values": None}),
    ],
)
def test_strange_shapes_prefer_nothing(document: dict[str, Any]) -> None:
    soft = read_soft_constraints(pod_object(document))

    assert len(set(traits(soft, [node("a"), node("b")]))) == 1


def test_no_pod_makes_us_evaluate_more_than_a_few_preferences_on_each_node() -> None:
    """Each is evaluated on every node that fits, and tenants write them."""
    wide = {"matchExpressions": [{"key": "disk", "operator": "Exists"}] * 100}
    many = preferring(*[{"key": "disk", "operator": "Exists"}] * 1000)
    zones = [{**spread("ScheduleAnyway"), "topologyKey": f"zone-{index}"} for index in range(1000)]
    many["spec"] |= {"topologySpreadConstraints": zones, "tolerations": [{"key": "a"}] * 10_000}
    one_wide = pod(affinity={"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": wide}]}})

    soft = read_soft_constraints(pod_object(many))

    assert len(soft.terms) == len(soft.topology_keys) == MOST_SOFT_CONSTRAINTS
    assert len(soft.tolerations) == MOST_CONSTRAINTS
    assert read_soft_constraints(pod_object(one_wide)).terms == ()
