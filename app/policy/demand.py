# SPDX-License-Identifier: Apache-2.0
"""Demand: all that a pod needs of a node, compiled from its spec, its annotations and the policies.

Filters and scorers get a Demand and never a policy. A Demand is hashable, since kube-scheduler sends many equal pods
and the verdicts on a Demand are cached. ExpectedDemand is the probable needs of future pods, for the scorers that leave
room for them.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Any

from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed
from app.knowledge.image_code import ImageBuild
from app.knowledge.images import ImagePlatform
from app.knowledge.products import ProductPattern
from app.kube.claimed_devices import DeviceChoices
from app.kube.numa_zones import DeviceAmounts
from app.policy.schema_placement import HealthAction, ScorerName, SharingWish
from app.values.computations import HashedOnce
from app.values.label_requirements import Requirement
from app.values.reasons import Reason


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


@dataclass(frozen=True, slots=True)
class ProductLimit:
    """The most units of products of these patterns that a namespace holds, and how many it holds besides the pod."""

    patterns: tuple[ProductPattern, ...]
    most: int
    used: int = 0

    def concerns(self, product: str) -> bool:
        """Tell whether a product, in normal form, counts."""
        return any(pattern.matches(product) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class HealthRules:
    """The consequences of unhealthy GPUs for their node: unhealthy GPUs (`ill`), degraded GPUs (`ailing`), withdrawn
    devices, bad conditions.

    The defaults apply without a policy. They have an effect only where GPU health is reported.
    """

    ill: HealthAction = HealthAction.Refuse
    ailing: HealthAction = HealthAction.ScoreDown
    withdrawn: HealthAction = HealthAction.ScoreDown
    conditions: HealthAction = HealthAction.ScoreDown


HEALTH = HealthRules()
DEFAULT_ACCEPT = AcceptedCompatibility.ForwardCompatible
"""The least CUDA compatibility that is accepted without a policy: all that image and driver can do together."""


@dataclass(frozen=True, slots=True)
class Demand(HashedOnce):
    """The needs of a pod. A need that the pod does not have is None, empty or zero.

    `resources` are the requested GPU resources with units, sorted. `max_per_container` is the largest amount of each
    that one container requests, and `several_units` says whether policies allow several units of a shared GPU there:
    False where one denies them, True where one says that the device plugin gives them, else None.
    `products` are lists of patterns, of each of which one must match; `denied_products` must not match, and
    `preferred_products` are in order, for the score only.
    `cuda` are the CUDA needs of its containers, which must all be met; `preferred_cuda` are for the score only.
    `accept` is the least compatibility that counts as meeting them.
    `platforms` are the machines that its images are built for, and `builds` what their frameworks were compiled for.
    `declared_mib` is the memory that the pod itself declares to use of each unit, which counts against the budget of
    shared GPUs. `mig_profile` is (profile, whether larger profiles qualify too).
    `others` are the needs that are read through their rows alone (policy/needs.py), by name.
    `node_selector` are requirements on the node's labels. `namespace_limits` are limits of its namespace, without what
    is used, and `reached_limits` those that it would exceed now, with what is used.
    `group_cliques` are the NVLink domains in which pods of its
    workload run. `refuse_unknown` says that an unknown fact does not meet a need.
    `topology_manager` says that a node whose kubelet would refuse the pod is refused, by `device_amounts`, which are
    what the kubelet is asked for at once; empty where it does not count.
    `scores` are pairs of scorer and weight, empty for the default; `ranked` says that the
    best node gets 10 on the wire and all others at most 9.
    `share_milli` is the requested share of one GPU in thousandths; 0 for whole units.
    `cpu_milli` is the requested CPU, and `expected_demand` describes future pods; both are set only if a scorer needs
    them to leave room for those pods.
    `claims` are pairs of DeviceClass and devices (None for all of a node) that DRA allocates; kube-scheduler counts
    them. `device_requests` are the requests behind them, each with its alternatives and their selectors.
    `runtime_handler` is that of the pod's RuntimeClass; empty without a class, and for one that is not known.
    `invalid` is the reason why no node can serve the pod: an annotation that does not parse, or claims for too many
    GPUs.
    `requests_gpus` says that the pod requests GPUs by resource or by claim; filters judge no other pods.
    """

    resources: tuple[tuple[str, int], ...] = ()
    products: tuple[tuple[ProductPattern, ...], ...] = ()
    denied_products: tuple[ProductPattern, ...] = ()
    preferred_products: tuple[ProductPattern, ...] = ()
    cuda: tuple[CUDANeed, ...] = ()
    preferred_cuda: tuple[CUDANeed, ...] = ()
    accept: AcceptedCompatibility = DEFAULT_ACCEPT
    platforms: tuple[ImagePlatform, ...] = ()
    builds: tuple[ImageBuild, ...] = ()
    max_per_container: tuple[tuple[str, int], ...] = ()
    several_units: bool | None = None
    declared_mib: int = 0
    sharing: SharingWish = SharingWish.Any
    mig_profile: tuple[str, bool] | None = None
    others: tuple[tuple[str, Any], ...] = ()
    node_selector: tuple[Requirement, ...] = ()
    namespace_limits: tuple[ProductLimit, ...] = ()
    reached_limits: tuple[ProductLimit, ...] = ()
    health: HealthRules = HEALTH
    group_cliques: frozenset[str] = frozenset()
    refuse_unknown: bool = False
    topology_manager: bool = False
    device_amounts: tuple[DeviceAmounts, ...] = ()
    scores: tuple[tuple[ScorerName, int], ...] = ()
    ranked: bool = True
    claims: tuple[tuple[str, int | None], ...] = ()
    device_requests: tuple[DeviceChoices, ...] = ()
    invalid: Reason | None = None
    share_milli: int = 0
    cpu_milli: int = 0
    expected_demand: ExpectedDemand | None = None
    runtime_handler: str = ""
    warned: "Demand | None" = field(default=None)
    """The demand including the policies with action Warn; nodes that do not meet it score lower."""
    requests_gpus: bool = field(init=False, default=False, compare=False, repr=False)
    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        """Compute what each call of the scheduler asks several times."""
        object.__setattr__(self, "requests_gpus", bool(self.resources or self.claims))

    @property
    def label_keys(self) -> tuple[str, ...]:
        """List the node labels on which the pod has requirements."""
        return tuple(dict.fromkeys(requirement.key for requirement in self.node_selector))

    @property
    def gpus(self) -> int:
        """Count the requested units and claimed devices."""
        return sum(amount for _, amount in self.resources) + self.claimed

    @property
    def claimed(self) -> int:
        """Count the devices of claims, of alternatives the most; a request for all devices of a node counts as two.

        Those of an extended resource are counted by its units.
        """
        counted = (choices for choices in self.device_requests if choices[0].counted)
        return sum(max(2 if choice.count is None else choice.count for choice in choices) for choices in counted)
