# SPDX-License-Identifier: Apache-2.0
"""Scorers: functions that score how well a node that fits would serve a demand, in [0, 1]; higher is better.

Packing and Spreading score the share of a node's GPUs in use (F49, F50). Fragmentation scores how much GPU capacity a
placement wastes for expected pods: it adds three losses in thousandths of a GPU, which are waste
(unusable_capacity.py), share prices and scarcity (capacity_prices.py).

Penalties halve the total of a node that fits; the tuple at the end lists them, and explain shows their names.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from app.knowledge.cuda_compatibility import Compatibility, CUDANeed, judge_driver
from app.knowledge.mig_profiles import RESOURCE_FORM, profile_of
from app.nodes.model import SHARED_UNITS, WHOLE_MILLI, Node, NodeClass
from app.placement.capacity_prices import scarcity, share_prices
from app.placement.class_filters import lacks_code
from app.placement.mig_slices import exceeds_all_gpus, headroom_loss, profiles_of, requested_slices
from app.placement.unusable_capacity import STATES_KEPT, GPUs, WasteByCPU, free_gpus, placements
from app.policy.demand import Demand, ExpectedDemand
from app.policy.schema_placement import DEFAULT_SCORES, HealthAction, ScorerName


def packing(demand: Demand, node: Node) -> float:
    """Prefer the fullest node: the score is the share of its units in use with the pod."""
    return _used_share(demand, node)


def spreading(demand: Demand, node: Node) -> float:
    """Prefer the emptiest node: the score is the share of its units that stay free with the pod."""
    return 1.0 - _used_share(demand, node)


def _used_share(demand: Demand, node: Node) -> float:
    if demand.share_milli and node.free.gpus:
        return 1.0 - max(0, sum(node.free.gpus) - demand.share_milli) / (WHOLE_MILLI * len(node.free.gpus))
    if demand.claims and not demand.resources and node.free.gpus:
        return _used_share_with_claims(demand, node, node.free.gpus)
    shares, counted, offered = 0.0, 0, dict(node.node_class.offered)
    for resource, amount in demand.resources:
        if total := offered.get(resource, 0):
            left = min(total, max(0, node.free.units.get(resource, 0) - amount))
            shares += 1.0 - left / total
            counted += 1
    return shares / counted if counted else 0.0


def _used_share_with_claims(demand: Demand, node: Node, free_gpus: tuple[int, ...]) -> float:
    """Give the share of a node's GPUs in use with the pod, whose claims are for whole GPUs.

    A MIG device counts as nothing, because how much of a GPU it is differs from claim to claim.
    """
    everything = any(count is None for _, count in demand.claims)
    whole = 0 if node.node_class.mig_profile else WHOLE_MILLI * sum(count or 0 for _, count in demand.claims)
    left = 0 if everything else max(0, sum(free_gpus) - whole)
    return 1.0 - left / (WHOLE_MILLI * len(free_gpus))


LEVEL_MILLI = 40.0
"""Thousandths of a GPU in one level. Nodes of one level get equal scores, so that the order of names fills them one
after another. It is the step of the published scheduler plugin, int(100 x sigmoid(x / 1000)), at 0. Values from 10 to
200 differ by at most 0.1 percentage points of allocated GPUs in the benchmark (docs/placement.md)."""
PRICE = 20.0
"""The weight of a GPU lost in share prices against a GPU of waste, so that the price decides first. Values from 5 to 40
are alike in the benchmark; 0 costs 0.35 percentage points of allocated GPUs on the published trace, and 1.3 on the
trace of shares alone."""
HALF_WAY = 25.0
"""Levels, together one GPU, at which the score is half-way between the middle and its end, so that one GPU counts as
much as a quarter of the range of another scorer. A guess."""
BESIDE_FREE = 0.1
"""The part of a free GPU that a pod without GPUs costs beside it. Such pods are spread over nodes that score alike, and
without this each idle node gets one, so that pods that need most of a node's CPU find none. On the synthetic trace (60
nodes, six seeds) 0 costs 0.2 percentage points of allocated GPUs, 0.3 with gpuspec33 and 3 with cpu250; values from 0.1
to 0.4 differ by 0.2 at most with a shortlist."""
NOTHING_WASTED = 0.5
"""The score of a placement that neither wastes nor saves GPU capacity."""
SCORES_KEPT = 1 << 13
"""Combinations of a demand, a product and free GPUs in the cache; one takes some 1.5 kB, and 64 demands on the fleet of
`make bench` have 4,600."""

ScoreByCPU = Callable[[int | None], float]
"""The score of a node by its free CPU in thousandths of a core, None if that is not known."""


def fragmentation(demand: Demand, node: Node) -> float:
    """Prefer the node where the pod wastes the least GPU capacity for expected pods, or uses what they cannot use.

    It scores as Packing before any pod was seen, and for MIG slices, whose layout it does not know. For a pod without
    GPUs a node without GPUs is best; before any GPU pod was seen, all nodes with GPUs are alike to it.
    """
    return fragmentation_by_cpu(demand, node)(node.free_cpu_milli)


def fragmentation_by_cpu(demand: Demand, node: Node) -> ScoreByCPU:
    """Give the score of nodes that differ from a node at most in their free CPU."""
    if not demand.requests_gpus and not node.has_gpus:
        same = 1.0
    elif demand.expected_demand is None or not _counts_gpus(demand):
        same = packing(demand, node) if demand.requests_gpus else NOTHING_WASTED
    else:
        return _score_by_cpu(demand, demand.expected_demand, node.node_class.product, free_gpus(node.free))
    return lambda _cpu: same


@lru_cache(SCORES_KEPT)
def _score_by_cpu(demand: Demand, expected_demand: ExpectedDemand, product: str | None, gpus: GPUs) -> ScoreByCPU:
    """Give the score by the gain of placing a pod on a node in whole levels, rounded down; 0 if it does not fit.

    A share takes the fullest GPU on which it fits. Where GPUs are only counted it takes an idle GPU, on which no
    requested size has a loss by the prices.
    """
    possible = placements(gpus, sum(amount for _, amount in demand.resources), demand.share_milli)
    if not possible:
        return lambda _cpu: 0.0
    after = possible[0]
    now, then = WasteByCPU(expected_demand, product, gpus), WasteByCPU(expected_demand, product, after)
    scarce = scarcity(expected_demand).get(product or "", 0.0) * (sum(gpus) - sum(after))
    price = _price(demand, expected_demand, gpus)

    def score(cpu: int | None) -> float:
        left = None if cpu is None else cpu - demand.cpu_milli
        gain = now.wasted_milli(cpu) - then.wasted_milli(left) - scarce - price
        level = int(gain // LEVEL_MILLI)
        return NOTHING_WASTED + level / (HALF_WAY + abs(level)) / 2

    return score


def _price(demand: Demand, expected_demand: ExpectedDemand, gpus: GPUs) -> float:
    """Give the loss by the prices of a share on the fullest GPU on which it fits; 0 for whole GPUs.

    A pod without GPUs pays for each free GPU of the node (BESIDE_FREE).
    """
    if not demand.requests_gpus:
        return BESIDE_FREE * sum(gpus)
    priced = share_prices(expected_demand) if demand.share_milli else None
    if priced is None:
        return 0.0
    tightest = min(size for size in gpus if size >= demand.share_milli)
    return PRICE * WHOLE_MILLI * priced.loss(tightest, demand.share_milli)


@lru_cache(STATES_KEPT)
def _counts_gpus(demand: Demand) -> bool:
    """Tell whether the demand is for GPUs by resource, or for none; MIG slices and claims are not scored here."""
    return not any(profile_of(name) for name, _ in demand.resources) and bool(demand.resources or not demand.claims)


Scorer = Callable[[Demand, Node], float]


def product_preference(demand: Demand, node: Node) -> float:
    """Prefer products in the order of the policy; products that it does not list come last."""
    product = node.node_class.product
    for position, pattern in enumerate(demand.preferred_products):
        if product is not None and pattern.matches(product):
            return 1.0 - position / len(demand.preferred_products)
    return 0.0


def driver_headroom(demand: Demand, node: Node) -> float:
    """Prefer a driver that runs the image natively, then by minor-version, then by forward compatibility."""
    needs = (*demand.cuda, *demand.preferred_cuda)
    if not needs:
        return 1.0
    return min(_headroom(need, node) for need in needs)


def _headroom(need: CUDANeed, node: Node) -> float:
    if node.node_class.driver is None:
        return 0.25
    compatibility = judge_driver(need, node.node_class.host)
    depends = need.forward_depends and compatibility is Compatibility.Forward
    return _HEADROOM[compatibility] * (0.5 if depends else 1.0)


_HEADROOM = {
    Compatibility.Native: 1.0,
    Compatibility.MinorVersion: 0.5,
    Compatibility.Forward: 0.25,
    Compatibility.TooOld: 0.0,
    Compatibility.RequirementUnmet: 0.0,
}
"""Scores that only express an order: native always runs, and minor-version fails if PTX is compiled at run time."""


def interconnect(demand: Demand, node: Node) -> float:
    """Prefer GPUs that NVLink joins all-to-all for pods of several GPUs, and other GPUs for pods of one."""
    if node.node_class.nvlink is None:
        return 0.5
    return float(node.node_class.nvlink is (demand.gpus > 1))


def nvlink_domain(demand: Demand, node: Node) -> float:
    """Prefer the NVLink domain (gpu.clique) in which pods of the same workload run, since NVLink ends with it."""
    return float(bool(demand.group_cliques) and node.clique in demand.group_cliques)


NEUTRAL = 0.5
"""The score of each node for a demand that requests no MIG slice by name."""


def mig_layout(demand: Demand, node: Node) -> float:
    """Prefer the node whose GPUs keep the most headroom for future MIG slices.

    Where DRA creates slices on demand, the score is 1 less the mean headroom that a slice takes. Where a device plugin
    offers fixed slices, the choice of the node does not change how many slices of a profile are left. It can only keep
    nodes idle, on which MIG Manager can change the layout, so that busy nodes come first, the fuller the better.
    """
    if not any(RESOURCE_FORM in name and profile_of(name) for name, _ in demand.resources):
        return NEUTRAL
    if node.free.layouts is None:
        return _busy_node_score(demand, node)
    slices = requested_slices(demand, node.free)
    if not slices or exceeds_all_gpus(slices, node.free.layouts):
        return 0.0
    loss = headroom_loss(node.free.layouts, profiles_of(slices))
    return 0.0 if loss is None else 1.0 - loss / sum(amount for _, amount in slices)


def _busy_node_score(demand: Demand, node: Node) -> float:
    """Give 0 for an idle node, else 0.5 to 1, by the share of its units that are in use together with the pod.

    Units of all its GPU resources count the same, whatever their size.
    """
    total = sum(max(0, amount) for _, amount in node.node_class.offered)
    free = sum(min(max(0, node.free.units.get(name, 0)), amount) for name, amount in node.node_class.offered)
    if total <= 0 or free >= total:
        return 0.0
    requested = sum(amount for name, amount in demand.resources if node.node_class.allocatable(name))
    return (1.0 + min(1.0, (total - free + requested) / total)) / 2.0


SCORERS: tuple[tuple[ScorerName, Scorer], ...] = (
    (ScorerName.Packing, packing),
    (ScorerName.Spreading, spreading),
    (ScorerName.ProductPreference, product_preference),
    (ScorerName.DriverHeadroom, driver_headroom),
    (ScorerName.Interconnect, interconnect),
    (ScorerName.NVLinkDomain, nvlink_domain),
    (ScorerName.Fragmentation, fragmentation),
    (ScorerName.MIGLayout, mig_layout),
)
"""Each scorer with its name in policies."""

BY_CLASS: frozenset[ScorerName] = frozenset(
    {ScorerName.ProductPreference, ScorerName.DriverHeadroom, ScorerName.Interconnect}
)
"""The scorers that depend only on the node's class, so that one score applies to all nodes of the class."""

