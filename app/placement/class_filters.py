# SPDX-License-Identifier: Apache-2.0
"""The class filters about the unit of a GPU resource, about images, and about the state of a node.

A unit has a sharing and a MIG profile. An image starts on the node's CPU and driver, and has code for its GPUs, or not.
A node's MIG configuration or driver may be in change, and its GPUs unhealthy. filters.py has the other filters, and the
order of all. What compares one value with what is wanted is a FactConstraint (policy/facts.py); the functions compare
several: the units of several resources, a slice with a whole GPU, a driver or a machine with each image.
"""

from collections.abc import Iterable
from operator import attrgetter, contains, ne

from app.knowledge.cuda_compatibility import AcceptedCompatibility, Compatibility, CUDANeed, judge_driver
from app.knowledge.image_code import ImageBuild
from app.knowledge.mig_profiles import SliceSize, nominal_size, profile_of
from app.nodes.mig_state import MIG_FAILED
from app.nodes.model import SHARED_UNITS, SHARES, UNSHARED, NodeClass, Sharing
from app.policy.demand import Demand
from app.policy.facts import FactConstraint
from app.policy.schema_placement import HealthAction, SharingWish
from app.values.quantity import enough_memory
from app.values.reasons import Code, Reason, join_with_or, reason
from app.values.versions import show_driver, show_version


def sharing_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse shares for a pod that wants whole GPUs, and whole GPUs for one that wants shares.

    A MIG slice that is requested by name, or claimed, counts as exclusive.
    """
    if demand.sharing is SharingWish.Any:
        return None
    units = [node.unit(resource) for resource, _ in demand.resources]
    if not units and node.by_claim:
        units = [Sharing.Exclusive if node.sharing is Sharing.MIG else node.sharing]
    for unit in units:
        if unit is Sharing.Unknown:
            if demand.refuse_unknown:
                wants = "a whole GPU" if demand.sharing is SharingWish.Exclusive else "a share of a GPU"
                return reason(Code.GPUFactsMissing, "GPU sharing unknown", wants)
            continue
        if demand.sharing is SharingWish.Exclusive and unit is not Sharing.Exclusive:
            return reason(Code.SharingNotAllowed, "GPU is shared or sliced on this node", "a whole GPU")
        if demand.sharing is SharingWish.Shared and unit not in SHARES:
            return reason(Code.SharingNotAllowed, "GPU is not shared on this node", "a share of a GPU")
    return None


def several_units_allowed(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a container that requests several units of a shared GPU, where the device plugin or a policy refuses them.

    The kubelet fails a pod that the plugin refuses (docs/reference/sharing-and-memory.md#units). HAMi gives each unit
    from another GPU, so that request_within_node judges it.
    """
    for resource, amount in demand.max_per_container:
        unit = node.unit(resource)
        if amount < 2 or unit not in SHARED_UNITS:
            continue
        if node.refuses_several:
            return reason(Code.SharedReplicasAskedAsGPUs, "the device plugin refuses several units", ONE_UNIT)
        if demand.several_units is False:
            return reason(Code.SharedReplicasAskedAsGPUs, "the policy denies several units", ONE_UNIT)
        if unit is Sharing.MPS and node.refuses_several is None and not demand.several_units:
            return reason(
                Code.SharedReplicasAskedAsGPUs,
                "only one share of an MPS GPU can be requested",
                "1 a container, or policy sharedReplicas: Leave",
            )
    return None


ONE_UNIT = "1 unit of a shared GPU a container"


