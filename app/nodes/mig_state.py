# SPDX-License-Identifier: Apache-2.0
"""Whether the MIG layout of a node is the one that is wished for (label nvidia.com/mig.config).

MIG Manager makes the layout and writes mig.config.state: pending, rebooting, success or failed (NVIDIA/mig-parted
deployments/container). At a node's birth, and right after an edit, the wish is there and the state is not, or is that
of the layout before. A kubelet that refuses a pod after a change tells of devices that are no longer there.
"""

import re
from collections.abc import Mapping

from app.knowledge.mig_profiles import MIGProfiles, nominal_size, profile_in_layout, profile_of
from app.knowledge.tables import Knowledge
from app.kube.finished_pods import FAILED, FinishedPod, failure_of
from app.kube.pod_object import PodObject
from app.nodes.conditions import (
    MIG_CAPABLE,
    MIG_CONFIG,
    MIG_MANAGER,
    MIG_STATE,
    NVIDIA_DOMAIN,
    PAUSED_FOR_MIG,
    PLUGIN,
    PRODUCT,
)
from app.nodes.model import Node, NodeClass
from app.values.quantity import enough_memory

AT_WORK = "pending"
"""The state that a pause of the device plugin implies, because MIG_STATE may not be updated yet."""
DISCOVERY = "nvidia.com/gpu.deploy.gpu-feature-discovery"
OPERANDS = (
    PLUGIN,
    *(f"nvidia.com/gpu.deploy.{name}" for name in ("driver", "container-toolkit", "operator-validator")),
)
"""Labels that the GPU Operator writes to each node that it manages."""
MIG_FAILED = "failed"
TO_COME = "to come"
"""The state of a node whose wished layout is not made, while no state or that of another layout is labelled."""


def mig_state(node_class: NodeClass, labels: Mapping[str, str], knowledge: Knowledge) -> str | None:
    """Give the state of the node's MIG layout: that of its label, AT_WORK or TO_COME; None where nothing is known."""
    state, wished = labels.get(MIG_STATE) or None, labels.get(MIG_CONFIG, "")
    if labels.get(PLUGIN) == PAUSED_FOR_MIG:
        return AT_WORK
    if state not in (None, "success") or not wished or wished in knowledge.mig.layouts_without_slices:
        return state
    profile = profile_in_layout(wished)
    if _offers(node_class, profile):
        return state
    if state == "success":
        return TO_COME if profile and _offers_whole_gpus_instead(node_class, labels, knowledge) else state
    return TO_COME if _will_be_made(labels, profile) else None


def may_offer_later(node: Node, resource: str, amount: int, mig: MIGProfiles) -> bool:
    """Tell whether a node whose MIG layout is being changed may offer units of a resource afterwards.

    A layout whose name has a profile makes slices of that size alone. What another name means is not known, but that a
    slice has a profile of its product, where those are known, and no more memory than its GPU.
    """
    profile = profile_of(resource)
    if profile is None:
        return resource.startswith(NVIDIA_DOMAIN) and amount <= (node.node_class.labelled_gpus or amount)
    if (product := node.node_class.product) and (known := mig.profiles(product)) and profile not in known:
        return False
    wished, asked = nominal_size(profile_in_layout(node.labels.get(MIG_CONFIG, "")) or ""), nominal_size(profile)
    if wished is None or asked is None:
        most = node.node_class.memory_mib
        return asked is None or most is None or enough_memory(most, asked.memory_mib)
    return wished.is_size_of(asked)


def _will_be_made(labels: Mapping[str, str], profile: str | None) -> bool:
    """Tell whether MIG Manager runs on the node, or may come to it.

    The GPU Operator labels a node for MIG Manager once GPU Feature Discovery has found a GPU that can do MIG
    (NVIDIA/gpu-operator controllers/state_manager.go hasMIGCapableGPU). Where GPU Feature Discovery has run and no
    label of the operator is there, no MIG Manager is known. What the name of a layout means is known only where it has
    a profile.
    """
    manager, capable = labels.get(MIG_MANAGER), labels.get(MIG_CAPABLE)
    if capable == "false" or manager == "false" or (manager is None and profile is None):
        return False
    by_operator = manager is not None or any(key in labels for key in OPERANDS)
    return by_operator or (capable is None and PRODUCT not in labels)


def _offers(node_class: NodeClass, profile: str | None) -> bool:
    """Tell whether the node offers slices as the layout has them; any slices where its profile is not known."""
    profiles = [profile_of(name) for name, units in node_class.offered if units > 0 and profile_of(name)]
    if node_class.mig_profile:
        profiles.append(node_class.mig_profile)
    if profile is None:
        return bool(profiles)
    size = nominal_size(profile)
    sizes = (nominal_size(name or "") for name in profiles)
    return any(other and size and other.is_size_of(size) for other in sizes)


def _offers_whole_gpus_instead(node_class: NodeClass, labels: Mapping[str, str], knowledge: Knowledge) -> bool:
    """Tell whether the node offers whole GPUs although its device plugin would name the slices of the layout.

    Strategy mixed gives slices resources of their own, single gives the product label a suffix; under none nothing
    tells slices from GPUs. What the GPU Operator has GPU Feature Discovery label is not known until it has run.
    """
    discovered = PRODUCT in labels
    named = node_class.mig_strategy == "mixed" or (node_class.mig_strategy == "single" and discovered)
    named = named or (not discovered and labels.get(DISCOVERY, "false") != "false")
    whole = any(units > 0 for name, units in node_class.offered if name == knowledge.families.mig_gpu)
    return named and whole and not node_class.mig_invalid


def explained_by_node(pod: FinishedPod, node: Node | None) -> FinishedPod:
    """Return the pod with devices that the node's device plugin has withdrawn as the cause, where there are some.

    They are those of the resource that the kubelet names. A kubelet keeps resources that its node no longer has, with
    all devices withdrawn (seen on kubelet 1.36 after a MIG layout changed).
    """
    if node is None or not (pod.chosen and node.node_class.unhealthy_units):
        return pod
    withdrawn = ", ".join(
        f"{units} of {node.node_class.capacity(resource)} {resource}"
        for resource, units in node.node_class.unhealthy_units
        if re.search(rf"{re.escape(resource)}(?![\w/-]|\.\w)", f"{pod.ending.reason} {pod.ending.message}")
    )
    if not withdrawn:
        return pod
    return pod.because(f"the device plugin has withdrawn {withdrawn} on that node")


def node_that_gives_one_unit(pod: PodObject, knowledge: Knowledge) -> str | None:
    """Name the node whose device plugin refused several units of a shared GPU to a pod; None for any other pod."""
    if pod.status.phase != FAILED or not failure_of(pod, knowledge).one_unit:
        return None
    return pod.spec.node_name or None