BY_FREE_CPU: Mapping[ScorerName, Callable[[Demand, Node], ScoreByCPU]] = {
    ScorerName.Fragmentation: fragmentation_by_cpu
}
"""The scorers that depend on the free CPU of a node: functions that give the score by it, all else being equal."""

USING_EXPECTED_DEMAND: frozenset[ScorerName] = frozenset({ScorerName.Fragmentation})
"""The scorers that depend on the expected demand and on CPU, which a demand contains only if one of them is used."""


def uses_expected_demand(demand: Demand) -> bool:
    """Tell whether a scorer of the demand depends on the expected demand, as always for a pod without GPUs.

    Such a pod is scored by Fragmentation alone, whatever policies say (engine.py, WITHOUT_GPUS).
    """
    return not demand.requests_gpus or any(name in USING_EXPECTED_DEMAND for name, _ in demand.scores or DEFAULT_SCORES)


UPGRADE_STATES_SETTLED = {None, "upgrade-done"}
"""upgrade-required and states we do not know are accepted with a lower score
(docs/reference/compatibility.md#node-states)."""

FAULTY_HALVINGS = 4
"""How often a condition by which GPUs are faulty, or an image that seems built for another machine, halves the total,
so that nearly every other node comes first. A guess: nodes that fit seldom differ by a factor of sixteen."""

