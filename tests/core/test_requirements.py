# SPDX-License-Identifier: Apache-2.0
"""Label requirements: each operator as Kubernetes means it, and the laws of their algebra."""

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import BadInput
from app.requirements import OPERATORS, Requirement, all_allow, disjoint, from_selector, requirement

VALUES = ["a", "b", "1", "5", "9", ""]
REQUIREMENTS = st.one_of(
    st.builds(
        requirement, st.just("k"), st.sampled_from(["In", "NotIn"]), st.lists(st.sampled_from(VALUES), min_size=1)
    ),
    st.builds(requirement, st.just("k"), st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(requirement, st.just("k"), st.sampled_from(["Gt", "Lt"]), st.sampled_from([["1"], ["5"], ["-3"], ["8"]])),
)
LABELS = st.sampled_from([None, *VALUES, "6", "-4", "x"])


@pytest.mark.parametrize(
    ("operator", "values", "allowed", "refused"),
    [
        ("In", ["a", "b"], ["a", "b"], [None, "c", ""]),
        ("NotIn", ["a"], [None, "b", ""], ["a"]),
        ("Exists", [], ["a", ""], [None]),
        ("DoesNotExist", [], [None], ["a", ""]),
        ("Gt", ["5"], ["6", "10"], [None, "5", "4", "x"]),
        ("Lt", ["5"], ["4", "-1"], [None, "5", "6", "x"]),
    ],
)
def test_operator_means_what_kubernetes_means(
    operator: str, values: list[str], allowed: list[str | None], refused: list[str | None]
) -> None:
    """core/v1 NodeSelectorOperator."""
    asked = requirement("k", operator, values)

    assert [each for each in allowed if not asked.allows(each)] == []
    assert [each for each in refused if asked.allows(each)] == []


@given(REQUIREMENTS, REQUIREMENTS, LABELS)
def test_intersection_allows_what_both_allow(one: Requirement, other: Requirement, value: str | None) -> None:
    assert one.intersection(other).allows(value) is (one.allows(value) and other.allows(value))


@given(REQUIREMENTS, REQUIREMENTS, REQUIREMENTS)
def test_intersection_is_commutative_associative_and_idempotent(
    one: Requirement, two: Requirement, three: Requirement
) -> None:
    assert one.intersection(two) == two.intersection(one)
    assert one.intersection(two).intersection(three) == one.intersection(two.intersection(three))
    assert one == one.intersection(one)


@given(st.lists(REQUIREMENTS, min_size=1, max_size=4), LABELS)
def test_what_is_empty_allows_nothing(several: list[Requirement], value: str | None) -> None:
    both = reduce(Requirement.intersection, several)

    assert not (both.empty() and both.allows(value))
    assert both.empty() is disjoint(several[:1], several[1:])


@pytest.mark.parametrize(
    ("operator", "values"),
    [("In", []), ("NotIn", []), ("Exists", ["a"]), ("Gt", ["a"]), ("Gt", ["1", "2"]), ("Near", ["a"])],
)
def test_operator_with_values_that_do_not_suit_it_is_bad_input(operator: str, values: list[str]) -> None:
    with pytest.raises(BadInput, match=OPERATORS[0]):
        requirement("k", operator, values)


def test_selector_asks_for_all_its_parts() -> None:
    asked = from_selector({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]})

    assert all_allow(asked, {"a": "1", "b": "x"})
    assert not all_allow(asked, {"a": "1"})
    assert all_allow(from_selector({}), {})
