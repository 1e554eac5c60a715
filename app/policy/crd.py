# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinition of GPUPolicy, made from the same models that read policy files.

The API server requires a structural schema: each value has a type, and there is no $ref, no null beside a type, and no
`additionalProperties: false`, since it prunes unknown fields and strict field validation reports them.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from collections.abc import Mapping
from typing import Any

from app.kube.api_kinds import API_KINDS
from app.policy.schema import json_schema

GROUP, PLURAL = API_KINDS["GPUPolicy"].group, API_KINDS["GPUPolicy"].plural
(VERSION,) = API_KINDS["GPUPolicy"].versions
_LABELS = {"app.kubernetes.io/name": "gpu-usher", "app.kubernetes.io/component": "policies"}
"""By the component an uninstallation leaves the definition out, with which all GPUPolicy objects would go."""
"""The API group of GPUPolicy, its plural in API paths and RBAC rules, and its only version."""

Schema = dict[str, Any]

_COPIED_KEYWORDS = (
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
    ("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].status'),
    ("Reason", "string", '.status.conditions[?(@.type=="Accepted")].reason'),
    ("Description", "string", ".spec.description"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
"""The columns of `kubectl get gpol`: name, type, path."""


def custom_resource_definition() -> Schema:
    """Make the CustomResourceDefinition, ready for kubectl apply."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [dict(zip(("name", "type", "jsonPath"), row, strict=True)) for row in _COLUMNS],
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _with_status(structural_schema(json_schema()))},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": _LABELS},
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


def _with_status(schema: Schema) -> Schema:
    """Add the status that app/events/policy_reports.py writes; a policy file has none."""
    text: Schema = {"type": "string"}
    condition = {name: dict(text) for name in ("type", "status", "reason", "message")}
    condition |= {
        "observedGeneration": {"type": "integer", "format": "int64"},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
    }
    required = ["type", "status", "reason", "message", "lastTransitionTime"]
    status = {
        "type": "object",
        "description": "what has become of the policy; written by gpu-usher",
        "properties": {
            "hash": {"type": "string", "description": "the first digits of the hash of the set in force"},
            "conditions": {
                "type": "array",
                "description": "Accepted is True where the policy is in force as it is written",
                "items": {"type": "object", "properties": condition, "required": required},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }
    return {**schema, "properties": {**schema["properties"], "status": status}}


def structural_schema(schema: Schema) -> Schema:
    """Turn the JSON Schema of the document into a structural one; the API server itself validates the metadata."""
    structural = _structural(schema, schema["$defs"])
    structural["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    del structural["required"]  # it lists the three fields above, which the API server itself checks
    return structural


def _structural(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    node = _resolve(schema, defs)
    structural = {key: _copy_list(node[key]) for key in _COPIED_KEYWORDS if key in node}
    if "const" in node:
        structural["enum"] = [node["const"]]
    if isinstance(node.get("default"), int) or (node.get("default") and isinstance(node["default"], str)):
        structural["default"] = node["default"]  # an empty default is left out; others appear in the columns
    if "items" in node:
        structural["items"] = _structural(node["items"], defs)
    if "properties" in node:
        structural["properties"] = {name: _structural(member, defs) for name, member in node["properties"].items()}
    if node.get("additionalProperties"):
        structural |= _map_schema(node, defs)
    if "required" in node:
        structural["required"] = list(node["required"])
    return structural


def _map_schema(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Write the schema of a map.

    A structural schema has no propertyNames, so that a map whose keys are an enum gets a field for each key.
    """
    if "propertyNames" not in node:
        return {"additionalProperties": _structural(node["additionalProperties"], defs)}
    names = _resolve(node["propertyNames"], defs)["enum"]
    return {"properties": {name: _structural(node["additionalProperties"], defs) for name in names}}


def _resolve(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Follow $ref, and take the one branch of `anyOf` that is not null, since an absent field means the same as null.

    Keywords beside the reference, such as the field's own description, replace those of its target.
    """
    siblings = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
    alternatives = schema.get("anyOf", [])
    if "$ref" in schema:
        alternatives = [defs[schema["$ref"].removeprefix("#/$defs/")]]
    branches = [alternative for alternative in alternatives if alternative.get("type") != "null"]
    if not branches:
        return siblings
    (branch,) = branches
    return {**_resolve(branch, defs), **siblings}


def _copy_list(value: Any) -> Any:
    """Copy a list, since YAML would write a list object that occurs twice as an anchor and an alias."""
    return list(value) if isinstance(value, list) else value
