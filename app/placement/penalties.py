# SPDX-License-Identifier: Apache-2.0
"""Penalties: what halves the total of a node that fits; the tuple at the end lists them.

Explain shows the names of these functions.
"""

from collections.abc import Callable

from app.knowledge.cuda_compatibility import Compatibility, judge_driver
from app.nodes.model import SHARED_UNITS, NodeClass
from app.policy.demand import Demand
from app.policy.schema_placement import HealthAction

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
    """Tell whether GPUs are ill by DCGM's metrics, unless the policy ignores that."""
    return node.ill > 0 and demand.health.ill is not HealthAction.Ignore


def gpus_ailing(demand: Demand, node: NodeClass) -> bool:
    """Tell whether GPUs are ailing by DCGM's metrics, unless the policy ignores that."""
    return node.ailing > 0 and demand.health.ailing is not HealthAction.Ignore


def devices_withdrawn(demand: Demand, node: NodeClass) -> bool:
    """Tell whether the device plugin has withdrawn devices, unless the policy ignores that."""
    return node.withdrawn > 0 and demand.health.withdrawn is not HealthAction.Ignore


def node_condition(demand: Demand, node: NodeClass) -> int:
    """Count for conditions by which somebody reports a fault of the node's GPUs, unless the policy ignores that."""
    if not node.bad_conditions or demand.health.conditions is HealthAction.Ignore:
        return 0
    return FAULTY_HALVINGS if node.faulty else 1


def labels_stale(_demand: Demand, node: NodeClass) -> bool:
    """Tell whether the node's labels contradict its capacity, so that its other labels may be wrong too (F73)."""
    return node.stale


def replicas_as_gpus(demand: Demand, node: NodeClass) -> bool:
    """Tell whether the pod requests several replicas of shared GPUs, which may all be of one GPU (F68)."""
    return any(amount > 1 and node.unit(resource) in SHARED_UNITS for resource, amount in demand.resources)


def code_compiled_at_start(demand: Demand, node: NodeClass) -> bool:
    """Tell whether an image may have no machine code for the GPU, so that it must compile PTX at the start."""
    needs = (*demand.cuda, *demand.preferred_cuda)
    capability = node.compute_capability
    return capability is not None and any(need.targets is not None and capability not in need.targets for need in needs)


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
    code_compiled_at_start,
    image_for_other_machine,
    cuda_compat_uncertain,
)
"""The penalties; each multiplies the total of a node by engine.LESSER_SHARE, as often as it says."""