Penalty = Callable[[Demand, NodeClass], int]
"""Gives how often the total is halved, mostly once (True) or not at all."""


def driver_replaced_soon(_demand: Demand, node: NodeClass) -> bool:
    """Tell whether the node waits for a driver upgrade."""
    return node.upgrade_state not in UPGRADE_STATES_SETTLED


def gpus_ill(demand: Demand, node: NodeClass) -> bool:
    """Tell whether GPUs are unhealthy by DCGM's metrics, unless the policy ignores that."""
    return node.ill > 0 and demand.health.ill is not HealthAction.Ignore


def gpus_ailing(demand: Demand, node: NodeClass) -> bool:
    """Tell whether GPUs are degraded by DCGM's metrics, unless the policy ignores that."""
    return node.ailing > 0 and demand.health.ailing is not HealthAction.Ignore


def devices_withdrawn(demand: Demand, node: NodeClass) -> bool:
    """Tell whether the device plugin has withdrawn devices, unless the policy ignores that."""
    return node.withdrawn > 0 and demand.health.withdrawn is not HealthAction.Ignore


def node_condition(demand: Demand, node: NodeClass) -> int:
    """Count for conditions that report a fault of the node's GPUs, unless the policy ignores that."""
    if not node.bad_conditions or demand.health.conditions is HealthAction.Ignore:
        return 0
    return FAULTY_HALVINGS if node.faulty else 1


