# SPDX-License-Identifier: Apache-2.0
"""The oracle of node affinity against the documented examples."""

from typing import Any

import pytest

from tests.oracles.node_affinity import REQUIRED, eligible

LABELS = {"gpu": "H100", "memory": "81559", "zone": "a", "odd": "12 GiB"}


def required(*terms: Any) -> dict[str, Any]:
    return {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}}


def wants(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def term(*expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"matchExpressions": list(expressions), "matchFields": list(fields)}


@pytest.mark.parametrize(
    ("expected", "expression"),
    [
        (True, wants("gpu", "In", "A100", "H100")),
        (False, wants("gpu", "In", "A100")),
        (False, wants("absent", "In", "H100")),
        (False, wants("gpu", "In")),
        (False, wants("gpu", "NotIn", "H100")),
        (True, wants("gpu", "NotIn", "A100")),
        (True, wants("absent", "NotIn", "H100")),
        (True, wants("gpu", "Exists")),
        (False, wants("absent", "Exists")),
        (False, wants("gpu", "Exists", "H100")),
        (True, wants("absent", "DoesNotExist")),
        (False, wants("gpu", "DoesNotExist")),
        (True, wants("memory", "Gt", "81558")),
        (False, wants("memory", "Gt", "81559")),
        (False, wants("absent", "Gt", "1")),
        (False, wants("odd", "Gt", "1")),
        (False, wants("memory", "Gt", "1", "2")),
        (False, wants("memory", "Gt", "80Gi")),
        (True, wants("memory", "Lt", "81560")),
        (False, wants("memory", "Lt", "81559")),
        (False, wants("absent", "Lt", "1")),
        (False, wants("gpu", "Equals", "H100")),
        (False, wants("absent", "NotIn", "no label value")),
        (False, wants("absent", "NotIn", "x" * 64)),
    ],
    ids=str,
)
def test_operators_are_those_of_the_documentation(expected: bool, expression: dict[str, Any]) -> None:
    assert expected == eligible(required(term(expression)), LABELS, "n1")


def test_terms_are_alternatives() -> None:
    assert eligible(required(term(wants("gpu", "In", "A100")), term(wants("zone", "In", "a"))), LABELS, "n1")


def test_requirements_of_a_term_must_all_hold() -> None:
    assert not eligible(required(term(wants("gpu", "In", "H100"), wants("zone", "In", "b"))), LABELS, "n1")


@pytest.mark.parametrize("empty", [{}, None, {"matchExpressions": []}, {"matchExpressions": None, "matchFields": []}])
def test_an_empty_term_selects_no_node(empty: Any) -> None:
    assert not eligible(required(empty), LABELS, "n1")
    assert eligible(required(empty, term(wants("gpu", "Exists"))), LABELS, "n1")


def test_a_selector_without_terms_selects_no_node() -> None:
    assert not eligible(required(), LABELS, "n1")


@pytest.mark.parametrize("spec", [{}, {"affinity": None}, {"affinity": {}}, {"affinity": {"nodeAffinity": {}}}, None])
def test_a_pod_that_requires_nothing_may_run_anywhere(spec: Any) -> None:
    assert eligible({"spec": spec}, {}, "n1")


@pytest.mark.parametrize(
    ("expected", "field"),
    [
        (True, wants("metadata.name", "In", "n1")),
        (False, wants("metadata.name", "In", "n2")),
        (True, wants("metadata.name", "NotIn", "n2")),
        (False, wants("metadata.name", "NotIn", "n1")),
        (False, wants("metadata.name", "Exists")),
        (False, wants("metadata.name", "In", "n1", "n2")),
        (False, wants("metadata.labels", "In", "n1")),
    ],
    ids=str,
)
def test_fields_know_only_the_name(expected: bool, field: dict[str, Any]) -> None:
    assert expected == eligible(required(term(fields=(field,))), LABELS, "n1")


def test_fields_and_expressions_must_both_hold() -> None:
    pod = required(term(wants("gpu", "In", "A100"), fields=(wants("metadata.name", "In", "n1"),)))

    assert not eligible(pod, LABELS, "n1")


def test_the_node_selector_must_hold_as_well() -> None:
    pod = required(term(wants("gpu", "Exists")))
    pod["spec"]["nodeSelector"] = {"zone": "b"}

    assert not eligible(pod, LABELS, "n1")
    assert eligible(pod, {**LABELS, "zone": "b"}, "n1")


def test_preferences_exclude_nothing() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term()}]}

    assert eligible({"spec": {"affinity": {"nodeAffinity": preferred}}}, {}, "n1")
