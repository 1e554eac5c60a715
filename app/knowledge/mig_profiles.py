# SPDX-License-Identifier: Apache-2.0
"""MIG profiles: the size of a slice by product, since one name may be of two sizes (such as `1g.10gb`)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.knowledge.products import normal_form
from app.values.errors import BadInput

RESOURCE_FORM = "/mig-"
"""What stands between a vendor's domain and a MIG profile in a resource name (MIG strategy mixed of the device plugin).
The domain is that of `mig_prefix` in families.yaml, and no other family may have resources of this form."""
_PROFILE = re.compile(
    r"(?P<compute>\d)g\.(?P<memory>\d{1,3})gb(?P<extra>(?:[.+](?:me\.all|me|gfx)){0,2}|-me)(?![\w.+-])", re.ASCII
)
NO_MEDIA, SHARE_OF_MEDIA, MEDIA, ALL_MEDIA = range(4)
"""The media engines of a slice, each with at least those before: none (-me), the share of its compute slices (no
suffix), a JPEG and an OFA engine besides (+me), all of the GPU (+me.all, and a slice of all seven compute slices).
Source: MIG User Guide, profiles of A100 and of RTX PRO 6000 (hardware units by profile)."""
_COMPUTE_SLICES_OF_LARGE_GPUS = 7


@dataclass(frozen=True, slots=True)
class SliceSize:
    """The size of a MIG slice: its compute slices, and its nominal memory in MiB (GiB x 1024).

    `media` are its media engines, SHARE_OF_MEDIA and the others; `graphics` says that graphics APIs run on it (+gfx).
    """

    compute: int
    memory_mib: int
    media: int = SHARE_OF_MEDIA
    graphics: bool = False

    def covers(self, other: "SliceSize") -> bool:
        """Tell whether this slice has everything that another has; sizes are only partly ordered by it."""
        media = ALL_MEDIA if self.compute == _COMPUTE_SLICES_OF_LARGE_GPUS else self.media
        enough = self.compute >= other.compute and self.memory_mib >= other.memory_mib
        return enough and media >= other.media and self.graphics >= other.graphics

    def is_size_of(self, other: "SliceSize") -> bool:
        """Tell whether two slices have the same compute slices and memory, whatever their engines."""
        return (self.compute, self.memory_mib) == (other.compute, other.memory_mib)


@dataclass(frozen=True, slots=True)
class MIGProfiles:
    """The sizes by product in normal form and profile as in resource names, and the profiles by product.

    `layouts_without_slices` are the values of nvidia.com/mig.config by which no GPU gets a slice.
    """

    sizes: Mapping[tuple[str, str], SliceSize]
    by_product: Mapping[str, tuple[str, ...]]
    layouts_without_slices: frozenset[str] = frozenset()

    def profiles(self, product: str) -> tuple[str, ...]:
        """List the profiles of a product (normal form), as labels and resource names write them, sorted."""
        return self.by_product.get(product, ())

    def size(self, product: str | None, profile: str) -> SliceSize | None:
        """Give the size of a profile of a product; if the table lacks it, the nominal size in the profile's name."""
        size = self.sizes.get((normal_form(product), profile)) if product else None
        return size or nominal_size(profile)


def profile_of(resource: str) -> str | None:
    """Read the profile from a resource name: `1g.10gb.me` for `nvidia.com/mig-1g.10gb.me.shared`; None for others."""
    if RESOURCE_FORM not in resource:
        return None
    return resource.partition(RESOURCE_FORM)[2].removesuffix(".shared")


def parse_profile(text: str) -> tuple[str, bool]:
    """Read `1g.10gb` or `>=1g.10gb` (docs/reference/sharing-and-memory.md#mig-at-least).

    Returns the profile as resource names write it (`.` for `+`), and whether larger profiles qualify too.
    Raises BadInput.
    """
    stripped = text.strip()
    at_least = stripped.startswith(">=")
    name = stripped.removeprefix(">=").strip()
    if not _PROFILE.fullmatch(name):
        raise BadInput(f"mig-profile: got {text[:40]!r}, wants a profile such as 1g.10gb or >=1g.10gb")
    return name.replace("+", "."), at_least


def nominal_size(profile: str) -> SliceSize | None:
    """Read the size of a slice from the name of its profile; None if the name has another form than NVIDIA's."""
    match = _PROFILE.fullmatch(profile)
    return match and _size(int(match["compute"]), int(match["memory"]), match["extra"])


def _size(compute: int, memory_gb: int, extra: str) -> SliceSize:
    """Make a size; `extra` is what follows the memory in the profile's name."""
    media = NO_MEDIA if extra == "-me" else ALL_MEDIA if "me.all" in extra else MEDIA if "me" in extra else None
    return SliceSize(compute, memory_gb * 1024, SHARE_OF_MEDIA if media is None else media, "gfx" in extra)


def profile_in_layout(layout: str) -> str | None:
    """Read the profile in the name of a MIG layout, such as all-1g.10gb.me; None for a name without one."""
    match = _PROFILE.search(layout)
    return match and match[0]


def load_profiles(document: Mapping[str, Any]) -> MIGProfiles:
    """Read mig_profiles.yaml."""
    sizes = {}
    for row in document["products"]:
        for profile in row["profiles"]:
            name = profile["profile"].replace("+", ".")
            extra = profile["profile"].partition("gb")[2]
            size = _size(profile["compute_slices"], profile["memory_gb"], extra)
            sizes.update({(normal_form(product), name): size for product in row["gfd_products"]})
    by_product: dict[str, list[str]] = {}
    for product, name in sorted(sizes):
        by_product.setdefault(product, []).append(name)
    profiles = {product: tuple(names) for product, names in by_product.items()}
    return MIGProfiles(sizes, profiles, frozenset(document["layouts_without_slices"]["names"]))
