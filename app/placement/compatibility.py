# SPDX-License-Identifier: Apache-2.0
"""Class filters about CUDA: whether the image would start on the node's driver, and has code for its GPUs."""

from app.knowledge.cuda import Compatibility, CUDANeed, judge_driver
from app.nodeclass import NodeClass
from app.policy.demand import Demand
from app.reasons import Code, Reason, either, reason
from app.versions import show_driver, show_version


def driver_new_enough(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a driver on which a container's CUDA would not start, by the procedure of knowledge/cuda.py."""
    for need in demand.cuda:
        if node.driver is None:
            if demand.refuse_unknown:
                return reason(Code.DriverUnknown, "CUDA driver unknown", f">= {_floor(demand, need)}")
            continue
        verdict = judge_driver(need, node.host)
        if verdict < demand.accept:
            new_enough = node.driver >= need.floor(demand.accept)  # so it is the image that refuses the branch
            if new_enough or (verdict is Compatibility.RequirementUnmet and need.requirement):
                return _requirement_unmet(need)
            return reason(Code.DriverTooOld, "CUDA driver too old", f">= {_floor(demand, need)}")
    return None


def _requirement_unmet(need: CUDANeed) -> Reason:
    if need.requirement:
        wants = f"CUDA >= {show_version(need.cuda)}, or what else it names"
        return reason(Code.ImageRequirementUnmet, "NVIDIA_REQUIRE_CUDA refuses this driver", wants)
    branches = either([str(branch) for branch, _ in need.alternatives or () if branch != need.native[0]])
    wants = f"driver >= {show_driver(need.native)}, or branch {branches}"
    return reason(Code.ImageRequirementUnmet, "image refuses this driver branch", wants)


def _floor(demand: Demand, need: CUDANeed) -> str:
    return show_driver(need.floor(demand.accept))


def compute_capability_served(demand: Demand, node: NodeClass) -> Reason | None:
    """Refuse a GPU older than the pod or its image family asks."""
    asked = [demand.compute_capability, *(need.capability_floor for need in demand.cuda)]
    floor = max((each for each in asked if each is not None), default=None)
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
    """Refuse a GPU that the image's CUDA toolkit cannot make code for, too old or too new."""
    for need in demand.cuda:
        if node.compute_capability is None and need.unsupported and demand.refuse_unknown:
            return reason(Code.GPUFactsMissing, "compute capability unknown", "one that the image's toolkit supports")
        if node.compute_capability in need.unsupported:
            wants = f"a GPU that CUDA {show_version(need.cuda)} supports"
            return reason(Code.ComputeCapabilityUnsupported, "GPU outside the image's toolkit", wants)
    return None
