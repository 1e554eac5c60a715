# SPDX-License-Identifier: Apache-2.0
"""Demand: all that a pod needs of a node, compiled from its spec, its annotations and the policies.

Filters and scorers see a Demand and never a policy. It is hashable: the scheduler asks again and again
for equal pods, and the edge keeps the verdicts of a Demand for as long as it is asked.
"""

from dataclasses import dataclass, field

from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed
from app.knowledge.products import ProductPattern
from app.policy.expected_demand import ExpectedDemand
from app.policy.schema_placement import FormFactor, HealthAction, ScorerName, SharingWish
from app.values.hashing import HashedOnce
from app.values.label_requirements import Requirement
from app.values.reasons import Reason
from app.values.versions import Version


@dataclass(frozen=True, slots=True)
class HealthRules:
    """What sick GPUs of a node mean: those to be drained now, those that ail, devices that their plugin withdrew.

    The defaults hold where no policy says anything: they bite only where somebody reports that a GPU is sick.
    """

    ill: HealthAction = HealthAction.Refuse
    ailing: HealthAction = HealthAction.ScoreDown
    withdrawn: HealthAction = HealthAction.ScoreDown


HEALTH = HealthRules()
DEFAULT_ACCEPT = AcceptedCompatibility.ForwardCompatible
"""How much CUDA compatibility is enough where no policy says it: what the image and the driver can do together."""


@dataclass(frozen=True, slots=True)
class Demand(HashedOnce):
    """What a pod asks. Nothing asked of a fact is None, empty or zero.

    `resources`: (GPU resource, units), sorted. `products`: lists of which each must be met by any of its
    patterns. `cuda`: needs of its containers, all of which must be met; `cuda_wishes`: the same, for the score
    only. `memory_mib`: per GPU or slice. `declared_mib`: what the pod itself says it uses of each unit, which counts
    against the budget of shared GPUs. `most`: the largest amount of a resource that one container asks.
    `mig_profile`: (profile, larger ones will do). `form_factors`: any of them; None is all. `node_selector`: on the
    node's labels. `group_cliques`: NVLink domains in which pods of its group run. `scores`: (scorer, weight).
    `share_milli`: thousandths of one GPU, where a share of one is asked that is given out by measure; 0: whole units.
    `cpu_milli`, `outlook`: what the pod asks besides GPUs, and what pods to come may ask; for scorers that leave room
    for those, filled where one is in use.
    `claims`: (DeviceClass, devices; None is all) that DRA is to give; kube-scheduler counts those.
    `invalid`: why the pod itself can be judged nowhere (an annotation that does not parse).
    """

    resources: tuple[tuple[str, int], ...] = ()
    products: tuple[tuple[ProductPattern, ...], ...] = ()
    denied_products: tuple[ProductPattern, ...] = ()
    preferred_products: tuple[ProductPattern, ...] = ()
    cuda: tuple[CUDANeed, ...] = ()
    cuda_wishes: tuple[CUDANeed, ...] = ()
    accept: AcceptedCompatibility = DEFAULT_ACCEPT
    most: tuple[tuple[str, int], ...] = ()
    memory_mib: int = 0
    declared_mib: int = 0
    compute_capability: Version | None = None
    sharing: SharingWish = SharingWish.Any
    mig_profile: tuple[str, bool] | None = None
    nvlink: bool = False
    form_factors: frozenset[FormFactor] | None = None
    node_selector: tuple[Requirement, ...] = ()
    health: HealthRules = HEALTH
    group_cliques: frozenset[str] = frozenset()
    refuse_unknown: bool = False
    scores: tuple[tuple[ScorerName, int], ...] = ()
    ranked: bool = True
    claims: tuple[tuple[str, int | None], ...] = ()
    invalid: Reason | None = None
    share_milli: int = 0
    cpu_milli: int = 0
    outlook: ExpectedDemand | None = None
    warned: "Demand | None" = field(default=None)
    """What policies with action Warn ask besides: nodes that miss it score lower."""
    __hash__ = HashedOnce.__hash__

    @property
    def label_keys(self) -> tuple[str, ...]:
        """List the node labels that the node selectors look at."""
        return tuple(dict.fromkeys(each.key for each in self.node_selector))

    @property
    def judged(self) -> bool:
        """Tell whether there is anything to judge: some GPU resource is asked, or claimed."""
        return bool(self.resources or self.claims)
