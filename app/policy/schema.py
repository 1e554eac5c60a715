# SPDX-License-Identifier: Apache-2.0
"""The schema of the GPUPolicy document (`gpu-usher.io/v1alpha1`); unknown fields are errors.

The published JSON Schema, the CustomResourceDefinition and policies/README.md are made from these models, and take
their texts from the docstrings and field descriptions.
"""

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.policy.fields import Day, LabelSelector, Merge, Part, described
from app.policy.schema_admission import Admission
from app.policy.schema_placement import Placement


class Action(Enum):
    """What a policy does about a pod; the order is from mild to strict.

    Enforce patches and refuses. Warn returns a warning instead, and lowers the scores of nodes that Enforce would
    refuse. Audit only logs and counts. "Off" (in quotes, since YAML readers disagree on it) does nothing.
    """

    Off = "Off"
    Audit = "Audit"
    Warn = "Warn"
    Enforce = "Enforce"


STRICTNESS = {action: rank for rank, action in enumerate(Action)}


class Rule(Enum):
    """The parts of a policy whose action can be overridden, by the field that holds them."""

    ExtendedResources = "extendedResources"
    Tolerations = "tolerations"
    RuntimeClassName = "runtimeClassName"
    SchedulerName = "schedulerName"
    PriorityClassName = "priorityClassName"
    Affinity = "affinity"
    MaxGPUsPerPod = "maxGPUsPerPod"
    Defaults = "defaults"
    RightSizing = "rightSizing"
    MIGFallback = "migFallback"
    ConvertToClaims = "convertToClaims"
    VisibleDevices = "visibleDevices"
    Privileged = "privileged"
    Bypass = "bypass"
    SharedReplicas = "sharedReplicas"
    Idle = "idle"
    Products = "products"
    CUDA = "cuda"
    GPUMemory = "gpuMemory"
    ComputeCapability = "computeCapability"
    Sharing = "sharing"
    Interconnect = "interconnect"
    FormFactor = "formFactor"
    NodeSelector = "nodeSelector"
    Health = "health"
    UnknownFacts = "unknownFacts"
    Scores = "scores"
    ScoreSpread = "scoreSpread"


class WorkloadClass(Enum):
    """Values of the pod annotation gpu-usher.io/workload-class."""

    Training = "training"
    Inference = "inference"
    BatchInference = "batch-inference"
    Notebook = "notebook"


class Match(Part):
    """The pods to which a policy applies: all given parts must match. Without any, it applies to every GPU pod."""

    namespace_selector: LabelSelector | None = described(
        Merge.Own, "labels of the pod's namespace", {"matchLabels": {"team": "ml"}}, default=None
    )
    pod_selector: LabelSelector | None = described(
        Merge.Own, "labels of the pod", {"matchLabels": {"app": "train"}}, default=None
    )
    workload_class: tuple[Annotated[WorkloadClass, Field(strict=False)], ...] | None = described(
        Merge.Own,
        "the pod's annotation gpu-usher.io/workload-class; needs priority < 1000, and can only add restrictions",
        ["training"],
        default=None,
        strict=False,
    )


class ExceptionMatch(Part):
    """Which pods an exception applies to; one without selectors would apply to all pods, and is an error."""

    namespace_selector: LabelSelector | None = Field(default=None, description="labels of the pod's namespace")
    pod_selector: LabelSelector | None = Field(default=None, description="labels of the pod")


MOST_EXCEPTIONS = 64
"""Exceptions of a policy. A guess; each selector is compared with each pod."""


class PolicyException(Part):
    """Rules that are off for some pods until a day. An expired exception has no effect, and a metric counts it."""

    match: ExceptionMatch = Field(description="the pods to which it applies")
    rules: tuple[Annotated[Rule, Field(strict=False)], ...] = Field(
        default=(), strict=False, description="the rules that are off; all rules if none is listed"
    )
    owner: Annotated[str, Field(min_length=1)] = Field(description="the responsible person or team")
    reason: Annotated[str, Field(min_length=1)] = Field(description="why it is needed")
    expires: Day = Field(description="the last day on which it applies, UTC, as 2027-01-31")


class Spec(Part):
    """The content of a policy.

    All policies that match a pod apply together. Two policies of one priority that set a field differently, of which
    only one value can apply, are an error, unless no pod can match both.
    """

    description: str = described(Merge.Own, "shown by kubectl get gpol", "Training gets whole GPUs.", default="")
    priority: Annotated[int, Field(ge=0, le=1_000_000)] = described(
        Merge.Own, "the highest wins where only one value can apply", 100, default=0
    )
    match: Match = Field(default=Match(), description="the pods to which it applies; absent: every GPU pod")
    action: Annotated[Action, Field(strict=False)] = described(
        Merge.Own, "of all rules of the policy", "Warn", default=Action.Enforce
    )
    actions: dict[Annotated[Rule, Field(strict=False)], Annotated[Action, Field(strict=False)]] = described(
        Merge.Own, "another action for single rules, by field", {"tolerations": "Audit"}, default={}
    )
    enforce_from: Day | None = described(
        Merge.Own,
        "before this day (UTC) Enforce counts as Warn",
        "2027-01-31",
        default=None,
    )
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


class Metadata(Part):
    """Kubernetes metadata; other keys of it are ignored, since kubectl adds some."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]


class GPUPolicy(Part):
    """One policy document."""

    api_version: Literal["gpu-usher.io/v1alpha1"]
    kind: Literal["GPUPolicy"]
    metadata: Metadata
    spec: Spec = Spec()


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema that editors use."""
    schema = GPUPolicy.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
