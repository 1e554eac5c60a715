# SPDX-License-Identifier: Apache-2.0
"""The GPUPolicy document (`gpu-usher.io/v1alpha1`), as people write it. Unknown fields are errors.

The published JSON Schema is made from these models; the field descriptions are its documentation.
"""

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.policy.fields import Day, LabelSelector, Part
from app.policy.schema_admission import Admission
from app.policy.schema_placement import Placement


class Action(Enum):
    """What a policy does about what it finds; the order is from mild to strict."""

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
    VisibleDevices = "visibleDevices"
    Privileged = "privileged"
    Bypass = "bypass"
    SharedReplicas = "sharedReplicas"
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
    """Which pods a policy is for; all given parts must hold, none given is every GPU pod."""

    namespace_selector: LabelSelector | None = Field(default=None, description="labels of the pod's namespace")
    pod_selector: LabelSelector | None = Field(default=None, description="labels of the pod")
    workload_class: tuple[Annotated[WorkloadClass, Field(strict=False)], ...] | None = Field(
        default=None,
        strict=False,
        description="annotation gpu-usher.io/workload-class; needs priority < 1000",
    )


class ExceptionMatch(Part):
    """Which pods an exception is for; an empty one would be for all and is refused."""

    namespace_selector: LabelSelector | None = None
    pod_selector: LabelSelector | None = None


class PolicyException(Part):
    """Rules that are off for some pods, for a reason, by somebody, until a day."""

    match: ExceptionMatch
    rules: tuple[Annotated[Rule, Field(strict=False)], ...] = Field(
        default=(), strict=False, description="the rules that are off; none named is all"
    )
    owner: Annotated[str, Field(min_length=1)]
    reason: Annotated[str, Field(min_length=1)]
    expires: Day


class Spec(Part):
    """A policy's content."""

    description: str = ""
    priority: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    match: Match = Match()
    action: Annotated[Action, Field(strict=False)] = Action.Enforce
    actions: dict[Annotated[Rule, Field(strict=False)], Annotated[Action, Field(strict=False)]] = Field(
        default={}, description="another action for single rules"
    )
    enforce_from: Day | None = Field(
        default=None, description="until this day, what says Enforce only warns (announce first, enforce later)"
    )
    exceptions: tuple[PolicyException, ...] = Field(default=(), strict=False)
    admission: Admission = Admission()
    placement: Placement = Placement()


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
