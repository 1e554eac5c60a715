# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinition: structural, complete, and the one that is published (F74, F131)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.json_schema import crd_text
from app.policy.crd import custom_resource_definition
from app.policy.schema import Rule, json_schema

ROOT = Path(__file__).parents[2]
STRUCTURAL = {"type", "description", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "default"} | {
    "maxItems", "maxProperties",
    "properties", "additionalProperties", "items", "required"}  # fmt: skip
KNOWN = STRUCTURAL | {"title", "$ref", "$defs", "$schema", "anyOf", "const", "propertyNames"}
KNOWN |= {"examples", "format", "x-merge"}  # for editors and people; the API server needs none of them


def schema() -> dict[str, Any]:
    found: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Walk a schema: itself, and all schemas in it."""
    yield node
    inner = [*node.get("properties", {}).values(), *node.get("$defs", {}).values(), *node.get("anyOf", ())]
    inner += [node[key] for key in ("items", "additionalProperties", "propertyNames") if node.get(key)]
    for each in inner:
        yield from nodes(each)


def at(*path: str) -> dict[str, Any]:
    """Give the schema of a field of the spec."""
    found: dict[str, Any] = schema()["properties"]["spec"]
    for part in path:
        found = found["items"] if part == "[]" else found["properties"][part]
    return found


def test_published_definition_is_the_one_in_force() -> None:
    """F131. After a change of the models: gpu-usher schema --crd > deploy/components/crd/gpupolicies.yaml."""
    expected = crd_text()

    published = (ROOT / "deploy" / "components" / "crd" / "gpupolicies.yaml").read_text("utf-8")

    assert expected == published


def test_definition_is_cluster_scoped_served_stored_and_has_a_short_name() -> None:
    spec = custom_resource_definition()["spec"]

    assert (spec["scope"], spec["names"]["kind"], spec["names"]["shortNames"]) == ("Cluster", "GPUPolicy", ["gpol"])
    assert [(each["name"], each["served"], each["storage"]) for each in spec["versions"]] == [("v1alpha1", True, True)]


def test_every_part_of_the_schema_has_a_type_and_nothing_that_is_not_structural() -> None:
    found = list(nodes(schema()))

    assert len(found) > 100
    assert not [node for node in found if "type" not in node]
    assert not [node for node in found if node.keys() - STRUCTURAL]
    assert not [node for node in found if {"properties", "additionalProperties"} <= node.keys()]


def test_models_say_nothing_that_the_definition_would_lose() -> None:
    """A keyword that is new in the models fails here, before it is dropped in silence."""
    found = {key for node in nodes(json_schema()) for key in node}

    assert not found - KNOWN


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(("priority",), {"type": "integer", "minimum": 0, "maximum": 1_000_000, "default": 0}, id="bounds"),
        pytest.param(
            ("admission", "runtimeClassName"),
            {"type": "string"},
            id="null is left out",
        ),
        pytest.param(("placement", "interconnect"), {"type": "string", "enum": ["NVLink"]}, id="const"),
        pytest.param(("exceptions", "[]", "owner"), {"type": "string", "minLength": 1}, id="length"),
        pytest.param(
            ("match", "podSelector", "matchLabels"),
            {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 64},
            id="map",
        ),
        pytest.param(
            ("placement", "scores", "[]", "weight"),
            {"type": "integer", "minimum": 1, "maximum": 100, "default": 1},
            id="item of a list",
        ),
    ],
)
def test_field_is_written_as_the_api_server_wants_it(path: tuple[str, ...], expected: dict[str, Any]) -> None:
    found = {key: value for key, value in at(*path).items() if key != "description"}

    assert expected == found


def test_description_of_a_field_wins_over_that_of_its_type() -> None:
    assert at("match", "podSelector")["description"] == "labels of the pod"


def test_actions_are_a_field_per_rule() -> None:
    """A structural schema cannot say which keys a map may have."""
    found = at("actions")

    assert [rule.value for rule in Rule] == list(found["properties"])
    assert all(each["enum"] == ["Off", "Audit", "Warn", "Enforce"] for each in found["properties"].values())


@pytest.mark.parametrize("path", sorted((ROOT / "policies").glob("*.yaml")), ids=lambda path: path.stem)
def test_nothing_of_a_shipped_policy_would_be_pruned(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text("utf-8")):
        expected = {**document, "metadata": {}}

        assert expected == pruned({**document, "metadata": {}}, schema())


def pruned(value: Any, part: dict[str, Any]) -> Any:
    """Drop what a structural schema does not name, as the API server does."""
    if isinstance(value, list):
        return [pruned(each, part["items"]) for each in value]
    if not isinstance(value, dict):
        return value
    if "additionalProperties" in part:
        return {key: pruned(each, part["additionalProperties"]) for key, each in value.items()}
    return {key: pruned(each, part["properties"][key]) for key, each in value.items() if key in part["properties"]}
