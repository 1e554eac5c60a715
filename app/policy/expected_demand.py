# SPDX-License-Identifier: Apache-2.0
"""Expected demand: the probable needs of future pods, for the scorers that leave room for them."""

from dataclasses import dataclass
from math import inf

from app.knowledge.products import ProductPattern


@dataclass(frozen=True, slots=True)
class DemandClass:
    """A class of demands that are equal in what decides where such a pod can run.

    `gpus` is the number of whole GPUs; it is 1 also for a share of one GPU, of `share_milli` thousandths (0 for a whole
    one), and 0 for a pod without GPUs. `products` and `denied_products` are as in Demand.
    """

    cpu_milli: int = 0
    gpus: int = 0
    share_milli: int = 0
    products: tuple[tuple[ProductPattern, ...], ...] = ()
    denied_products: tuple[ProductPattern, ...] = ()

    @property
    def milli(self) -> int:
        """The requested GPU capacity in thousandths of a GPU."""
        return self.share_milli or 1000 * self.gpus

    @property
    def constrained(self) -> bool:
        """Tell whether the class is limited to some products."""
        return bool(self.products or self.denied_products)

    @property
    def limit(self) -> "DemandClass":
        """The limit of the class to some products, as a class without amounts."""
        return DemandClass(products=self.products, denied_products=self.denied_products)


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedDemand:
    """The classes of demands with their probabilities, which sum to 1, most probable first.

    `free` is the free GPU capacity of the cluster in thousandths, by product in normal form, when the object was made.
    `seen_milli` is the GPU capacity that the pods requested from which this was learnt; infinite where it is known.
    `limits` are pairs of a limit to some products, as a class without amounts, and the share of the requested GPU
    capacity that pods with this limit request; None where the classes show it.
    Objects are compared by identity, so that a Demand with a newer one is a different key in all caches.
    """

    classes: tuple[tuple[DemandClass, float], ...]
    free: tuple[tuple[str, int], ...] = ()
    seen_milli: float = inf
    limits: tuple[tuple[DemandClass, float], ...] | None = None
