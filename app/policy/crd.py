# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinition of GPUPolicy, made from the same models that read policy files (F131).

The API server wants a structural schema: every type said, no $ref, no null beside a type, no `additionalProperties:
false` (it prunes what the schema does not name, and strict field validation reports it).
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from collections.abc import Mapping
from typing import Any

from app.policy.schema import json_schema

GROUP = "gpu-usher.io"
VERSION = "v1alpha1"
PLURAL = "gpupolicies"

Schema = dict[str, Any]

_KEPT = (
    "type",
    "description",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "maxProperties",
)
_COLUMNS = (
    ("Priority", "integer", ".spec.priority"),
    ("Action", "string", ".spec.action"),
    ("Description", "string", ".spec.description"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
"""What `kubectl get gpol` shows: name, type, path."""


def custom_resource_definition() -> Schema:
    """Make the CustomResourceDefinition, ready for kubectl apply."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [dict(zip(("name", "type", "jsonPath"), row, strict=True)) for row in _COLUMNS],
        "schema": {"openAPIV3Schema": structural_schema(json_schema())},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": "GPUPolicy",
                "listKind": "GPUPolicyList",
                "plural": PLURAL,
                "singular": "gpupolicy",
                "shortNames": ["gpol"],
            },
            "versions": [version],
        },
    }


def structural_schema(schema: Schema) -> Schema:
    """Turn the JSON Schema of the document into a structural one; metadata are the API server's own business."""
    found = _structural(schema, schema["$defs"])
    found["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    del found["required"]  # of the three above, which the API server fills in or asks for itself
    return found


def _structural(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    node = _resolve(schema, defs)
    found = {key: _copied(node[key]) for key in _KEPT if key in node}
    if "const" in node:
        found["enum"] = [node["const"]]
    if isinstance(node.get("default"), int) or (node.get("default") and isinstance(node["default"], str)):
        found["default"] = node["default"]  # one that says something, so that a column shows it
    if "items" in node:
        found["items"] = _structural(node["items"], defs)
    if "properties" in node:
        found["properties"] = {name: _structural(each, defs) for name, each in node["properties"].items()}
    if node.get("additionalProperties"):
        found |= _mapped(node, defs)
    if "required" in node:
        found["required"] = list(node["required"])
    return found


def _mapped(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Write a map; one whose keys are an enum becomes a field per key: a structural schema has no propertyNames."""
    if "propertyNames" not in node:
        return {"additionalProperties": _structural(node["additionalProperties"], defs)}
    names = _resolve(node["propertyNames"], defs)["enum"]
    return {"properties": {name: _structural(node["additionalProperties"], defs) for name in names}}


def _resolve(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Follow $ref, and take the one branch of `anyOf` that is not null: an absent field says the same.

    What stands beside the reference, such as a field's own description, wins.
    """
    own = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
    inner = schema.get("anyOf", [])
    if "$ref" in schema:
        inner = [defs[schema["$ref"].removeprefix("#/$defs/")]]
    branches = [each for each in inner if each.get("type") != "null"]
    if not branches:
        return own
    (branch,) = branches
    return {**_resolve(branch, defs), **own}


def _copied(value: Any) -> Any:
    """Copy a list: YAML would write one that occurs twice as an anchor."""
    return list(value) if isinstance(value, list) else value
