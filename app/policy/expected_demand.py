# SPDX-License-Identifier: Apache-2.0
"""Outlook: what pods to come are expected to ask, for the scorers that leave room for them."""

from dataclasses import dataclass

from app.knowledge.products import ProductPattern


@dataclass(frozen=True, slots=True)
class DemandClass:
    """A class of demands: what decides where the next one of them would run.

    `gpus`: whole GPUs, or 1 of which `share_milli` thousandths are asked (0: all of it); 0 for a pod without GPU.
    `products`, `denied_products`: as in Demand.
    """

    cpu_milli: int = 0
    gpus: int = 0
    share_milli: int = 0
    products: tuple[tuple[ProductPattern, ...], ...] = ()
    denied_products: tuple[ProductPattern, ...] = ()

    @property
    def milli(self) -> int:
        """GPU milli that it asks in all."""
        return self.share_milli or 1000 * self.gpus

    @property
    def constrained(self) -> bool:
        """Tell whether some products will not do."""
        return bool(self.products or self.denied_products)


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedDemand:
    """Classes with their probabilities, which sum to 1, most popular first. One object is one generation: two are
    never equal.

    So a Demand that carries another outlook is another Demand, and nothing that is remembered of the old one is used.
    `free`: GPU milli that were free by product when it was made, in normal form.
    """

    asks: tuple[tuple[DemandClass, float], ...]
    free: tuple[tuple[str, int], ...] = ()
