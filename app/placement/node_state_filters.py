# SPDX-License-Identifier: Apache-2.0
"""Class filters for the state of a node: its MIG configuration, its driver upgrade, and the health of its GPUs."""

from app.nodes.model import NodeClass
from app.policy.demand import Demand
from app.policy.schema_placement import HealthAction
from app.values.reasons import Code, Reason, reason

MIG_STATES_READY = {None, "success"}
"""Any other state (nodes/mig_state.py) refuses, for whole GPUs too (docs/reference/compatibility.md#node-states)."""

MIG_STATES_AT_CHANGE = ("failed", "pending", "rebooting")
"""Values that MIG Manager writes besides success (NVIDIA/mig-parted deployments/container/reconfigure-mig.sh)."""

UPGRADE_STATES_REFUSED = frozenset(
    {
        "cordon-required",
        "wait-for-jobs-required",
        "pod-deletion-required",
        "drain-required",
        "node-maintenance-required",
        "post-maintenance-required",
        "pod-restart-required",
        "validation-required",
        "uncordon-required",
        "upgrade-failed",
    }
)
"""NVIDIA/k8s-operator-libs pkg/upgrade/consts.go; upgrade-required alone only scores down
(docs/reference/compatibility.md#node-states)."""


def mig_valid(_demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node whose MIG layout GFD labels as invalid."""
    if not node.mig_invalid:
        return None
    return reason(Code.MIGInvalid, "MIG layout of the node is invalid", "one profile on all GPUs, or strategy mixed")


def mig_config_settled(_demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node whose MIG layout MIG Manager is changing, has yet to make, or failed to change."""
    if node.mig_state in MIG_STATES_READY:
        return None
    return reason(Code.MIGReconfiguring, "MIG layout of the node is being changed", "mig.config.state success")


def driver_settled(_demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node whose driver is being upgraded."""
    if node.upgrade_state not in UPGRADE_STATES_REFUSED:
        return None
    return reason(Code.DriverUpgrading, "GPU driver of the node is being upgraded", "upgrade-done")


def gpus_healthy(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node with unhealthy GPUs if the policy says so, because a pod might get any GPU of the node.

    Unhealthy GPUs do not count if the device plugin has withdrawn as many, since pods cannot get those.
    """
    if demand.health.ill is HealthAction.Refuse and node.ill > node.withdrawn:
        return reason(Code.GPUUnhealthy, "GPUs of the node must be drained", "healthy GPUs")
    if demand.health.ailing is HealthAction.Refuse and node.ailing > 0:
        return reason(Code.GPUUnhealthy, "GPUs of the node need a reset or are throttled", "healthy GPUs")
    if demand.health.withdrawn is HealthAction.Refuse and node.withdrawn > 0:
        return reason(Code.GPUUnhealthy, "the device plugin has withdrawn GPUs of the node", "all devices healthy")
    if demand.health.conditions is HealthAction.Refuse and node.faulty:
        return reason(Code.GPUUnhealthy, "a condition of the node reports a fault of its GPUs", "healthy GPUs")
    return None
