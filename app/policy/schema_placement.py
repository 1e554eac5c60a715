# SPDX-License-Identifier: Apache-2.0
"""The `placement` block of a GPUPolicy: where a GPU pod may run, and which nodes are best."""

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import Field

from app.policy.fields import LabelSelector, MemoryText, Merge, StrictMapping, VersionText, described


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
    QueuedTemplates = "queuedTemplates"
    MemoryRequests = "memoryRequests"
    PerGPU = "perGPU"
    Idle = "idle"
    Products = "products"
    CUDA = "cuda"
    GPUMemory = "gpuMemory"
    ComputeCapability = "computeCapability"
    Sharing = "sharing"
    Interconnect = "interconnect"
    FormFactor = "formFactor"
    Architectures = "architectures"
    ConfidentialComputing = "confidentialComputing"
    GPUMode = "gpuMode"
    NodeSelector = "nodeSelector"
    NamespaceLimits = "namespaceLimits"
    Health = "health"
    UnknownFacts = "unknownFacts"
    TopologyManager = "topologyManager"
    Scores = "scores"
    ScoreSpread = "scoreSpread"


class SharingWish(Enum):
    """Which units a pod accepts as a GPU; the order is from lax to strict."""

    Any = "Any"
    Shared = "Shared"
    Exclusive = "Exclusive"


class ScorerName(Enum):
    """The scorers of placement/scorers.py."""

    Packing = "Packing"
    Spreading = "Spreading"
    ProductPreference = "ProductPreference"
    DriverHeadroom = "DriverHeadroom"
    Interconnect = "Interconnect"
    NVLinkDomain = "NVLinkDomain"
    Fragmentation = "Fragmentation"
    MIGLayout = "MIGLayout"


DEFAULT_SCORES: tuple[tuple[ScorerName, int], ...] = (
    (ScorerName.Fragmentation, 5),
    (ScorerName.ProductPreference, 3),
    (ScorerName.DriverHeadroom, 1),
    (ScorerName.MIGLayout, 5),
)
"""Scorers and weights where no policy sets scores. Fragmentation allocates the most GPUs (tests/results/placement.md).
The other scorers give all nodes the same score unless the pod has a preference. Their weights are a guess: a preferred
product outweighs about two GPUs of waste, and a driver that runs the image natively half a GPU."""


class HealthAction(Enum):
    """What happens to a node with unhealthy GPUs; the order is from lax to strict."""

    Ignore = "Ignore"
    ScoreDown = "ScoreDown"
    Refuse = "Refuse"


def any_of(description: str, *examples: Any) -> Any:
    """Describe a list of alternatives, of which policies leave what all of them allow."""
    return described(Merge.Intersection, description, *examples, strict=False)


Architecture = Literal["Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell", "Rubin"]
MOST_LISTED_PRODUCTS = 128
"""Items of a list of products, more than twice the rows of gpu_products.yaml; each is compared for each pod."""
MOST_IMAGES = 256
"""Rows of a policy's image table. A guess; each is compared with each container."""


class ProductsWish(StrictMapping):
    """GPU products that are allowed, denied and preferred. Names match whole tokens: A10 is never an A100.

    A single word is the family (H100: every H100), a name with NVIDIA- or Tesla- is that one label, and * is one or
    more whole tokens (NVIDIA-A100-SXM4-*).
    """

    allow: tuple[str, ...] | None = described(
        Merge.Intersection,
        "any of these; absent: all",
        ["H200", "H100"],
        ["H100", "A100"],
        strict=False,
        max_length=MOST_LISTED_PRODUCTS,
    )
    deny: tuple[str, ...] = described(
        Merge.Union,
        "none of these",
        ["NVIDIA-H100-PCIe"],
        ["L4"],
        default=(),
        strict=False,
        max_length=MOST_LISTED_PRODUCTS,
    )
    prefer: tuple[str, ...] | None = described(
        Merge.Single,
        "best first; only orders nodes",
        ["H200", "H100"],
        ["H100", "H200"],
        strict=False,
        max_length=MOST_LISTED_PRODUCTS,
    )


class ImageTableRow(StrictMapping):
    """Images, and the CUDA version that they contain."""

    image: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="a reference; * stands for anything"
    )
    cuda: VersionText = Field(description='as "12.4"')
    compat: bool = Field(default=False, description="true: the images contain the cuda-compat package of that CUDA")


class CUDAWish(StrictMapping):
    """The CUDA version that a node's driver must run, and the kind of compatibility that is sufficient.

    Native: the driver is as new as the toolkit. MinorVersion: the driver has the same CUDA major version.
    ForwardCompatible: the driver is older, on data centre GPUs, and the image is known to contain cuda-compat.
    """

    minimum: VersionText | None = described(Merge.Highest, "at least this CUDA, quoted", "12.4", "12.6")
    from_image: bool | None = described(Merge.Single, "infer the need from the image's tag", True, False)
    accept: Literal["Native", "MinorVersion", "ForwardCompatible"] | None = described(
        Merge.Strictest, "absent: ForwardCompatible", "Native", "ForwardCompatible"
    )
    images: tuple[ImageTableRow, ...] = described(
        Merge.InOrder,
        "CUDA versions of your own images; they take precedence over tags",
        [{"image": "registry.example/ml/*", "cuda": "12.4"}],
        [{"image": "registry.example/*", "cuda": "11.8"}],
        default=(),
        strict=False,
        max_length=MOST_IMAGES,
    )


