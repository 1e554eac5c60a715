# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinition is structural and complete, and the published file is the one in force (F74, F131)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.made_texts import crd_text
from app.policy.schema import custom_resource_definition, json_schema
from app.policy.schema_placement import Rule

ROOT = Path(__file__).parents[2]
STRUCTURAL = {"type", "description", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "default"} | {
    "maxItems", "maxProperties",
    "properties", "additionalProperties", "items", "required",
    "format", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"}  # fmt: skip
KNOWN = STRUCTURAL | {"title", "$ref", "$defs", "$schema", "anyOf", "const", "propertyNames"}
KNOWN |= {"examples", "format", "x-merge"}  # for editors and people; the API server needs none of these keywords


def schema() -> dict[str, Any]:
    openapi_schema: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return openapi_schema


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas within it."""
    yield node
    inner = [*node.get("properties", {}).values(), *node.get("$defs", {}).values(), *node.get("anyOf", ())]
    inner += [node[key] for key in ("items", "additionalProperties", "propertyNames") if node.get(key)]
    for subschema in inner:
        yield from nodes(subschema)


def at(*path: str) -> dict[str, Any]:
    """Return the schema of a field of the spec."""
    field_schema: dict[str, Any] = schema()["properties"]["spec"]
    for part in path:
        field_schema = field_schema["items"] if part == "[]" else field_schema["properties"][part]
    return field_schema


def test_published_definition_is_the_one_in_force() -> None:
    """F131: after a change of the models, run gpu-usher schema --crd > deploy/components/crd/gpupolicies.yaml."""
    assert crd_text() == (ROOT / "deploy" / "components" / "crd" / "gpupolicies.yaml").read_text("utf-8")


def test_definition_is_cluster_scoped_served_stored_and_has_a_short_name() -> None:
    spec = custom_resource_definition()["spec"]

    assert (spec["scope"], spec["names"]["kind"], spec["names"]["shortNames"]) == ("Cluster", "GPUPolicy", ["gpol"])
    assert [(version["name"], version["served"], version["storage"]) for version in spec["versions"]] == [
        ("v1alpha1", True, True),
        ("v1beta1", True, False),
    ]


def test_versions_differ_in_nothing_but_what_is_stored() -> None:
    """F131: so that no conversion is needed; a file may name each version that the definition serves."""
    spec = custom_resource_definition()["spec"]
    alpha, beta = ({**version, "name": "", "storage": None} for version in spec["versions"])
    named = [f"{spec['group']}/{version['name']}" for version in spec["versions"]]

    assert (alpha, spec["conversion"]) == (beta, {"strategy": "None"})
    assert json_schema()["properties"]["apiVersion"]["enum"] == named


def test_every_part_of_the_schema_has_a_type_and_nothing_that_is_not_structural() -> None:
    subschemas = list(nodes(schema()))

    assert len(subschemas) > 100
    assert not [node for node in subschemas if "type" not in node]
    assert not [node for node in subschemas if node.keys() - STRUCTURAL]
    assert not [node for node in subschemas if {"properties", "additionalProperties"} <= node.keys()]


def test_models_say_nothing_that_the_definition_would_lose() -> None:
    """A new keyword in the models fails this test before the definition silently drops it."""
    keywords = {key for node in nodes(json_schema()) for key in node}

    assert not keywords - KNOWN


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(("priority",), {"type": "integer", "minimum": 0, "maximum": 1_000_000, "default": 0}, id="bounds"),
        pytest.param(("admission", "runtimeClassName"), {"type": "string"}, id="null is left out"),
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
    field_schema = {key: value for key, value in at(*path).items() if key != "description"}

    assert expected == field_schema


def test_description_of_a_field_wins_over_that_of_its_type() -> None:
    assert at("match", "podSelector")["description"] == "labels of the pod"


def test_actions_are_a_field_per_rule() -> None:
    """A structural schema cannot restrict the keys of a map."""
    field_schema = at("actions")

    assert [rule.value for rule in Rule] == list(field_schema["properties"])
    assert all(
        rule_schema["enum"] == ["Off", "Audit", "Warn", "Enforce"]
        for rule_schema in field_schema["properties"].values()
    )


@pytest.mark.parametrize("path", sorted((ROOT / "policies").glob("*.yaml")), ids=lambda path: path.stem)
def test_nothing_of_a_shipped_policy_would_be_pruned(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text("utf-8")):
        expected = {**document, "metadata": {}}

        assert expected == pruned({**document, "metadata": {}}, schema())


def pruned(value: Any, part: dict[str, Any]) -> Any:
    """Drop the members that a structural schema does not name, as the API server does."""
    if isinstance(value, list):
        return [pruned(item, part["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    if "additionalProperties" in part:
        return {key: pruned(item, part["additionalProperties"]) for key, item in value.items()}
    return {key: pruned(item, part["properties"][key]) for key, item in value.items() if key in part["properties"]}
