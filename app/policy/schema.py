# SPDX-License-Identifier: Apache-2.0
"""The schema of the GPUPolicy document, the same in both versions; unknown fields are errors.

The published JSON Schema, the CustomResourceDefinition and policies/README.md are made from these models, and take
their texts from the docstrings and field descriptions.

For the CustomResourceDefinition (F131) the API server requires a structural schema: each value has a type, and there is
no $ref, no null beside a type, and no `additionalProperties: false`, since it prunes unknown fields and strict field
validation reports them.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.kube.api_kinds import API_KINDS
from app.policy.fields import Day, LabelSelector, Merge, StrictMapping, described
from app.policy.schema_admission import Admission
from app.policy.schema_placement import Placement, Rule


class Action(Enum):
    """The actions, from the strictest: Enforce, Warn, Audit, Off.

    Enforce patches and refuses pods. Warn returns a warning instead, and lowers the scores of nodes that Enforce would
    exclude. Audit records in the decision annotation what admission would do. Quote "Off", which YAML readers misread.
    """

    Off = "Off"
    Audit = "Audit"
    Warn = "Warn"
    Enforce = "Enforce"


STRICTNESS = {action: rank for rank, action in enumerate(Action)}


class WorkloadClass(Enum):
    """Values of the pod annotation gpu-usher.io/workload-class."""

    Training = "training"
    Inference = "inference"
    BatchInference = "batch-inference"
    Notebook = "notebook"


class Match(StrictMapping):
    """The pods to which a policy applies: all given parts must match. Without parts it selects every GPU pod."""

    namespace_selector: LabelSelector | None = described(
        Merge.Own, "labels of the pod's namespace", {"matchLabels": {"team": "ml"}}
    )
    pod_selector: LabelSelector | None = described(Merge.Own, "labels of the pod", {"matchLabels": {"app": "train"}})
    workload_class: tuple[Annotated[WorkloadClass, Field(strict=False)], ...] | None = described(
        Merge.Own,
        "the pod's annotation gpu-usher.io/workload-class; needs priority < 1000, and can only add restrictions",
        ["training"],
        strict=False,
    )


class ExceptionMatch(StrictMapping):
    """Which pods an exception applies to; one without selectors would apply to all pods, and is an error."""

    namespace_selector: LabelSelector | None = Field(default=None, description="labels of the pod's namespace")
    pod_selector: LabelSelector | None = Field(default=None, description="labels of the pod")


MOST_EXCEPTIONS = 64
"""Exceptions of a policy. A guess; each selector is compared with each pod."""


class PolicyException(StrictMapping):
    """Rules that are off for some pods until a day. An expired exception has no effect, and a metric counts it."""

    match: ExceptionMatch = Field(description="the pods to which it applies")
    rules: tuple[Annotated[Rule, Field(strict=False)], ...] = Field(
        default=(), strict=False, description="the rules that are off; all rules if none is listed"
    )
    owner: Annotated[str, Field(min_length=1)] = Field(description="the responsible person or team")
    reason: Annotated[str, Field(min_length=1)] = Field(description="why it is needed")
    expires: Day = Field(description="the last day on which it applies, UTC, as 2027-01-31")


class Spec(StrictMapping):
    """All policies that match a pod apply together. For a field with one value, two policies of equal priority with
    different values are an error, unless no pod can match both.
    """

    description: str = described(Merge.Own, "shown by kubectl get gpol", "Training gets whole GPUs.", default="")
    priority: Annotated[int, Field(ge=0, le=1_000_000)] = described(
        Merge.Own, "the highest wins for a field with one value", 100, default=0
    )
    match: Match = Field(default=Match(), description="the pods to which it applies; absent: every GPU pod")
    action: Annotated[Action, Field(strict=False)] = described(
        Merge.Own, "the action of all its rules", "Warn", default=Action.Enforce
    )
    actions: dict[Annotated[Rule, Field(strict=False)], Annotated[Action, Field(strict=False)]] = described(
        Merge.Own, "other actions, by rule", {"tolerations": "Audit"}, default={}
    )
    enforce_from: Day | None = described(Merge.Own, "before this day (UTC) Enforce counts as Warn", "2027-01-31")
    exceptions: tuple[PolicyException, ...] = described(
        Merge.Own,
        "rules that are off for some pods, until a day",
        [
            {
                "match": {"podSelector": {"matchLabels": {"app": "legacy"}}},
                "rules": ["visibleDevices"],
                "owner": "team-vision",
                "reason": "reads NVIDIA_VISIBLE_DEVICES until its rewrite",
                "expires": "2027-03-31",
            }
        ],
        default=(),
        strict=False,
        max_length=MOST_EXCEPTIONS,
    )
    admission: Admission = Field(default=Admission(), description="what admission does to the pod")
    placement: Placement = Field(default=Placement(), description="where the pod may run, and which nodes are best")


class PolicyMetadata(StrictMapping):
    """Kubernetes metadata; other keys of it are ignored, since kubectl adds some."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", examples=["training"])]


