# SPDX-License-Identifier: Apache-2.0
"""Doubts: what makes a node that would do a worse choice, whatever the scorers say. The tuple is the product."""

from collections.abc import Callable

from app.nodes.model import REPLICAS, NodeClass
from app.policy.demand import Demand
from app.policy.schema_placement import HealthAction

UPGRADE_STATES_SETTLED = {None, "upgrade-done"}
"""upgrade-required and states we do not know are accepted with a lower score
(docs/reference/compatibility.md#node-states)."""

Doubt = Callable[[Demand, NodeClass], bool]


def driver_replaced_soon(_demand: Demand, node: NodeClass) -> bool:
    """Tell whether the node waits for a driver upgrade."""
    return node.upgrade_state not in UPGRADE_STATES_SETTLED


def gpus_ill(demand: Demand, node: NodeClass) -> bool:
    """Tell whether DCGM calls GPUs ill, and the policy does not refuse them or they are withdrawn."""
    return node.ill > 0 and demand.health.ill is not HealthAction.Ignore


def gpus_ailing(demand: Demand, node: NodeClass) -> bool:
    """Tell whether DCGM calls GPUs ailing, and the policy minds."""
    return node.ailing > 0 and demand.health.ailing is not HealthAction.Ignore


def devices_withdrawn(demand: Demand, node: NodeClass) -> bool:
    """Tell whether the device plugin has withdrawn devices, and the policy minds."""
    return node.withdrawn > 0 and demand.health.withdrawn is not HealthAction.Ignore


def labels_stale(_demand: Demand, node: NodeClass) -> bool:
    """Tell whether the node's labels contradict what it has: whatever else they say may be wrong too (F73)."""
    return node.stale


def replicas_as_gpus(demand: Demand, node: NodeClass) -> bool:
    """Tell whether several replicas of shared GPUs would be given as if they were GPUs (F68)."""
    return any(amount > 1 and node.unit(resource) in REPLICAS for resource, amount in demand.resources)


def code_compiled_at_start(demand: Demand, node: NodeClass) -> bool:
    """Tell whether an image's toolkit is not known to make machine code for the GPU: only PTX, if any, runs there."""
    needs = (*demand.cuda, *demand.cuda_wishes)
    capability = node.compute_capability
    return capability is not None and any(need.targets is not None and capability not in need.targets for need in needs)


DOUBTS: tuple[Doubt, ...] = (
    driver_replaced_soon,
    gpus_ill,
    gpus_ailing,
    devices_withdrawn,
    labels_stale,
    replicas_as_gpus,
    code_compiled_at_start,
)
"""Each halves the node's total."""
