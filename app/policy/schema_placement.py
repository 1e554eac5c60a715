# SPDX-License-Identifier: Apache-2.0
"""The `placement` block of a GPUPolicy: where a GPU pod may run, and where best."""

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from app.knowledge.cuda import Accept
from app.policy.fields import LabelSelector, MemoryText, Part, VersionText


class SharingWish(Enum):
    """What a pod accepts as "one GPU"; the order is from lax to strict."""

    Any = "Any"
    Shared = "Shared"
    Exclusive = "Exclusive"


class ScorerName(Enum):
    """The scorers of placement/scores.py."""

    Packing = "Packing"
    Spreading = "Spreading"
    ProductPreference = "ProductPreference"
    DriverHeadroom = "DriverHeadroom"
    Interconnect = "Interconnect"
    NVLinkDomain = "NVLinkDomain"
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


class ProductsWish(Part):
    """Which GPU products; names, families (`H100`) or patterns (`NVIDIA-A100-SXM4-*`)."""

    allow: tuple[str, ...] | None = Field(default=None, strict=False, description="any of these; absent is all")
    deny: tuple[str, ...] = Field(default=(), strict=False, description="none of these")
    prefer: tuple[str, ...] | None = Field(default=None, strict=False, description="best first")


class ImageTableRow(Part):
    """Images, and the CUDA that is in them."""

    image: Annotated[str, Field(min_length=1)] = Field(description="a reference; * stands for anything")
    cuda: VersionText = Field(description='as "12.4"')


class CUDAWish(Part):
    """Which CUDA must run, and how much compatibility is enough."""

    minimum: VersionText | None = Field(default=None, description='at least this CUDA, as "12.4"')
    from_image: bool | None = Field(default=None, description="infer the need from the image's tag")
    accept: Literal["Native", "MinorVersion", "ForwardCompatible"] | None = None
    images: tuple[ImageTableRow, ...] = Field(
        default=(), strict=False, description="what is known of your own images; asked before their tags are read"
    )

    @property
    def accepted(self) -> Accept | None:
        """The `accept` field as the compatibility engine's value."""
        return Accept[self.accept] if self.accept else None


class Score(Part):
    """One scorer and its weight."""

    name: Annotated[ScorerName, Field(strict=False)]
    weight: Annotated[int, Field(ge=1, le=100)] = 1


class HealthWish(Part):
    """What sick GPUs of a node mean for it."""

    ill: Annotated[HealthAction, Field(strict=False)] | None = Field(
        default=None, description="GPUs that must be drained now, by DCGM (XID, ECC, row remapping); absent: Refuse"
    )
    ailing: Annotated[HealthAction, Field(strict=False)] | None = Field(
        default=None, description="GPUs to reset when idle, throttled, or with NVLink errors; absent: ScoreDown"
    )
    unhealthy_devices: Annotated[HealthAction, Field(strict=False)] | None = Field(
        default=None, description="devices that the device plugin has withdrawn; absent: ScoreDown"
    )


class Placement(Part):
    """Where a GPU pod may run, and where best."""

    products: ProductsWish | None = None
    cuda: CUDAWish | None = None
    gpu_memory: MemoryText | None = Field(default=None, description="at least, per GPU or slice, as 40Gi")
    compute_capability: VersionText | None = Field(default=None, description='at least, as "8.0"')
    sharing: Annotated[SharingWish, Field(strict=False)] | None = None
    interconnect: Literal["NVLink"] | None = None
    form_factor: tuple[Annotated[FormFactor, Field(strict=False)], ...] | None = Field(
        default=None, strict=False, description="how the GPU is built in: any of these; absent is all"
    )
    node_selector: LabelSelector | None = Field(default=None, description="labels of the nodes that will do")
    health: HealthWish | None = None
    unknown_facts: Literal["Accept", "Refuse"] | None = Field(
        default=None, description="what an unlabelled node is worth"
    )
    scores: tuple[Score, ...] | None = Field(default=None, strict=False)
    score_spread: Literal["Ranked", "Proportional"] | None = None
