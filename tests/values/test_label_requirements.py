# SPDX-License-Identifier: Apache-2.0
"""Label requirements: each operator means what Kubernetes means by it, and combining them obeys the laws of sets."""

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.values.errors import BadInput
from app.values.label_requirements import (
    OPERATORS,
    Requirement,
    all_allow,
    disjoint,
    label_requirement,
    selector_requirements,
)

VALUES = ["a", "b", "1", "5", "9", ""]
REQUIREMENTS = st.one_of(
    st.builds(
        label_requirement, st.just("k"), st.sampled_from(["In", "NotIn"]), st.lists(st.sampled_from(VALUES), min_size=1)
    ),
    st.builds(label_requirement, st.just("k"), st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(
        label_requirement, st.just("k"), st.sampled_from(["Gt", "Lt"]), st.sampled_from([["1"], ["5"], ["-3"], ["8"]])
    ),
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
    """The operators are those of core/v1 NodeSelectorOperator."""
    requirement = label_requirement("k", operator, values)

    assert [value for value in allowed if not requirement.allows(value)] == []
    assert [value for value in refused if requirement.allows(value)] == []


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
        label_requirement("k", operator, values)


def test_selector_asks_for_all_its_parts() -> None:
    requirements = selector_requirements(
        {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}
    )

    assert all_allow(requirements, {"a": "1", "b": "x"})
    assert not all_allow(requirements, {"a": "1"})
    assert all_allow(selector_requirements({}), {})


@pytest.mark.parametrize("value", ["1_000", "٩", "9.5", "0x9", ""])
def test_label_that_go_reads_as_no_integer_is_within_no_bound(value: str) -> None:
    """apimachinery pkg/labels/selector.go: Gt and Lt read the label by strconv.ParseInt, base 10."""
    above, below = label_requirement("k", "Gt", ["1"]), label_requirement("k", "Lt", ["100000"])

    assert not above.allows(value)
    assert not below.allows(value)


@pytest.mark.parametrize("bound", ["--5", "-", "5-", "1_0", "5.0", "٥"])
def test_bound_that_is_no_integer_is_bad_input(bound: str) -> None:
    """Bad input never becomes a crash (CONTRIBUTING.md#style)."""
    with pytest.raises(BadInput):
        label_requirement("k", "Gt", [bound])


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param(("Gt", ["4"]), ("Lt", ["5"]), True, id="no integer between 4 and 5"),
        pytest.param(("Gt", ["4"]), ("Lt", ["6"]), False, id="5 is between 4 and 6"),
        pytest.param(("In", ["3", "9"]), ("Gt", ["8"]), False, id="9 is left"),
        pytest.param(("In", ["3", "x"]), ("Gt", ["8"]), True, id="none is left"),
        pytest.param(("Exists", []), ("DoesNotExist", []), True, id="there and not there"),
        pytest.param(("NotIn", ["a"]), ("DoesNotExist", []), False, id="a missing label does for both"),
        pytest.param(("NotIn", ["a"]), ("In", ["a"]), True, id="a and not a"),
        pytest.param(("NotIn", ["a"]), ("Exists", []), False, id="any other value"),
    ],
)
def test_selectors_that_no_labels_fulfil_are_disjoint(
    one: tuple[str, list[str]], other: tuple[str, list[str]], expected: bool
) -> None:
    assert expected is disjoint([label_requirement("k", *one)], [label_requirement("k", *other)])


def test_selectors_on_different_keys_are_never_disjoint() -> None:
    assert disjoint([label_requirement("a", "In", ["1"])], [label_requirement("b", "In", ["2"])]) is False
