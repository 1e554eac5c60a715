# SPDX-License-Identifier: Apache-2.0
"""The `placement` block of a GPUPolicy: where a GPU pod may run, and which nodes are best."""

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.policy.fields import LabelSelector, MemoryText, Merge, StrictMapping, VersionText, described


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
"""Scorers and weights where no policy sets scores. Fragmentation gives out the most GPUs (tests/results/placement.md).
The other scorers give all nodes the same score unless the pod has a preference. Their weights are a guess: a preferred
product outweighs about two GPUs of waste, and a driver that runs the image natively half a GPU."""


class HealthAction(Enum):
    """What happens to a node with unhealthy GPUs; the order is from lax to strict."""

    Ignore = "Ignore"
    ScoreDown = "ScoreDown"
    Refuse = "Refuse"


class FormFactor(Enum):
    """The form factor of a GPU; SXM2 to SXM6 are SXM (column form_factor of gpu_products.yaml)."""

    PCIe = "PCIe"
    SXM = "SXM"
    Superchip = "superchip"
    SoC = "SoC"


MOST_PRODUCTS = 128
"""Items of a list of products, more than twice the rows of gpu_products.yaml; each is compared for each pod."""
MOST_IMAGES = 256
"""Rows of a policy's image table. A guess; each is compared with each container."""


class ProductsWish(StrictMapping):
    """Which GPU products are allowed, denied and preferred. Names match whole tokens, so that A10 is never an A100.

    A single word is the family (H100: every H100), a name with NVIDIA- or Tesla- is that one label, and * stands for
    one or more whole tokens (NVIDIA-A100-SXM4-*); a star inside a token (A10*) is an error.
    """

    allow: tuple[str, ...] | None = described(
        Merge.Intersection,
        "any of these; absent is all",
        ["H200", "H100"],
        ["H100", "A100"],
        default=None,
        strict=False,
        max_length=MOST_PRODUCTS,
    )
    deny: tuple[str, ...] = described(
        Merge.Union, "none of these", ["NVIDIA-H100-PCIe"], ["L4"], default=(), strict=False, max_length=MOST_PRODUCTS
    )
    prefer: tuple[str, ...] | None = described(
        Merge.Single,
        "best first; only orders nodes",
        ["H200", "H100"],
        ["H100", "H200"],
        default=None,
        strict=False,
        max_length=MOST_PRODUCTS,
    )


class ImageTableRow(StrictMapping):
    """Images, and the CUDA version that they contain."""

    image: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="a reference; * stands for anything"
    )
    cuda: VersionText = Field(description='as "12.4"')
    compat: bool = Field(default=False, description="true: the images contain the cuda-compat package of that CUDA")


class CUDAWish(StrictMapping):
    """Which CUDA version must run on a node's driver, and which kind of compatibility is sufficient.

    Native: the driver is as new as the toolkit. MinorVersion: a driver of the same CUDA major version is sufficient.
    ForwardCompatible: an older driver is sufficient too, on data centre GPUs, for an image that is known to contain the
    cuda-compat package.
    """

    minimum: VersionText | None = described(Merge.Highest, "at least this CUDA, quoted", "12.4", "12.6", default=None)
    from_image: bool | None = described(
        Merge.Single,
        "infer the need from the image's tag, if the fact tables have the image",
        True,
        False,
        default=None,
    )
    accept: Literal["Native", "MinorVersion", "ForwardCompatible"] | None = described(
        Merge.Strictest, "absent everywhere: ForwardCompatible", "Native", "ForwardCompatible", default=None
    )
    images: tuple[ImageTableRow, ...] = described(
        Merge.InOrder,
        "the CUDA versions of your own images; they replace what their tags say",
        [{"image": "registry.example/ml/*", "cuda": "12.4"}],
        [{"image": "registry.example/*", "cuda": "11.8"}],
        default=(),
        strict=False,
        max_length=MOST_IMAGES,
    )

    @property
    def accepted(self) -> AcceptedCompatibility | None:
        """The `accept` field as a value of cuda_compatibility.py."""
        return AcceptedCompatibility[self.accept] if self.accept else None


