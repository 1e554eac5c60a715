# SPDX-License-Identifier: Apache-2.0
"""Clouds: what their node labels tell of GPUs where GPU Feature Discovery has said nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Clouds:
    """Label keys with what their values mean: a product, a sharing strategy; `slices` hold a MIG profile."""

    products: Mapping[str, Mapping[str, str]]
    sharing: Mapping[str, Mapping[str, str]]
    slices: tuple[str, ...]

    def product(self, labels: Mapping[str, str]) -> str | None:
        """Name the product as GFD would, with its MIG suffix; None if no label tells."""
        named = _look_up(self.products, labels)
        profile = next((labels[key] for key in self.slices if labels.get(key)), None)
        return f"{named}-MIG-{profile}" if named and profile else named

    def sharing_strategy(self, labels: Mapping[str, str]) -> str | None:
        """Name the sharing strategy as GFD would; None if no label tells."""
        return _look_up(self.sharing, labels)


def _look_up(tables: Mapping[str, Mapping[str, str]], labels: Mapping[str, str]) -> str | None:
    found = (values.get(labels[key]) for key, values in tables.items() if key in labels)
    return next((value for value in found if value), None)


def load_clouds(document: Mapping[str, Any]) -> Clouds:
    """Read clouds.yaml."""
    return Clouds(
        products={row["key"]: row["values"] for row in document["product_labels"]},
        sharing={row["key"]: row["values"] for row in document["sharing_labels"]},
        slices=tuple(row["key"] for row in document["slice_labels"]),
    )