def mig_profile_offered(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse nodes without the MIG profile of the annotation, for a pod that requests no MIG resource by name."""
    if demand.mig_profile is None or any(profile_of(name) for name, _ in demand.resources):
        return None
    profile, at_least = demand.mig_profile
    size = nominal_size(profile)
    if not demand.resources and _dra_offers_profile(node, profile, at_least):
        return None
    if at_least and size is not None and _unit_covers(demand, node, size):
        unknown = node.mig_profile is None and (node.memory_mib is None or node.sharing is Sharing.Unknown)
        if not (unknown and demand.refuse_unknown):
            return None
        return reason(Code.GPUFactsMissing, "GPU memory or sharing unknown", f">= {size.memory_mib} MiB per GPU")
    if not at_least and node.mig_profile == profile:
        return None
    return reason(Code.MIGProfileAbsent, "MIG profile not on this node", f"{'>= ' if at_least else ''}{profile}")


def _dra_offers_profile(node: NodeClass, profile: str, at_least: bool) -> bool:
    """Tell whether DRA offers such a slice, for a pod that claims devices and requests no GPU resource."""
    sizes = map(nominal_size, node.dra_profiles) if at_least else ()
    size = nominal_size(profile)
    return profile in node.dra_profiles or any(other.covers(size) for other in sizes if other and size)


def _unit_covers(demand: Demand, node: NodeClass, requested: SliceSize) -> bool:
    """Tell whether one unit is at least as large as a slice: a slice under MIG strategy single, or a whole GPU.

    See docs/reference/sharing-and-memory.md#mig-at-least.
    """
    if node.mig_profile:
        slice_size = nominal_size(node.mig_profile)
        return slice_size is not None and slice_size.covers(requested)
    units = {node.unit(resource) for resource, _ in demand.resources} or {node.sharing}
    whole = units <= UNSHARED and demand.sharing is not SharingWish.Shared
    most = node.memory_mib if node.memory_mib is not None else node.memory_at_most
    return whole and (most is None or enough_memory(most, requested.memory_mib))


def image_for_machine(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node for which an image is not built, where its publisher says so; what is inferred only scores."""
    for platform in demand.platforms:
        if platform.required and not platform.runs_on(node.architecture, node.product):
            machine = " on a Jetson module" if platform.products else ""
            return reason(Code.ImageForOtherMachine, "image built for another machine", platform.architecture + machine)
    return None


def driver_new_enough(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a driver on which the CUDA of a container does not start (knowledge/cuda_compatibility.py)."""
    for need in demand.cuda:
        if not node.runs_cuda:
            return reason(Code.GPUWithoutCUDA, "GPU of a vendor without CUDA", f"CUDA {show_version(need.cuda)}")
        if node.driver is None:
            if demand.refuse_unknown:
                return reason(Code.DriverUnknown, "CUDA driver unknown", _sufficient_drivers(demand, need, node))
            continue
        compatibility = judge_driver(need, node.host)
        if compatibility < demand.accept:
            native_only = demand.accept is AcceptedCompatibility.Native
            if compatibility is Compatibility.RequirementUnmet and (need.requirement or not native_only):
                return _requirement_unmet(need, node)  # the image itself refuses the driver
            return reason(
                Code.DriverTooOld,
                "CUDA driver too old",
                f"{_sufficient_drivers(demand, need, node)}{_sufficient_setting(compatibility)}",
            )
    return None


def _sufficient_setting(compatibility: Compatibility) -> str:
    """Name the policy setting under which the driver would suffice, for the message; empty if there is none."""
    if compatibility < Compatibility.Forward:
        return ""
    return f", or policy field cuda.accept: {AcceptedCompatibility(int(compatibility)).name}"


def _requirement_unmet(need: CUDANeed, node: NodeClass) -> Reason:
    if need.requirement:
        wants = f"CUDA >= {show_version(need.cuda)}, or what else it names"
        return reason(Code.ImageRequirementUnmet, "NVIDIA_REQUIRE_CUDA refuses this driver", wants)
    return reason(Code.ImageRequirementUnmet, "image refuses this driver branch", _accepted_drivers(need, node))


def _accepted_drivers(need: CUDANeed, node: NodeClass) -> str:
    """Name the drivers on which the image starts, for the brand of the node's GPU."""
    newer = f"driver >= {show_driver(need.sufficient(AcceptedCompatibility.MinorVersion))}"
    if need.requires is None or (need.forced_compat and node.datacenter is False):
        return newer
    branches = need.requires.consumer_branches if node.datacenter is False else need.requires.branches
    served = [str(branch) for branch in sorted(branches) if (branch + 1,) > (need.minor_version or need.native)]
    return f"{newer}, or branch {join_with_or(served)}" if served else newer


def _sufficient_drivers(demand: Demand, need: CUDANeed, node: NodeClass) -> str:
    if need.requires and not need.requirement and demand.accept is not AcceptedCompatibility.Native:
        return _accepted_drivers(need, node).removeprefix("driver ")
    return f">= {show_driver(need.sufficient(demand.accept))}"


def image_has_code(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a GPU for which a publisher's own build has neither code nor PTX (on any CPU if that is unknown)."""
    for build in demand.builds:
        if build.required and not build.runs_on(node.compute_capability, node.architecture):
            least = join_with_or(build.capabilities(node.architecture))
            wants = f"compute capability {least}" if least else "a build with CUDA for this CPU architecture"
            return reason(Code.ImageWithoutCodeForGPU, "image has no code for this GPU", wants)
    return None


def lacks_code(demand: Demand, node: NodeClass) -> CUDANeed | ImageBuild | None:
    """Find what says that an image may have no code for the node's GPU: its toolkit, or a build without a source."""
    if node.compute_capability is None:
        return None
    builds = (build for build in demand.builds if not build.runs_on(node.compute_capability, node.architecture))
    needs = (*demand.cuda, *demand.preferred_cuda)
    return next(builds, None) or next(
        (need for need in needs if need.targets is not None and node.compute_capability not in need.targets), None
    )


def lacks_code_words(lacking: CUDANeed | ImageBuild, nodes: Iterable[NodeClass]) -> str:
    """Say that an image is not known to have code for the GPUs of some nodes, by its toolkit or by its build."""
    found = sorted({node.compute_capability for node in nodes if node.compute_capability is not None})
    capability = join_with_or([show_version(one) for one in found])
    image = lacking.name if isinstance(lacking, ImageBuild) else f"CUDA {show_version(lacking.cuda)}"
    advice = "has that code" if isinstance(lacking, ImageBuild) else "is of a newer CUDA"
    return (
        f"an image of {image} is not known to have code for GPUs of compute capability {capability}: "
        f"without PTX it ends with 'no kernel image is available'; use an image that {advice}"
    )


def toolkit_targets_gpu(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a GPU that the CUDA toolkit of the image no longer supports.

    A GPU newer than the toolkit can run PTX. Whether the image contains PTX is unknown, so that a penalty lowers
    the score of such a node.
    """
    for need in demand.cuda:
        if node.compute_capability is None and need.unsupported and demand.refuse_unknown:
            return reason(Code.GPUFactsMissing, "compute capability unknown", "one that the image's toolkit supports")
        if node.compute_capability in need.unsupported:
            wants = f"a GPU that CUDA {show_version(need.cuda)} supports"
            return reason(Code.ComputeCapabilityUnsupported, "GPU outside the image's toolkit", wants)
    return None


MIG_STATES_AT_REST = {None, "success", MIG_FAILED}
"""In any other state (nodes/mig_state.py) the layout is being changed, which refuses whole GPUs too
(docs/reference/compatibility.md#node-states)."""

MIG_STATES_AT_CHANGE = ("failed", "pending", "rebooting")
"""Values that MIG Manager writes besides success (NVIDIA/mig-parted deployments/container/reconfigure-mig.sh)."""

UPGRADE_STATES_REFUSED = frozenset({
    "cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required", "uncordon-required",
    "node-maintenance-required", "post-maintenance-required", "pod-restart-required", "validation-required",
    "upgrade-failed",
})  # fmt: skip
"""NVIDIA/k8s-operator-libs pkg/upgrade/consts.go; upgrade-required alone only scores down
(docs/reference/compatibility.md#node-states)."""


SETTLED = (
    FactConstraint(attrgetter("mig_invalid"), ne, lambda _: True, Code.MIGInvalid,
               "MIG layout of the node is invalid", "one profile on all GPUs, or strategy mixed"),
    FactConstraint(attrgetter("mig_state"), ne, lambda _: MIG_FAILED, Code.MIGLayoutFailed,
               "MIG Manager failed to make the node's layout", "mig.config.state success"),
    FactConstraint(attrgetter("mig_state"), contains, lambda _: MIG_STATES_AT_REST, Code.MIGReconfiguring,
               "MIG layout of the node is being changed", "mig.config.state success"),
    FactConstraint(attrgetter("upgrade_state"), lambda refused, state: state not in refused,
               lambda _: UPGRADE_STATES_REFUSED, Code.DriverUpgrading,
               "GPU driver of the node is being upgraded", "upgrade-done"),
)  # fmt: skip
"""What a node must not go through: a MIG layout that is invalid, failed, being changed or to come, a driver upgrade."""


_WITHDRAWN = reason(Code.GPUUnhealthy, "the device plugin has withdrawn GPUs of the node", "all devices healthy")
_TAINTED = reason(Code.GPUUnhealthy, "device taints keep claims off GPUs of the node", "all devices healthy")


def gpus_healthy(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a node with unhealthy GPUs if the policy says so, because a pod might get any GPU of the node.

    Unhealthy GPUs do not count if the device plugin has withdrawn as many, since pods cannot get those.
    """
    if demand.health.ill is HealthAction.Refuse and node.ill > node.withdrawn:
        return reason(Code.GPUUnhealthy, "GPUs of the node must be drained", "healthy GPUs")
    if demand.health.ailing is HealthAction.Refuse and node.ailing > 0:
        return reason(Code.GPUUnhealthy, "GPUs of the node need a reset or are throttled", "healthy GPUs")
    if demand.health.withdrawn is HealthAction.Refuse and node.withdrawn > 0:
        return _TAINTED if node.claims_only else _WITHDRAWN
    if demand.health.conditions is HealthAction.Refuse and node.faulty:
        return reason(Code.GPUUnhealthy, "a condition of the node reports a fault of its GPUs", "healthy GPUs")
    return None