class Score(StrictMapping):
    """One scorer and its weight. The total of a node is the weighted mean of its scores.

    Fragmentation: the node where the pod leaves the most GPU capacity usable for expected pods. MIGLayout: the node
    where most MIG slices still fit afterwards. Packing: the fullest node. Spreading: the emptiest node.
    ProductPreference: the order of products.prefer. DriverHeadroom: native CUDA before minor-version before forward
    compatibility. Interconnect: GPUs that NVLink joins all-to-all for pods of several GPUs, other GPUs for pods of one.
    NVLinkDomain: the gpu.clique in which pods of the same Job, JobSet or LeaderWorkerSet run.
    """

    name: Annotated[ScorerName, Field(strict=False)] = Field(description="the scorer")
    weight: Annotated[int, Field(ge=1, le=100)] = Field(default=1, description="its weight in the mean")


class HealthWish(StrictMapping):
    """What happens to a node with unhealthy GPUs: Refuse it, ScoreDown or Ignore.

    It has an effect only where GPU health is reported: by DCGM, by the device plugin, which withdraws devices, or by
    conditions of the node.
    """

    ill: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest,
        "GPUs that must be drained now by DCGM's metrics (XID, ECC, row remapping); absent: Refuse",
        "Refuse",
        "Ignore",
        default=None,
    )
    ailing: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest,
        "GPUs that are throttled, have NVLink errors, or need a reset when idle; absent: ScoreDown",
        "ScoreDown",
        "Refuse",
        default=None,
    )
    unhealthy_devices: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest,
        "devices that the device plugin has withdrawn; absent: ScoreDown",
        "ScoreDown",
        "Refuse",
        default=None,
    )
    conditions: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest,
        "conditions of the node that report a fault of its GPUs (node_conditions.yaml); Refuse is for those that are "
        "ill, and the others lower the score; absent: ScoreDown, as some outlive the fault",
        "ScoreDown",
        "Refuse",
        default=None,
    )


class Placement(StrictMapping):
    """Where a GPU pod may run, and which nodes are best. Each policy can only add restrictions to those of others.

    A contradiction between policies (no product is left, Exclusive against Shared) refuses the pod and names them.
    """

    products: ProductsWish | None = Field(default=None, description="GPU products")
    cuda: CUDAWish | None = Field(default=None, description="the CUDA version that must run")
    gpu_memory: MemoryText | None = described(Merge.Highest, "at least, per GPU or slice", "40Gi", "80Gi", default=None)
    compute_capability: VersionText | None = described(Merge.Highest, "at least, quoted", "8.0", "9.0", default=None)
    sharing: Annotated[SharingWish, Field(strict=False)] | None = described(
        Merge.Strictest,
        "Exclusive: whole GPUs or MIG slices; Shared: replicas of a shared GPU; Any. Exclusive with Shared is a "
        "contradiction",
        "Exclusive",
        "Any",
        default=None,
    )
    interconnect: Literal["NVLink"] | None = described(
        Merge.Union, "GPUs joined all-to-all (SXM, HGX, NVL72)", "NVLink", default=None
    )
    form_factor: tuple[Annotated[FormFactor, Field(strict=False)], ...] | None = described(
        Merge.Intersection,
        "form factors of the GPU, any of these; absent: all",
        ["SXM", "superchip"],
        ["SXM", "PCIe"],
        default=None,
        strict=False,
    )
    node_selector: LabelSelector | None = described(
        Merge.Union,
        "a selector of nodes by your own labels, such as a pool, or no spot nodes",
        {"matchLabels": {"pool": "training"}},
        {"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]},
        default=None,
    )
    health: HealthWish | None = Field(default=None, description="what happens to nodes with unhealthy GPUs")
    unknown_facts: Literal["Accept", "Refuse"] | None = described(
        Merge.Strictest,
        "a node whose labels do not have the facts that a need depends on; a node of unknown product never serves a "
        "pod that needs certain products",
        "Refuse",
        "Accept",
        default=None,
    )
    scores: tuple[Score, ...] | None = described(
        Merge.Single,
        "which of the nodes that fit is best; absent everywhere: "
        + ", ".join(f"{name.value} {weight}" for name, weight in DEFAULT_SCORES),
        [{"name": "Packing", "weight": 5}, {"name": "NVLinkDomain", "weight": 4}],
        [{"name": "Spreading"}],
        default=None,
        strict=False,
    )
    score_spread: Literal["Ranked", "Proportional"] | None = described(
        Merge.Single,
        "Ranked: the best node gets 10, and the others 0 to 9, so that it surely leads; Proportional: 0 to 10 in "
        "proportion to the totals, so that other scores of the scheduler weigh more",
        "Proportional",
        "Ranked",
        default=None,
    )
