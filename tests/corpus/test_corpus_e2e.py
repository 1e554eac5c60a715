# SPDX-License-Identifier: Apache-2.0
"""A real API server accepts the shapes that are valid, and refuses those that gpu-usher repairs or denies."""

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.module_files import checks_stateful_sets
from tests.corpus.shapes import PLURALS, SHAPES, Object, Shape, amounts, ask, defaulted, refused_by_kubernetes

REFUSED = [name for name, shape in SHAPES.items() if refused_by_kubernetes(shape.object)]
TAKEN = [name for name in SHAPES if name not in REFUSED]
ALLOWED = [name for name, shape in SHAPES.items() if shape.expect.allowed]


def create_dry_run(plane: ControlPlane, shape: Shape, document: Object) -> tuple[int, Object]:
    """Create an object as a dry run, and return the status code and the body.

    Fields that Kubernetes does not know are refused, so that no shape has a misspelt field.
    """
    api_version, plural = PLURALS[shape.kind]
    root = "/apis/" if "/" in api_version else "/api/"
    path = f"{root}{api_version}/namespaces/{shape.namespace}/{plural}?dryRun=All&fieldValidation=Strict"
    answer = plane.api.try_create(path, document)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("name", TAKEN)
def test_api_server_takes_the_shape_as_it_is(plane: ControlPlane, name: str) -> None:
    code, answer = create_dry_run(plane, SHAPES[name], SHAPES[name].object)

    assert code == 201, answer.get("message")


@pytest.mark.parametrize("name", REFUSED)
def test_api_server_refuses_what_we_repair_or_deny(plane: ControlPlane, name: str) -> None:
    code, answer = create_dry_run(plane, SHAPES[name], SHAPES[name].object)

    if SHAPES[name].kind == "StatefulSet" and not checks_stateful_sets():
        assert code == 201, answer
        return
    assert code == 422, answer
    assert "resources" in answer["message"]


@pytest.mark.parametrize("name", ALLOWED)
def test_api_server_takes_the_shape_as_we_leave_it(plane: ControlPlane, name: str) -> None:
    """S1: the patch has repaired whatever the API server would refuse."""
    admitted = ask(SHAPES[name], defaulted(SHAPES[name].object)).admitted

    code, answer = create_dry_run(plane, SHAPES[name], admitted)

    assert code == 201, answer.get("message")


@pytest.mark.parametrize("name", TAKEN)
def test_api_server_sends_us_the_amounts_that_the_corpus_sends(plane: ControlPlane, name: str) -> None:
    """The corpus applies the same defaults as the API server."""
    _, stored = create_dry_run(plane, SHAPES[name], SHAPES[name].object)

    assert amounts(stored) == amounts(defaulted(SHAPES[name].object))