def labels_stale(_demand: Demand, node: NodeClass) -> bool:
    """Tell whether the node's labels contradict its capacity, so that its other labels may be wrong too."""
    return node.stale


def replicas_as_gpus(demand: Demand, node: NodeClass) -> bool:
    """Tell whether the pod requests several replicas of shared GPUs, which may all be of one GPU."""
    return any(amount > 1 and node.unit(resource) in SHARED_UNITS for resource, amount in demand.resources)


def image_without_known_code(demand: Demand, node: NodeClass) -> bool:
    """Tell whether an image is older than the GPU, so that it runs there only if it has PTX."""
    return lacks_code(demand, node) is not None


def image_for_other_machine(demand: Demand, node: NodeClass) -> int:
    """Halve the total several times if an image seems to be built for another CPU architecture."""
    suits = all(platform.runs_on(node.architecture, node.product) for platform in demand.platforms)
    return 0 if suits else FAULTY_HALVINGS


def cuda_compat_uncertain(demand: Demand, node: NodeClass) -> bool:
    """Tell whether an image starts only by a cuda-compat package of which nothing shows that it is loaded."""
    needs = (*demand.cuda, *demand.preferred_cuda)
    return node.driver is not None and any(
        need.forward_depends and judge_driver(need, node.host) is Compatibility.Forward for need in needs
    )


PENALTIES: tuple[Penalty, ...] = (
    driver_replaced_soon,
    gpus_ill,
    gpus_ailing,
    devices_withdrawn,
    node_condition,
    labels_stale,
    replicas_as_gpus,
    image_without_known_code,
    image_for_other_machine,
    cuda_compat_uncertain,
)
"""The penalties; each multiplies the total of a node by engine.LESSER_SHARE, as often as it says."""
