# SPDX-License-Identifier: Apache-2.0
"""MIG profiles: the size of a slice by product, since one name may be of two sizes (such as `1g.10gb`)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.knowledge.products import normal_form
from app.values.errors import BadInput

RESOURCE_FORM = "/mig-"
"""What stands between a vendor's domain and a MIG profile in a resource name (MIG strategy mixed of the device plugin).
The domain is that of `mig_prefix` in families.yaml, and no other family may have resources of this form."""
_PROFILE = re.compile(r"(?P<compute>\d)g\.(?P<memory>\d{1,3})gb(?P<extra>(?:[.+]me(?:\.all)?|[.+]gfx|-me)?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class SliceSize:
    """The size of a MIG slice: its compute slices, and its nominal memory in MiB (GiB x 1024)."""

    compute: int
    memory_mib: int

    def covers(self, other: "SliceSize") -> bool:
        """Tell whether this slice has at least as many compute slices and as much memory as another."""
        return self.compute >= other.compute and self.memory_mib >= other.memory_mib


@dataclass(frozen=True, slots=True)
class MIGProfiles:
    """The sizes by product in normal form and profile as in resource names, and the profiles by product."""

    sizes: Mapping[tuple[str, str], SliceSize]
    by_product: Mapping[str, tuple[str, ...]]

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
    return match and SliceSize(int(match["compute"]), int(match["memory"]) * 1024)


def load_profiles(rows: Iterable[Mapping[str, Any]]) -> MIGProfiles:
    """Index the `products` of mig_profiles.yaml."""
    sizes = {}
    for row in rows:
        for profile in row["profiles"]:
            name = profile["profile"].replace("+", ".")
            size = SliceSize(profile["compute_slices"], profile["memory_gb"] * 1024)
            sizes.update({(normal_form(product), name): size for product in row["gfd_products"]})
    by_product: dict[str, list[str]] = {}
    for product, name in sorted(sizes):
        by_product.setdefault(product, []).append(name)
    return MIGProfiles(sizes, {product: tuple(names) for product, names in by_product.items()})
