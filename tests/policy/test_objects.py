# SPDX-License-Identifier: Apache-2.0
"""Policies as GPUPolicy objects: they mean what a file means, and mistakes have a path but no line (F75, F131)."""

from typing import Any

import pytest
import yaml

from app.cluster.files import policy_texts, shipped_policies
from app.policy.schema import STORAGE_VERSION, VERSIONS
from app.values.errors import PolicyError
from tests.builders import knowledge, policies, policy, shipped
from tests.finished import load_policies


def parsed(name: str, **spec: Any) -> dict[str, Any]:
    """Make a GPUPolicy as the API server returns it, parsed, with metadata that the server adds."""
    metadata = {"name": name, "uid": "u", "resourceVersion": "7", "generation": 1, "managedFields": [{}]}
    return {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy", "metadata": metadata, "spec": spec}


def object_problems(*objects: dict[str, Any], texts: dict[str, str] | None = None) -> tuple[str, ...]:
    """Return the messages of objects, by their names, that must be refused."""
    with pytest.raises(PolicyError) as caught:
        load_policies(
            texts or {},
            knowledge(),
            None,
            {f"gpupolicy {document['metadata']['name']}": document for document in objects},
        )
    return caught.value.problems


def test_object_says_what_its_text_says() -> None:
    """F131."""
    text = policy("a", "priority: 3, actions: {products: Warn}, placement: {gpuMemory: 40Gi}")
    expected = policies(text)

    made = parsed("a", priority=3, actions={"products": "Warn"}, placement={"gpuMemory": "40Gi"})
    loaded = load_policies({}, knowledge(), None, {"gpupolicy a": made})

    assert expected.hash == loaded.hash
    assert loaded.policies[0].origin == "gpupolicy a"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"placement": {"product": {}}}, "spec.placement.product: unknown field, did you mean products?",
                     id="unknown field"),
        pytest.param({"placement": {"products": {"allow": ["H10O"]}}},
                     "spec.placement.products.allow[0]: unknown product 'H10O', did you mean H100?", id="product"),
        pytest.param({"priority": 1000, "match": {"workloadClass": ["training"]}},
                     "spec.priority: got 1000, wants less than 1000 with match.workloadClass", id="two fields"),
    ],
)  # fmt: skip
def test_mistake_in_an_object_is_named_by_its_path(spec: dict[str, Any], expected: str) -> None:
    """F75, F131: an object has no lines to name."""
    assert (f"gpupolicy training: {expected}",) == object_problems(parsed("training", **spec))


@pytest.mark.parametrize("version", VERSIONS)
def test_file_and_object_of_each_version_say_the_same(version: str) -> None:
    """F131: no version changes a field, a default or the hash by which replicas are compared."""
    text = policy("a", "priority: 3, placement: {gpuMemory: 40Gi}").replace(STORAGE_VERSION, version)
    made = parsed("a", priority=3, placement={"gpuMemory": "40Gi"}) | {"apiVersion": f"gpu-usher.io/{version}"}

    hashes = {load_policies({}, knowledge(), None, {"gpupolicy a": made}).hash, policies(text).hash}

    assert hashes == {policies(policy("a", "priority: 3, placement: {gpuMemory: 40Gi}")).hash}
    assert text.startswith(f"apiVersion: gpu-usher.io/{version}\n")


@pytest.mark.parametrize(
    ("version", "meant"), [("v1beta2", "gpu-usher.io/v1beta1"), ("v1", "gpu-usher.io/v1"), ("v1alfa1", "v1alpha1")]
)
def test_version_that_is_not_served_is_refused_with_the_one_meant(version: str, meant: str) -> None:
    """F75, F131."""
    (problem,) = object_problems(parsed("a") | {"apiVersion": f"gpu-usher.io/{version}"})

    assert meant in problem.partition("did you mean ")[2]
    assert any(f"gpu-usher.io/{served}?" in problem for served in VERSIONS)


def test_one_name_in_two_versions_is_one_policy_too_many() -> None:
    """F131: an object and the file that it was made from, left in the directory."""
    text = policy("a", "").replace(STORAGE_VERSION, VERSIONS[-1])

    assert object_problems(parsed("a"), texts={"a.yaml": text}) == (
        "gpupolicy a: metadata.name: a is taken by a.yaml:3:12",
    )


def test_object_without_a_spec_is_a_policy_that_says_nothing() -> None:
    bare = {key: value for key, value in parsed("a").items() if key != "spec"}

    assert load_policies({}, knowledge(), None, {"gpupolicy a": bare}).policies[0].name == "a"


def test_name_that_a_file_has_is_taken_for_an_object() -> None:
    expected = "gpupolicy a: metadata.name: a is taken by a.yaml:3:12"

    assert (expected,) == object_problems(parsed("a"), texts={"a.yaml": policy("a", "")})


def test_shipped_policies_are_accepted_as_objects() -> None:
    """F131: a policy that is a file now can become an object later."""
    texts = policy_texts(shipped_policies())
    documents = [document for text in texts.values() for document in yaml.safe_load_all(text)]

    loaded = load_policies(
        {}, knowledge(), None, {f"gpupolicy {document['metadata']['name']}": document for document in documents}
    )

    assert shipped().hash == loaded.hash
