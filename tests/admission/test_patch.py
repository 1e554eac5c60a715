# SPDX-License-Identifier: Apache-2.0
"""JSON Patch: our implementation against the library jsonpatch, on documents and operations like those we build
(F24)."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.json_patch import Operation, PatchError, append, apply, escape, put

KEYS = st.sampled_from(["a", "b", "spec", "~", "/", "~1", "a/b~c", "", "ü", "gpu-usher.io/decision", "0", "-"])
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
TREES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(KEYS, st.none(), max_size=2),
    lambda inner: st.dictionaries(KEYS, inner | st.none(), max_size=3),
    max_leaves=10,
)
"""Objects of objects or null, which counts as absent: all that can be above a member that we set."""
PATHS = st.lists(KEYS, min_size=1, max_size=4).map(tuple)


def by_library(document: Any, operations: list[Operation]) -> Any:
    """Apply the JSON that we send with the library."""
    return jsonpatch.apply_patch(document, [operation.as_json() for operation in operations])


def value_at(document: Any, path: tuple[str, ...]) -> Any:
    """Follow a path of member names."""
    for key in path:
        document = document[key]
    return document


@given(TREES, st.lists(st.tuples(PATHS, VALUES), max_size=5))
@settings(deadline=None)
def test_put_sets_the_member_as_the_library_does(tree: dict[str, Any], members: list[tuple[Any, Any]]) -> None:
    document: Any = tree
    for path, value in members:
        if not reachable(document, path):
            continue

        operation = put(document, path, value)
        changed = apply(document, [operation])

        assert by_library(document, [operation]) == changed
        assert value == value_at(changed, path)
        document = changed


def reachable(document: Any, path: tuple[str, ...]) -> bool:
    """Tell whether only objects, null or nothing are on the way; read_pod accepts nothing else."""
    for key in path[:-1]:
        if not isinstance(document, dict):
            return False
        document = document.get(key)
        if document is None:
            return True
    return isinstance(document, dict)


@given(TREES, PATHS, st.lists(VALUES, min_size=1, max_size=4))
@settings(deadline=None)
def test_append_makes_the_list_and_adds_to_its_end_as_the_library_does(
    tree: dict[str, Any], path: tuple[str, ...], values: list[Any]
) -> None:
    if reachable(tree, path) and not isinstance(tree, list):
        document: Any = apply(tree, [put(tree, path, None)])
        operations: list[Operation] = []

        for value in values:
            operations.append(append(apply(document, operations), path, value))
        changed = apply(document, operations)

        assert by_library(document, operations) == changed
        assert values == value_at(changed, path)


@given(TREES, PATHS, VALUES)
@settings(deadline=None)
def test_nothing_is_changed_in_place(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    before = copy.deepcopy(tree)
    if reachable(tree, path):
        apply(tree, [put(tree, path, value), Operation("remove", path)])

    assert before == tree


@given(KEYS | st.text(max_size=6))
@settings(deadline=None)
def test_any_member_name_survives_escaping(key: str) -> None:
    assert {key: 1} == by_library({}, [Operation("add", (key,), 1)])


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("plain", "plain"),
        ("gpu-usher.io/decision", "gpu-usher.io~1decision"),
        ("~", "~0"),
        ("~1", "~01"),
        ("/~", "~1~0"),
        ("", ""),
    ],
)
def test_tilde_and_slash_are_escaped(token: str, expected: str) -> None:
    assert expected == escape(token)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            {}, {"op": "add", "path": "/metadata", "value": {"annotations": {"a/b": 1}}}, id="highest missing parent"
        ),
        pytest.param(
            {"metadata": {}},
            {"op": "add", "path": "/metadata/annotations", "value": {"a/b": 1}},
            id="one parent missing",
        ),
        pytest.param(
            {"metadata": {"annotations": None}},
            {"op": "add", "path": "/metadata/annotations", "value": {"a/b": 1}},
            id="parent is null",
        ),
        pytest.param(
            {"metadata": {"annotations": {"c": 2}}},
            {"op": "add", "path": "/metadata/annotations/a~1b", "value": 1},
            id="parents there",
        ),
        pytest.param(
            {"metadata": {"annotations": {"a/b": 2}}},
            {"op": "replace", "path": "/metadata/annotations/a~1b", "value": 1},
            id="member there",
        ),
    ],
)
def test_put_adds_missing_parents_as_one_value(document: dict[str, Any], expected: dict[str, Any]) -> None:
    assert expected == put(document, ("metadata", "annotations", "a/b"), 1).as_json()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param({"spec": {}}, {"op": "add", "path": "/spec/list", "value": [1]}, id="no list"),
        pytest.param({"spec": {"list": None}}, {"op": "replace", "path": "/spec/list", "value": [1]}, id="null"),
        pytest.param({"spec": {"list": []}}, {"op": "add", "path": "/spec/list/-", "value": 1}, id="empty list"),
        pytest.param({"spec": {"list": [0]}}, {"op": "add", "path": "/spec/list/-", "value": 1}, id="list"),
    ],
)
def test_append_makes_the_list_where_there_is_none(document: dict[str, Any], expected: dict[str, Any]) -> None:
    """Fault 18."""
    assert expected == append(document, ("spec", "list"), 1).as_json()


def test_put_and_append_reach_into_lists() -> None:
    document = {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    expected = {"spec": {"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": 1}, "env": [2]}]}}
    into = ("spec", "containers", "1")

    one = put(document, (*into, "resources", "limits"), 1)
    other = append(document, (*into, "env"), 2)

    assert expected == apply(document, [one, other])
    assert expected == by_library(document, [one, other])


def test_removal_is_written_without_a_value() -> None:
    expected = {"op": "remove", "path": "/spec/priority"}

    assert expected == Operation("remove", ("spec", "priority")).as_json()


DOCUMENT = {"a": {"b": 1}, "list": [{"c": 2}], "null": None}


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(Operation("add", ("x", "y"), 1), id="parent is missing"),
        pytest.param(Operation("add", ("null", "y"), 1), id="parent is null"),
        pytest.param(Operation("add", ("a", "b", "c"), 1), id="parent is a number"),
        pytest.param(Operation("replace", ("x",), 1), id="replaced member is missing"),
        pytest.param(Operation("remove", ("x",)), id="removed member is missing"),
        pytest.param(Operation("remove", ("a", "x")), id="removed inner member is missing"),
        pytest.param(Operation("replace", ("list", "1"), 1), id="index past the end"),
        pytest.param(Operation("replace", ("list", "x"), 1), id="index is a word"),
        pytest.param(Operation("replace", ("list", "-1"), 1), id="index is negative"),
        pytest.param(Operation("replace", ("list", "00"), 1), id="index with a leading zero (RFC 6901 §4)"),
        pytest.param(Operation("replace", ("list", "-"), 1), id="replacing past the end"),
        pytest.param(Operation("add", ("list", "-", "c"), 1), id="below an item past the end"),
    ],
)
def test_operation_that_does_not_apply_raises_as_in_the_library(operation: Operation) -> None:
    """Fault 18."""
    with pytest.raises((jsonpatch.JsonPatchException, jsonpatch.JsonPointerException)):
        by_library(DOCUMENT, [operation])

    with pytest.raises(PatchError):
        apply(DOCUMENT, [operation])
