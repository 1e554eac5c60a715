# SPDX-License-Identifier: Apache-2.0
"""The prices of GPUs, by product and hour, that an operator gives."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.mig_geometry import Geometry
from app.knowledge.products import normal_form
from app.values.errors import BadInput

MOST_PRODUCTS = 1_000
"""Products of a file; the table of products has some hundred."""
LONGEST_CURRENCY = 16
FIELDS = {"currency", "products"}


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of an hour. `gpus` are by product in normal form, `slices` by product and MIG profile.

    `speeds` compare products: how fast one is beside another, in any unit. Nobody but the operator can say that.
    A slice without a price of its own costs its part of the GPU: the larger of its parts of the memory slices and of
    the compute slices (`geometry`). None is unknown, and never guessed.
    """

    currency: str | None = None
    gpus: Mapping[str, float] = field(default_factory=dict)
    slices: Mapping[tuple[str, str], float] = field(default_factory=dict)
    geometry: Mapping[str, Geometry] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)

    def per_hour(self, model: str, profile: str) -> float | None:
        """Give the price of an hour of a GPU, or of a slice of it; `model` is as labels or DCGM write it."""
        product = product_form(model)
        whole = self.gpus.get(product)
        if not profile:
            return whole
        own = self.slices.get((product, profile))
        part = part_of_gpu(self.geometry.get(product), profile)
        return own if own is not None else whole * part if whole is not None and part is not None else None


NO_PRICES = Prices()


def product_form(model: str) -> str:
    """Reduce a product to its normal form; DCGM writes blanks where labels of nodes have hyphens."""
    return normal_form("-".join(model.split()))


def part_of_gpu(geometry: Geometry | None, profile: str) -> float | None:
    """Give the part of a GPU that a slice takes from others; None for an unknown product or profile."""
    slot = geometry.slots.get(profile.replace("+", ".")) if geometry else None
    if geometry is None or slot is None:
        return None
    return max(slot.length / geometry.memory_total, slot.compute / geometry.compute_total)


def read_prices(document: Any, geometry: Mapping[str, Geometry], where: str) -> Prices:
    """Read a document of prices: `currency`, and `products` by label, each a price, or a mapping.

    The mapping has the price of a whole one (`gpu`), of slices by profile, and the product's `speed` beside others.

    Raises BadInput. `where` names the file.
    """
    if not isinstance(document, dict) or not document.keys() <= FIELDS:
        raise BadInput(f"{where}: wants a mapping with currency and products")
    currency, products = document.get("currency", ""), document.get("products")
    if not isinstance(currency, str) or len(currency) > LONGEST_CURRENCY or not currency.isprintable():
        raise BadInput(f"{where}: currency: wants at most {LONGEST_CURRENCY} characters, such as EUR")
    if not isinstance(products, dict) or not products or len(products) > MOST_PRODUCTS:
        raise BadInput(f"{where}: products: wants 1 to {MOST_PRODUCTS} products with the price of an hour")
    gpus, slices, speeds = {}, {}, {}
    for name, value in products.items():
        product, inside = product_form(str(name)), f"{where}: products: {str(name)[:60]}"
        rows = value if isinstance(value, dict) else {"gpu": value}
        for part, price in rows.items():
            amount = _price(price, f"{inside}: {str(part)[:20]}")
            if part == "gpu":
                gpus[product] = amount
            elif part == "speed":
                speeds[product] = amount
            else:
                slices[product, str(part).replace("+", ".")] = amount
    if 0 in speeds.values():
        raise BadInput(f"{where}: speed: got 0, wants a number such as 1 or 2.5")
    return Prices(currency, gpus, slices, geometry, speeds)


def _price(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise BadInput(f"{where}: got {str(value)[:20]!r}, wants the price of an hour, such as 2.5")
    return float(value)
