# SPDX-License-Identifier: Apache-2.0
"""Class filters for images: whether one starts on the node's CPU and driver, and has code for its GPUs."""

from app.knowledge.cuda_compatibility import AcceptedCompatibility, Compatibility, CUDANeed, judge_driver
from app.nodes.model import NodeClass
from app.policy.demand import Demand
from app.values.reasons import Code, Reason, join_with_or, reason
from app.values.versions import show_driver, show_version


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
                return reason(Code.DriverUnknown, "CUDA driver unknown", f">= {_floor(demand, need)}")
            continue
        compatibility = judge_driver(need, node.host)
        if compatibility < demand.accept:
            new_enough = node.driver >= need.floor(demand.accept)  # then the image itself refuses the driver branch
            if new_enough or (compatibility is Compatibility.RequirementUnmet and need.requirement):
                return _requirement_unmet(need, node)
            return reason(
                Code.DriverTooOld,
                "CUDA driver too old",
                f">= {_floor(demand, need)}{_sufficient_setting(compatibility)}",
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
    newer = f"driver >= {show_driver(need.native)}"
    if need.requires is None:
        return newer
    branches = need.requires.consumer_branches if node.datacenter is False else need.requires.branches
    served = [str(branch) for branch in sorted(branches) if (branch + 1,) > (need.minor_version or need.native)]
    return f"{newer}, or branch {join_with_or(served)}" if served else newer


def _floor(demand: Demand, need: CUDANeed) -> str:
    return show_driver(need.floor(demand.accept))


def compute_capability_high_enough(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a GPU whose compute capability is less than the pod or its image needs."""
    minimums = [demand.compute_capability, *(need.capability_floor for need in demand.cuda)]
    floor = max((minimum for minimum in minimums if minimum is not None), default=None)
    if floor is None:
        return None
    if node.compute_capability is None:
        if demand.refuse_unknown:
            return reason(Code.GPUFactsMissing, "compute capability unknown", f">= {show_version(floor)}")
        return None
    if node.compute_capability >= floor:
        return None
    return reason(Code.ComputeCapabilityTooLow, "compute capability too low", f">= {show_version(floor)}")


def toolkit_targets_gpu(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a GPU that the CUDA toolkit of the image no longer supports.

    A GPU newer than the toolkit can run PTX. Whether the image contains PTX is unknown, so that penalties.py lowers
    the score of such a node.
    """
    for need in demand.cuda:
        if node.compute_capability is None and need.unsupported and demand.refuse_unknown:
            return reason(Code.GPUFactsMissing, "compute capability unknown", "one that the image's toolkit supports")
        if node.compute_capability in need.unsupported:
            wants = f"a GPU that CUDA {show_version(need.cuda)} supports"
            return reason(Code.ComputeCapabilityUnsupported, "GPU outside the image's toolkit", wants)
    return None