class Score(StrictMapping):
    """One scorer and its weight. The total of a node is the weighted mean of its scores.

    Fragmentation: leave the most GPU capacity usable for expected pods. MIGLayout: leave room for most MIG slices.
    Packing: the fullest node. Spreading: the emptiest. ProductPreference: the order of products.prefer. DriverHeadroom:
    native CUDA before minor-version before forward compatibility. Interconnect: all-to-all NVLink for pods of several
    GPUs, other GPUs for pods of one. NVLinkDomain: the gpu.clique of the other pods of the Job, JobSet or
    LeaderWorkerSet.
    """

    name: Annotated[ScorerName, Field(strict=False)] = Field(description="the scorer")
    weight: Annotated[int, Field(ge=1, le=100)] = Field(default=1, description="its weight in the mean")


class HealthWish(StrictMapping):
    """What happens to a node whose GPUs are reported as unhealthy: Refuse, ScoreDown or Ignore."""

    ill: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest,
        "unhealthy by DCGM (XID, ECC, row remapping): must be drained; absent: Refuse",
        "Refuse",
        "Ignore",
    )
    ailing: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest,
        "degraded by DCGM: throttled, NVLink errors, or a reset when idle; absent: ScoreDown",
        "ScoreDown",
        "Refuse",
    )
    unhealthy_devices: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest, "devices withdrawn by the device plugin; absent: ScoreDown", "ScoreDown", "Refuse"
    )
    conditions: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest,
        "conditions of the node (node_conditions.yaml); Refuse applies to conditions that report faulty GPUs, other "
        "conditions lower the score; absent: ScoreDown",
        "ScoreDown",
        "Refuse",
    )


MOST_LIMITS = 64
"""Limits of a policy. A guess; each is compared with each GPU that a namespace holds."""


class NamespaceLimit(StrictMapping):
    """The most GPUs, slices or shares of some products that pods and claims of a namespace hold together.

    Borrowing and fair share are Kueue's.
    """

    products: tuple[str, ...] = Field(
        strict=False,
        max_length=MOST_LISTED_PRODUCTS,
        description="any of these, as in products; '*': all GPUs",
        examples=[["*"]],
    )
    gpus: Annotated[int, Field(ge=0)] = Field(description="at most")


class Placement(StrictMapping):
    """Where a GPU pod may run, and which nodes are best. Each policy can only add restrictions.

    A contradiction (no product is left, Exclusive against Shared) refuses the pod and names the policies.
    """

    products: ProductsWish | None = Field(default=None, description="GPU products")
    cuda: CUDAWish | None = Field(default=None, description="the CUDA version that must run")
    gpu_memory: MemoryText | None = described(Merge.Highest, "at least, per GPU or slice", "40Gi", "80Gi")
    compute_capability: VersionText | None = described(Merge.Highest, "at least, quoted", "8.0", "9.0")
    sharing: Annotated[SharingWish, Field(strict=False)] | None = described(
        Merge.Strictest,
        "Exclusive: whole GPUs or MIG slices; Shared: replicas of a shared GPU; Any: both",
        "Exclusive",
        "Any",
    )
    interconnect: Literal["NVLink"] | None = described(
        Merge.Union, "GPUs joined all-to-all (SXM, HGX, NVL72)", "NVLink"
    )
    form_factor: tuple[Literal["PCIe", "SXM", "superchip", "SoC"], ...] | None = any_of(
        "any of these; absent: all", ["SXM", "superchip"], ["SXM", "PCIe"]
    )
    architectures: tuple[Architecture, ...] | None = any_of(
        "any of these GPU architectures; absent: all", ["Hopper", "Blackwell"], ["Ampere"]
    )
    confidential_computing: Literal["Required"] | None = described(
        Merge.Intersection, "GPUs in a mode of confidential computing, by the CC manager", "Required"
    )
    gpu_mode: tuple[Literal["compute", "graphics"], ...] | None = any_of(
        "any of these modes, by GFD: compute for GPUs that drive no display; absent: all", ["compute"], ["graphics"]
    )
    node_selector: LabelSelector | None = described(
        Merge.Union,
        "nodes by your own labels, such as a pool",
        {"matchLabels": {"pool": "training"}},
        {"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]},
    )
    namespace_limits: tuple[NamespaceLimit, ...] = described(
        Merge.Union,
        "GPUs that a namespace may hold",
        [{"products": ["H100", "H200"], "gpus": 16}],
        [{"products": ["H100"], "gpus": 8}],
        default=(),
        strict=False,
        max_length=MOST_LIMITS,
    )
    health: HealthWish | None = Field(default=None, description="what happens to nodes with unhealthy GPUs")
    unknown_facts: Literal["Accept", "Refuse"] | None = described(
        Merge.Strictest,
        "nodes without the labels that a need is read from; if products are named, such nodes are always refused",
        "Refuse",
        "Accept",
    )
    topology_manager: Literal["Accept", "Refuse"] | None = described(
        Merge.Strictest, "nodes whose kubelet will refuse the pod, by NodeResourceTopology", "Refuse", "Accept"
    )
    scores: tuple[Score, ...] | None = described(
        Merge.Single,
        "how nodes that fit are ranked; absent: "
        + ", ".join(f"{name.value} {weight}" for name, weight in DEFAULT_SCORES),
        [{"name": "Packing", "weight": 5}, {"name": "NVLinkDomain", "weight": 4}],
        [{"name": "Spreading"}],
        strict=False,
    )
    score_spread: Literal["Ranked", "Proportional"] | None = described(
        Merge.Single,
        "Ranked: only the best nodes get 10; Proportional: nodes get 0 to 10 by their totals, so that other scores of "
        "kube-scheduler weigh more",
        "Proportional",
        "Ranked",
    )
