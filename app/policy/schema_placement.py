# SPDX-License-Identifier: Apache-2.0
"""The `placement` block of a GPUPolicy: where a GPU pod may run, and where best."""

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.policy.fields import LabelSelector, MemoryText, Merge, Part, VersionText, described


class SharingWish(Enum):
    """What a pod accepts as "one GPU"; the order is from lax to strict."""

    Any = "Any"
    Shared = "Shared"
    Exclusive = "Exclusive"


class ScorerName(Enum):
    """The scorers of app/placement."""

    Packing = "Packing"
    Spreading = "Spreading"
    ProductPreference = "ProductPreference"
    DriverHeadroom = "DriverHeadroom"
    Interconnect = "Interconnect"
    NVLinkDomain = "NVLinkDomain"
    Fragmentation = "Fragmentation"
    MIGLayout = "MIGLayout"


class HealthAction(Enum):
    """What becomes of a node with GPUs in some state of health; the order is from lax to strict."""

    Ignore = "Ignore"
    ScoreDown = "ScoreDown"
    Refuse = "Refuse"


class FormFactor(Enum):
    """How a GPU is built in; SXM2 to SXM6 are SXM (column form_factor of gpu_products.yaml)."""

    PCIe = "PCIe"
    SXM = "SXM"
    Superchip = "superchip"
    SoC = "SoC"


MOST_PRODUCTS = 128
"""Items of a list of products: more than twice the rows of gpu_products.yaml, each is compared with for each pod."""
MOST_IMAGES = 256
"""Rows of a policy's image table; guess. Each is compared with for each container."""


class ProductsWish(Part):
    """Which GPU products. Names are matched by whole tokens: A10 is never an A100.

    A bare word is the family (H100: every H100), a name with NVIDIA- or Tesla- is that one label, and * stands for
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


class ImageTableRow(Part):
    """Images, and the CUDA that is in them."""

    image: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="a reference; * stands for anything"
    )
    cuda: VersionText = Field(description='as "12.4"')
    compat: bool = Field(default=False, description="true: the images carry the cuda-compat package of that CUDA")


class CUDAWish(Part):
    """Which CUDA must run on a node's driver, and how much compatibility is enough.

    Native: the driver is as new as the toolkit. MinorVersion: a driver of the same CUDA major version will do.
    ForwardCompatible: also an older one, on data centre GPUs, by the cuda-compat package in an image known to carry it.
    """

    minimum: VersionText | None = described(Merge.Highest, "at least this CUDA, quoted", "12.4", "12.6", default=None)
    from_image: bool | None = described(
        Merge.Single, "read the need off the image's tag, where the facts know the family", True, False, default=None
    )
    accept: Literal["Native", "MinorVersion", "ForwardCompatible"] | None = described(
        Merge.Strictest, "absent everywhere: ForwardCompatible", "Native", "ForwardCompatible", default=None
    )
    images: tuple[ImageTableRow, ...] = described(
        Merge.InOrder,
        "what is known of your own images; asked before their tags are read",
        [{"image": "registry.example/ml/*", "cuda": "12.4"}],
        [{"image": "registry.example/*", "cuda": "11.8"}],
        default=(),
        strict=False,
        max_length=MOST_IMAGES,
    )

    @property
    def accepted(self) -> AcceptedCompatibility | None:
        """The `accept` field as the compatibility engine's value."""
        return AcceptedCompatibility[self.accept] if self.accept else None


class Score(Part):
    """One scorer and its weight. The total is the weighted mean of the scorers.

    Fragmentation: where the pod strands the fewest GPUs for the pods that are expected. MIGLayout: where its slices
    leave the most room for others. Packing: fill nodes before opening others. Spreading: the emptiest node.
    ProductPreference: the order of products.prefer. DriverHeadroom: native CUDA before minor-version before forward
    compatibility. Interconnect: GPUs joined all-to-all for pods of several, and left alone for pods of one.
    NVLinkDomain: the gpu.clique where the pods of the same Job, JobSet or LeaderWorkerSet are.
    """

    name: Annotated[ScorerName, Field(strict=False)] = Field(description="which scorer")
    weight: Annotated[int, Field(ge=1, le=100)] = Field(default=1, description="its share of the total")


DEFAULT_SCORES: tuple[tuple[ScorerName, int], ...] = (
    (ScorerName.Fragmentation, 5),
    (ScorerName.ProductPreference, 3),
    (ScorerName.DriverHeadroom, 1),
    (ScorerName.MIGLayout, 5),
)
"""The scorers and weights where no policy names any. Fragmentation gives out the most GPUs
(tests/results/placement.md). The others give all nodes the same score where a pod wishes nothing, and their weights are
a guess: a wish outweighs up to some two GPUs of waste, and a driver that runs the image natively half a GPU."""


class HealthWish(Part):
    """What sick GPUs mean for their node: Refuse it, ScoreDown or Ignore.

    Bites only where somebody reports that GPUs are sick: DCGM, or the device plugin by withdrawing them.
    """

    ill: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest,
        "GPUs that must be drained now, by DCGM (XID, ECC, row remapping); absent: Refuse",
        "Refuse",
        "Ignore",
        default=None,
    )
    ailing: Annotated[HealthAction, Field(strict=False)] | None = described(
        Merge.Strictest,
        "GPUs to reset when idle, throttled, or with NVLink errors; absent: ScoreDown",
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


class Placement(Part):
    """Where a GPU pod may run, and where best. Needs of several policies only tighten one another.

    A contradiction (no product left, Exclusive against Shared) refuses the pod and names the policies.
    """

    products: ProductsWish | None = Field(default=None, description="which GPU products")
    cuda: CUDAWish | None = Field(default=None, description="which CUDA must run")
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
        "how the GPU is built in: any of these; absent is all",
        ["SXM", "superchip"],
        ["SXM", "PCIe"],
        default=None,
        strict=False,
    )
    node_selector: LabelSelector | None = described(
        Merge.Union,
        "labels of the nodes that will do, in your own words: a pool, no spot nodes",
        {"matchLabels": {"pool": "training"}},
        {"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]},
        default=None,
    )
    health: HealthWish | None = Field(default=None, description="what sick GPUs mean for their node")
    unknown_facts: Literal["Accept", "Refuse"] | None = described(
        Merge.Strictest,
        "a node whose labels do not tell what is asked; one of unknown product never serves a pod that asks for some",
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
        "Ranked: the best node gets 10 and surely leads, the others 0 to 9; Proportional: 0 to 10 as they scored, so "
        "that other scores of the scheduler weigh more",
        "Proportional",
        "Ranked",
        default=None,
    )
