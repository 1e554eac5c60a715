# SPDX-License-Identifier: Apache-2.0
"""The GPUPolicy document (`gpu-usher.io/v1alpha1`), as people write it. Unknown fields are errors.

The published JSON Schema is made from these models; the field descriptions are its documentation.
"""

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.policy.fields import Day, LabelSelector, Merge, Part, described
from app.policy.schema_admission import Admission
from app.policy.schema_placement import Placement


class Action(Enum):
    """What a policy does about what it finds; the order is from mild to strict.

    Enforce patches and refuses. Warn does neither, says so in a warning, and scores the nodes down that it would have
    refused. Audit logs and counts only. "Off" (in quotes, since YAML readers disagree on it) does nothing.
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

    namespace_selector: LabelSelector | None = described(
        Merge.Own, "labels of the pod's namespace", {"matchLabels": {"team": "ml"}}, default=None
    )
    pod_selector: LabelSelector | None = described(
        Merge.Own, "labels of the pod", {"matchLabels": {"app": "train"}}, default=None
    )
    workload_class: tuple[Annotated[WorkloadClass, Field(strict=False)], ...] | None = described(
        Merge.Own,
        "annotation gpu-usher.io/workload-class of the pod; needs priority < 1000, and can only tighten: the policies "
        "that match by selectors stay in force",
        ["training"],
        default=None,
        strict=False,
    )


class ExceptionMatch(Part):
    """Which pods an exception is for; an empty one would be for all and is refused."""

    namespace_selector: LabelSelector | None = Field(default=None, description="labels of the pod's namespace")
    pod_selector: LabelSelector | None = Field(default=None, description="labels of the pod")


MOST_EXCEPTIONS = 64
"""Of a policy; guess. Each selector is compared with each pod."""


class PolicyException(Part):
    """Rules that are off for some pods, for a reason, by somebody, until a day.

    The day after, it is inert and counted.
    """

    match: ExceptionMatch = Field(description="which pods")
    rules: tuple[Annotated[Rule, Field(strict=False)], ...] = Field(
        default=(), strict=False, description="the rules that are off; none named is all"
    )
    owner: Annotated[str, Field(min_length=1)] = Field(description="who wants it")
    reason: Annotated[str, Field(min_length=1)] = Field(description="why")
    expires: Day = Field(description="the last day on which it holds, UTC, as 2027-01-31")


class Spec(Part):
    """A policy's content: which pods it is for, what admission does to them, where they may run.

    All policies that match a pod apply together, in the order of their priority. Two policies of one priority that set
    a field differently of which the highest priority wins are an error, unless no pod can match both.
    """

    description: str = described(
        Merge.Own, "for people: kubectl get gpol shows it", "Training gets whole GPUs.", default=""
    )
    priority: Annotated[int, Field(ge=0, le=1_000_000)] = described(
        Merge.Own, "where one value can win, that of the highest number does", 100, default=0
    )
    match: Match = Field(default=Match(), description="which pods; absent is every GPU pod")
    action: Annotated[Action, Field(strict=False)] = described(
        Merge.Own, "what is done about all that the policy says", "Warn", default=Action.Enforce
    )
    actions: dict[Annotated[Rule, Field(strict=False)], Annotated[Action, Field(strict=False)]] = described(
        Merge.Own, "another action for single rules, by the field's name", {"tolerations": "Audit"}, default={}
    )
    enforce_from: Day | None = described(
        Merge.Own,
        "until this day (UTC), what says Enforce only warns: announce first, enforce later",
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
    admission: Admission = Field(default=Admission(), description="what is done to the pod at the door")
    placement: Placement = Field(default=Placement(), description="where it may run, and where best")


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
