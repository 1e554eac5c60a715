# SPDX-License-Identifier: Apache-2.0
"""The warnings at apply of what the fleet cannot serve: names that no node offers, claims without a device, no node.

A pod that waits for ever is admitted, since a node may be added; its user learns of it here, in the words of explain.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from app.admission.reviewed_pod import PodChange, PodForm, ReviewedPod
from app.admission.tolerations import tolerated_keys
from app.knowledge.gpu_resources import STANDARD, is_refused, similar_resources
from app.knowledge.mig_profiles import profile_of
from app.kube.pods import controller_of
from app.placement.class_filters import lacks_code, lacks_code_words
from app.placement.engine import class_refusals
from app.policy.demand import Demand
from app.values.reasons import Code, Duration, Reason, counted, join_with_or
from app.world.fleet_facts import FleetFacts, fitting_groups

NOWHERE = "fits on none of "
"""How the warning begins that says why no GPU node can serve a pod."""
OTHER_PRODUCTS = {Code.ProductNotAllowed, Code.GPUFactsMissing, Code.ResourceNotOffered}
"""Codes of the nodes whose product is another, or not known, or none: the others are nearer to the pod."""


def warn_of_names(review: ReviewedPod) -> Iterator[PodChange]:
    """Warn of names with which the pod never starts: of no GPU resource, and of a scheduler that gives no GPU."""
    knowledge, groups = review.context.world.knowledge, review.context.world.fleet.node_groups
    without = knowledge.evidence.schedulers_without_gpus.get(review.pod.scheduler_name)
    if without and review.asks_for_gpu:
        yield PodChange((), without, without)
    if review.ruling.claimed.classes:
        return  # a DeviceClass of the cluster may serve any name
    named = (sorted({*container.requests, *container.limits}) for container in review.pod.containers)
    known = STANDARD.union(family.whole for family in review.families)
    for name in dict.fromkeys(name for names in named for name in names if name not in known):
        offered = (resource for group in groups for resource, _ in group.node_class.offered)
        meant = similar_resources(name, offered, knowledge.families)[:2]
        if meant and not is_refused(name):
            warning = f"no known device plugin offers {name[:40]}, did you mean {join_with_or(meant)}?"
            yield PodChange((), warning, warning)


def warn_of_claims(review: ReviewedPod) -> Iterator[PodChange]:
    """Warn of claims that no device of the cluster can serve, and of tolerations that belong into the claim."""
    claimed = review.ruling.claimed
    if claimed.requests:
        for warning in review.context.world.state.devices.claim_warnings(claimed.requests, tolerated_keys(review)):
            yield PodChange((), warning, warning)


def warn_of_unsuitable_fleet(review: ReviewedPod) -> Iterator[PodChange]:
    """Warn that the pod, or every pod of the template, can never run on the nodes that there are.

    Nothing is said of the pods of a controller, whose warnings no user sees: their template was warned of. Nor is it
    where an autoscaler may bring other nodes, or of pods that only claim devices, of which `warn_of_claims` speaks.
    """
    fleet, demand = review.context.world.fleet, review.ruling.demand
    may_grow = fleet.provisioners or fleet.pools or not fleet.node_groups
    if review.context.form is PodForm.Ephemeral or may_grow or not demand.resources:
        return
    warning = (_code_unknown if review.fitting else _unsuitable_fleet)(demand, fleet)
    if warning is not None and (review.context.form is not PodForm.Pod or controller_of(review.document) is None):
        yield PodChange((), warning, warning)


@lru_cache(maxsize=256)
def _code_unknown(demand: Demand, fleet: FleetFacts) -> str | None:
    """Say that the image is older than every GPU that the pod could get; None where some GPU is not newer."""
    classes = [group.node_class for group in fitting_groups(demand, fleet)]
    lacking = [lacks_code(demand, node_class) for node_class in classes]
    if not (lacking and lacking[0] and all(lacking)):
        return None
    alike = (one for one, lack in zip(classes, lacking, strict=True) if lack == lacking[0])
    return lacks_code_words(lacking[0], alike)


def _unsuitable_fleet(demand: Demand, fleet: FleetFacts) -> str | None:
    """Say why no GPU node can ever serve a demand: the reason of the nearest nodes.

    A node that is only refused for what will pass, such as a driver upgrade, can serve it later.
    """
    reasons = [
        (
            [one for one in class_refusals(demand, group.node_class) if one.code.duration is not Duration.TRANSIENT],
            fleet.counts.get(group, 1),
        )
        for group in fleet.node_groups
    ]
    if not all(refused for refused, _ in reasons):
        return None
    total = sum(count for _, count in reasons)
    profile = demand.mig_profile[0] if demand.mig_profile else ""
    offered = (name for group in fleet.node_groups for name, units in group.node_class.offered if units)
    if named := sorted({name for name in offered if profile and profile_of(name) == profile}):
        asked = join_with_or([resource for resource, _ in demand.resources])
        return f"nodes offer MIG profile {profile} as {join_with_or(named)}: ask for that instead of {asked}"
    reasons = [one for one in reasons if not {each.code for each in one[0]} & OTHER_PRODUCTS] or reasons
    fewest = min(len(refused) for refused, _ in reasons)
    counts: Counter[Reason] = Counter()
    for refused, nodes in reasons:
        if len(refused) == fewest:
            counts[refused[0]] += nodes
    reason, nodes = counts.most_common(1)[0]
    why = f"{reason.message} ({reason.code.name}, {counted(nodes, 'node')})"
    return f"{NOWHERE}{counted(total, 'GPU node')}: {why}; {reason.remedy}"
