# SPDX-License-Identifier: Apache-2.0
"""Every documented shape gets its expected result, and keeps all that its author wrote."""

from copy import deepcopy
from typing import Any

import pytest

from app.explain.policy_cases import admission_differences, patch_differences
from app.policy.case_document import Case
from tests.corpus.shapes import SHAPES, Object, ask, containers, defaulted, pod_spec

FEWEST = 45
AREAS = {
    "amd",
    "amounts",
    "argo",
    "cloud",
    "deviceplugin",
    "dra",
    "environment",
    "gpuoperator",
    "hami",
    "intel",
    "jupyterhub",
    "kai",
    "kserve",
    "kubeflow",
    "kueue",
    "lws",
    "needs",
    "nim",
    "ray",
    "slinky",
    "tgi",
    "triton",
    "vllm",
    "volcano",
    "workload",
}
ALLOWED = [name for name, shape in SHAPES.items() if shape.expect.allowed]


def without_amounts(document: Object) -> Object:
    """Return the object without the resources of its containers."""
    document = deepcopy(document)
    for container in containers(document):
        container.pop("resources", None)
    return document


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """List the paths of values that were there before and are no longer in the same place."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            lost_path for key, value in before.items() for lost_path in lost(value, after.get(key), f"{path}.{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        pairs = zip(before, after, strict=False)
        return [lost_path for index, (old, new) in enumerate(pairs) for lost_path in lost(old, new, f"{path}[{index}]")]
    return [] if before == after else [path]


@pytest.mark.parametrize("name", SHAPES)
def test_shape_gets_what_is_right_for_it(name: str) -> None:
    """S1, S2, S10, S13, S14, F16, F17, F18."""
    shape = SHAPES[name]

    answered = ask(shape, defaulted(shape.object))

    case = Case(pod=shape.object, expect=shape.expect)
    warnings = answered.response.get("warnings", [])
    differences = list(admission_differences(case, answered.response["allowed"], answered.codes, warnings))
    unexpected = [warning for warning in warnings if not any(words in warning for words in shape.expect.warnings)]
    if not shape.expect.other_warnings:
        differences += [f"warnings: got {warning!r}, wants nothing of the kind" for warning in unexpected]
    if answered.response["allowed"]:
        differences += patch_differences(case, answered.admitted, answered.changed)
    assert differences == []


@pytest.mark.parametrize("name", SHAPES)
def test_answer_bears_the_uid_of_its_request(name: str) -> None:
    shape = SHAPES[name]

    response = ask(shape, defaulted(shape.object)).response

    assert response["uid"] == "r-1"
    assert ("patch" in response) is (response.get("patchType") == "JSONPatch")
    assert response["allowed"] or "patch" not in response


@pytest.mark.parametrize("name", ALLOWED)
def test_shape_sent_again_is_left_alone(name: str) -> None:
    """S10: the API server calls again when another webhook has changed the object."""
    shape = SHAPES[name]
    first = ask(shape, defaulted(shape.object))

    again = ask(shape, first.admitted)

    assert again.response["allowed"]
    assert not again.changed


@pytest.mark.parametrize("name", ALLOWED)
def test_shape_as_we_leave_it_passes_validation(name: str) -> None:
    shape = SHAPES[name]
    admitted = ask(shape, defaulted(shape.object)).admitted

    judged = ask(shape, admitted, "validate")

    assert judged.response["allowed"]
    assert not judged.changed


@pytest.mark.parametrize("name", ALLOWED)
def test_shape_keeps_what_its_author_wrote(name: str) -> None:
    """S1: patches only add, except for amounts, which the shape's own expectation covers."""
    shape = SHAPES[name]

    admitted = ask(shape, defaulted(shape.object)).admitted

    assert lost(without_amounts(shape.object), without_amounts(admitted)) == []


@pytest.mark.parametrize("name", ALLOWED)
def test_no_toleration_is_added_for_what_belongs_to_a_team(name: str) -> None:
    """S2."""
    shape = SHAPES[name]

    admitted = ask(shape, defaulted(shape.object)).admitted

    given = pod_spec(shape.object).get("tolerations") or []
    added = (pod_spec(admitted).get("tolerations") or [])[len(given) :]
    assert [toleration for toleration in added if toleration.get("key") in (None, "", "dedicated")] == []


@pytest.mark.parametrize("name", [name for name in ALLOWED if SHAPES[name].kind != "Pod"])
def test_workload_is_changed_in_its_amounts_alone(name: str) -> None:
    """S13: the pods of a workload are reviewed when they are created."""
    shape = SHAPES[name]

    admitted = ask(shape, defaulted(shape.object)).admitted

    assert without_amounts(shape.object) == without_amounts(admitted)


def test_corpus_has_shapes_of_every_area() -> None:
    assert len(SHAPES) >= FEWEST
    assert {name.partition("-")[0] for name in SHAPES} == AREAS


@pytest.mark.parametrize("name", SHAPES)
def test_shape_says_where_it_is_documented(name: str) -> None:
    shape = SHAPES[name]

    assert len(shape.source) > 10
    assert len(shape.says) > 20
    assert shape.object["metadata"].get("name") or shape.object["metadata"].get("generateName")
