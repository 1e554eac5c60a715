# SPDX-License-Identifier: Apache-2.0
"""Why the units that a node offers do not serve a wish: their sharing, MIG slice and memory."""

import re
from collections.abc import Iterator

from tests.placement import twin_node
from tests.placement.twin_cuda import facts
from tests.placement.twin_world import SLICES, RawNode, Wish


def sharing_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """F63, F67 to F69: an unknown sharing strategy counts as whole GPUs; without any label the sharing is unknown."""
    for part in wish.containers:
        if part.amount > 1 and gives_one_unit(part.resource, node):
            yield "SharedReplicasAskedAsGPUs"
    units = [twin_node.unit_of(resource, node) for resource in wish.asked]
    if not (allowed := units_wanted(wish)):
        return
    if any(unit not in (*allowed, "unknown") for unit in units):
        yield "SharingNotAllowed"
    if "unknown" in units and wish.refuses_unknown:
        yield "GPUFactsMissing"


def gives_one_unit(resource: str, node: RawNode) -> bool:
    """Tell whether the device plugin gives a container only one unit: by a cloud's rule, else NVIDIA's of MPS.

    GoogleCloudPlatform/container-engine-accelerators pkg/gpu/nvidia/gpusharing/gpusharing.go, ValidateRequest: under
    time-sharing always, under MPS on nodes of several GPUs. HAMi is judged by its own rule.
    """
    unit = twin_node.unit_of(resource, node)
    if unit not in ("share", "mps-share") or (node.hami and not resource.endswith(".shared")):
        return False
    for row in facts("clouds.yaml")["sharing_labels"]:
        rule = row["several_units"].get(node.labels.get(row["key"], ""))
        if rule and row["unless_key"] not in node.labels:
            gpus = sum(-(-node.in_all(name) // shares_of(name, node)) for name in node.resources())
            return bool(rule == "refused" or gpus > 1)
    return unit == "mps-share"


def shares_of(resource: str, node: RawNode) -> int:
    """Read into how many units a GPU is divided; 1 where a unit is no share."""
    shared = twin_node.unit_of(resource, node) in ("share", "mps-share")
    return twin_node.replicas(resource, node) if shared else 1


def units_wanted(wish: Wish) -> tuple[str, ...]:
    """List the units that serve the wish, or none if any will do. The strictest wish holds; admission denies a
    contradiction."""
    wishes = {wish.sharing, *(rule.sharing for rule in wish.rules)}
    if "Exclusive" in wishes:
        return "whole", "named slice"
    return ("share", "mps-share") if "Shared" in wishes else ()


def slice_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """F59: checked only if no slice is asked by name (docs/reference/sharing-and-memory.md#mig-at-least)."""
    if wish.mig_profile is None or any(resource.startswith(SLICES) for resource in wish.asked):
        return
    has, profile = twin_node.label_slice(node), wish.mig_profile.removeprefix(">=")
    if profile == wish.mig_profile:
        if has != profile:
            yield "MIGProfileAbsent"
        return
    compute, memory = twin_node.slice_size(profile)
    if has:
        size = twin_node.slice_size(has)
        if size[0] < compute or size[1] < memory or engines(has) < engines(profile):
            yield "MIGProfileAbsent"
        return
    if "share" in units_wanted(wish):
        yield "MIGProfileAbsent"
    for resource in wish.asked:
        unit = twin_node.unit_of(resource, node)
        exact, most = twin_node.unit_memory(resource, node)
        small = any(figure is not None and figure < 0.93 * memory for figure in (exact, most))
        if small or unit not in ("whole", "part", "unknown"):
            yield "MIGProfileAbsent"
        elif (exact is None or unit == "unknown") and wish.refuses_unknown:
            yield "GPUFactsMissing"


def engines(profile: str) -> int:
    """Rank the media engines of a slice: a JPEG and an OFA engine with +me, all with +me.all or all compute slices.

    Source: MIG User Guide, profiles of A100 (hardware units by profile).
    """
    return 2 if profile.startswith("7g") or profile.endswith(".me.all") else int(profile.endswith(".me"))


def memory_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """F37: memory must be at least 0.93 of the wish; a slice and an MPS share count their own memory.

    See docs/reference/sharing-and-memory.md#memory.
    """
    needs = [need for need in (wish.memory, *(rule.memory for rule in wish.rules)) if need]
    if not needs:
        return
    least = 0.93 * max(map(mib, needs))
    for resource in wish.asked:
        has, most = twin_node.unit_memory(resource, node)
        shares = twin_node.replicas(resource, node) if twin_node.unit_of(resource, node) == "mps-share" else 1
        if any(memory is not None and memory / shares < least for memory in (has, most)):
            yield "GPUMemoryTooSmall"
        elif has is None and wish.refuses_unknown:
            yield "GPUFactsMissing"


def mib(text: str) -> int:
    """Read `40Gi`, its synonym `40GB`, or `512Mi` in MiB."""
    number = int(re.match(r"\d+", text)[0])  # type: ignore[index]
    return number if text.endswith("Mi") else number * 1024
