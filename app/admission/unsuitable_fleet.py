# SPDX-License-Identifier: Apache-2.0
"""The warning at apply that no GPU node of the fleet can run a pod, or those of a template, in the words of explain."""

from collections import Counter
from collections.abc import Iterator

from app.admission.fleet_facts import FleetFacts, fitting_groups
from app.admission.reviewed_pod import PodChange, PodForm, ReviewedPod
from app.kube.object_references import controller_of
from app.nodes.model import NodeClass
from app.placement.engine import refusals
from app.policy.demand import Demand
from app.values.reasons import Duration, Reason, counted


def warn_of_unsuitable_fleet(review: ReviewedPod) -> Iterator[PodChange]:
    """Warn that the pod, or every pod of the template, can never run on the nodes that there are.

    Nothing is said of the pods of a controller, whose warnings no user sees: their template was warned of. Nor is it
    where an autoscaler may bring other nodes, or of pods that only claim devices, of which `warn_of_claims` speaks.
    """
    fleet, demand = review.context.fleet, review.ruling.demand
    may_grow = fleet.provisioners or fleet.pools or not fleet.node_groups
    if review.context.form is PodForm.Ephemeral or may_grow or not demand.resources:
        return
    if review.context.form is PodForm.Pod and controller_of(review.document) is not None:
        return
    warning = unsuitable_fleet(demand, fleet)
    if warning is not None:
        yield PodChange((), warning, warning)


def unsuitable_fleet(demand: Demand, fleet: FleetFacts) -> str | None:
    """Say why no GPU node can ever serve a demand: the reason of the nearest nodes; None if some node can.

    A node that is only refused for what will pass, such as a driver upgrade, can serve it later.
    """
    if fitting_groups(demand, fleet):
        return None
    reasons = [(_lasting(demand, group.node_class), fleet.counts.get(group, 1)) for group in fleet.node_groups]
    if not all(refused for refused, _ in reasons):
        return None
    fewest = min(len(refused) for refused, _ in reasons)
    counts: Counter[Reason] = Counter()
    for refused, nodes in reasons:
        if len(refused) == fewest:
            counts[refused[0]] += nodes
    reason, nodes = counts.most_common(1)[0]
    total = sum(count for _, count in reasons)
    why = f"{reason.message} ({reason.code.name}, {counted(nodes, 'node')})"
    return f"fits on none of {counted(total, 'GPU node')}: {why}; {reason.remedy}"


def _lasting(demand: Demand, node_class: NodeClass) -> tuple[Reason, ...]:
    """List the reasons against nodes of a class that do not pass by themselves."""
    return tuple(reason for reason in refusals(demand, node_class) if reason.code.duration is not Duration.TRANSIENT)