class GPUPolicy(StrictMapping):
    """One policy document."""

    api_version: Literal["gpu-usher.io/v1alpha1", "gpu-usher.io/v1beta1"]
    kind: Literal["GPUPolicy"]
    metadata: PolicyMetadata
    spec: Spec = Field(default=Spec(), examples=[{"placement": {"products": {"allow": ["H100"]}}}])


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema that editors use."""
    schema = GPUPolicy.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


GROUP, PLURAL, VERSIONS = API_KINDS["GPUPolicy"].group, API_KINDS["GPUPolicy"].plural, API_KINDS["GPUPolicy"].versions
"""The API group of GPUPolicy, its plural in API paths and RBAC rules, and its versions."""
STORAGE_VERSION = VERSIONS[0]
"""Why it is the older one: docs/decisions/0059-store-policies-as-the-former-release-reads-them.md."""
_LABELS = {"app.kubernetes.io/name": "gpu-usher", "app.kubernetes.io/component": "policies"}
"""By the component an uninstallation leaves the definition out, with which all GPUPolicy objects would go."""

CRDSchema = dict[str, Any]

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


def custom_resource_definition() -> CRDSchema:
    """Make the CustomResourceDefinition, ready for kubectl apply."""
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
            "conversion": {"strategy": "None"},
            "versions": [_version(name) for name in VERSIONS],
        },
    }


def _version(name: str) -> CRDSchema:
    return {
        "name": name,
        "served": True,
        "storage": name == STORAGE_VERSION,
        "additionalPrinterColumns": [dict(zip(("name", "type", "jsonPath"), row, strict=True)) for row in _COLUMNS],
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _with_status(structural_schema(json_schema()))},
    }


def _with_status(schema: CRDSchema) -> CRDSchema:
    """Add the status that app/events/policy_reports.py writes; a policy file has none."""
    text: CRDSchema = {"type": "string"}
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


def structural_schema(schema: CRDSchema) -> CRDSchema:
    """Turn the JSON Schema of the document into a structural one; the API server itself validates the metadata."""
    structural = _structural(schema, schema["$defs"])
    structural["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    del structural["required"]  # it lists the three fields above, which the API server itself checks
    return structural


def _structural(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> CRDSchema:
    node = resolve_schema(schema, defs)
    present = {key: node[key] for key in _COPIED_KEYWORDS if key in node}
    # Lists are copied, since YAML would write one that occurs twice as an anchor and an alias.
    structural = {key: list(value) if isinstance(value, list) else value for key, value in present.items()}
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


def _map_schema(node: Mapping[str, Any], defs: Mapping[str, Any]) -> CRDSchema:
    """Write the schema of a map.

    A structural schema has no propertyNames, so that a map whose keys are an enum gets a field for each key.
    """
    if "propertyNames" not in node:
        return {"additionalProperties": _structural(node["additionalProperties"], defs)}
    names = resolve_schema(node["propertyNames"], defs)["enum"]
    return {"properties": {name: _structural(node["additionalProperties"], defs) for name in names}}


def resolve_schema(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> CRDSchema:
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
    return {**resolve_schema(branch, defs), **siblings}
