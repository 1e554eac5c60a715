# SPDX-License-Identifier: Apache-2.0
"""Remedies for what the filters object to: another need, another resource, another image, GPUs freed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from app.explain.edits import Document, Edit, NearMiss, annotated, asked, containers_of, hungriest
from app.knowledge.mig_profiles import profile_of
from app.kube.gpu_usage import GPUUsage
from app.kube.pods import PREFIX
from app.nodes.model import Node, Sharing
from app.placement.filters import allows
from app.values.reasons import Code
from app.values.versions import show_version


def ask_fewer(near_miss: NearMiss) -> Iterator[Edit]:
    """Ask for as many GPUs as the node has free, or the policy allows."""
    if near_miss.code not in (Code.InsufficientGPUs, Code.RequestExceedsNode, Code.TooManyGPUs):
        return
    most = near_miss.scheduled_pod.ruling.enforced.max_gpus_per_pod
    for resource, amount in near_miss.scheduled_pod.demand.resources:
        left = min(near_miss.node.free.units.get(resource, 0), amount if most is None else most)
        if 0 < left < amount:
            text = f"ask for {left} {resource} instead of {amount}"
            yield Edit("ask-fewer", text, 30 + amount - left, _lowered(resource, amount - left))


def _lowered(resource: str, by: int) -> Callable[[Document], None]:
    def lower(pod: Document) -> None:
        most = hungriest(pod, resource)
        left = str(max(0, asked(most, resource) - by))
        for amounts in (most.get("resources") or {}).values():
            if isinstance(amounts, dict) and resource in amounts:
                amounts[resource] = left

    return lower


def ask_another(near_miss: NearMiss) -> Iterator[Edit]:
    """Ask for another resource of the same make: the MIG profile, the share or the whole GPU that the node has.

    Several GPUs are never turned into slices: a CUDA process sees one MIG device (MIG user guide).
    """
    if near_miss.code not in (Code.ResourceNotOffered, Code.MIGProfileAbsent, Code.SharingNotAllowed):
        return
    for resource, amount in near_miss.scheduled_pod.demand.resources:
        domain = resource.partition("/")[0]
        for other, free in near_miss.node.free.units.items():
            unlike = (profile_of(other) is None) is not (profile_of(resource) is None)
            enough = amount <= min(free, 1 if unlike else free)
            if enough and other != resource and other.partition("/")[0] == domain:
                text = f"ask for {other} instead of {resource}"
                yield Edit("ask-another", text, 35 + unlike, _renamed(resource, other))


def _renamed(resource: str, other: str) -> Callable[[Document], None]:
    def rename(pod: Document) -> None:
        for container in containers_of(pod):
            for amounts in (container.get("resources") or {}).values():
                if isinstance(amounts, dict) and resource in amounts:
                    amounts[other] = amounts.pop(resource)

    return rename


def free_gpus(near_miss: NearMiss) -> Iterator[Edit]:
    """Free GPUs on the node: those of the least important pods, and of them the fewest."""
    if near_miss.code is not Code.InsufficientGPUs:
        return
    node = near_miss.node
    for resource, amount in near_miss.scheduled_pod.demand.resources:
        short = amount - node.free.units.get(resource, 0)
        holders = [(each, dict(each.units).get(resource, 0)) for each in near_miss.world.holdings(node.name)]
        gone: list[GPUUsage] = []
        freed = 0
        for each, held in sorted(holders, key=lambda pair: (pair[0].priority, -pair[1], pair[0].name)):
            if held and freed < short:
                gone.append(each)
                freed += held
        if 0 < short <= freed:
            names = ", ".join(f"{each.name} (priority {each.priority})" for each in gone[:3])
            more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
            yield Edit("free-gpus", f"free {short} {resource} on {node.name}, held by {names}{more}", 51 + freed,
                       node=_freed(resource, freed), on=node.name, evicts=tuple(gone))  # fmt: skip


def _freed(resource: str, amount: int) -> Callable[[Node], Node]:
    def free(node: Node) -> Node:
        units = {**node.free.units, resource: node.free.units.get(resource, 0) + amount}
        return replace(node, free=replace(node.free, units=units))

    return free


_ANNOTATED: Mapping[Code, tuple[str, Callable[[Node], str | None]]] = {
    Code.GPUMemoryTooSmall: (
        "gpu-memory", lambda node: f"{node.node_class.memory_mib}Mi" if node.node_class.memory_mib else None),
    Code.SharingNotAllowed: ("sharing", lambda _: "Any"),
    Code.InterconnectAbsent: ("interconnect", lambda _: None),
    Code.ComputeCapabilityTooLow: (
        "compute-capability",
        lambda node: show_version(node.node_class.compute_capability) if node.node_class.compute_capability else None),
    Code.MIGProfileAbsent: ("mig-profile", lambda _: None),
    Code.DriverTooOld: ("cuda", lambda node: show_version(node.node_class.cuda) if node.node_class.cuda else None),
    Code.GPUMemoryBudgetExceeded: ("gpu-memory", lambda _: None),
}  # fmt: skip
"""Which annotation states the need that a filter refuses for, and what it would have to say on the node."""


def say_otherwise(near_miss: NearMiss) -> Iterator[Edit]:
    """Lower a need that the pod's own annotation states, or drop it."""
    found = _ANNOTATED.get(near_miss.code) if isinstance(near_miss.code, Code) else None
    annotations = near_miss.scheduled_pod.pod.annotations
    if found is None or PREFIX + found[0] not in annotations:
        return
    key, value = PREFIX + found[0], found[1](near_miss.node)
    if value is not None and value != annotations[key]:
        yield Edit("lower-need", f"set {key}: {value} instead of {annotations[key]}", 24, annotated(key, value))
    else:
        yield Edit("drop-need", f"drop the annotation {key}: {annotations[key]}", 25, annotated(key, None))


def allow_product(near_miss: NearMiss) -> Iterator[Edit]:
    """Add the node's product to those that the pod's annotation allows."""
    key, product = PREFIX + "products", near_miss.node.node_class.product
    said = near_miss.scheduled_pod.pod.annotations.get(key)
    if near_miss.code is not Code.ProductNotAllowed or not said or product is None:
        return
    row = near_miss.world.setting.knowledge.products.by_form.get(product)
    name = row.label if row else product
    kept = [each for each in said.split(",") if not each.strip().startswith("!")]
    denied = [each for each in said.split(",") if each.strip().startswith("!")]
    parts = _parts(near_miss)
    if kept and not (parts and any(amount > 1 for _, amount in near_miss.scheduled_pod.demand.resources)):
        lesser = parts or _lesser(near_miss)
        value = ",".join((*(each.strip() for each in said.split(",")), name))
        text = f"allow {name} too, in {key}{f': {lesser}' if lesser else ''}"
        yield Edit("allow-product", text, 45 if lesser else 23, annotated(key, value))
    if denied:
        text = ",".join(each.strip() for each in kept)
        yield Edit("allow-product", f"deny no product in {key}, which has {', '.join(denied)}", 24,
                   annotated(key, text or None))  # fmt: skip


def _parts(near_miss: NearMiss) -> str:
    """Say that a unit is no whole GPU on the node; empty where it is one."""
    units = [near_miss.node.node_class.unit(resource) for resource, _ in near_miss.scheduled_pod.demand.resources]
    parts = (unit for unit in units if unit not in (Sharing.Exclusive, Sharing.Unknown))
    return next((f"one unit is {unit.value} there" for unit in parts), "")


def _lesser(near_miss: NearMiss) -> str:
    """Say that the node's GPUs have less memory than those of any product asked; empty where they have not."""
    demand, found = near_miss.scheduled_pod.demand, near_miss.node.node_class
    rows = near_miss.world.setting.knowledge.products.by_form.items()
    wanted = [row.memory_mib for form, row in rows if row.memory_mib and allows(demand, form)]
    if wanted and found.memory_mib and found.memory_mib < SAME_MEMORY * min(wanted):
        return f"{found.memory_mib} MiB of memory each"
    return ""


SAME_MEMORY = 0.93
"""What a label says of a GPU may be so much less than its table (docs/reference/sharing-and-memory.md#memory)."""


def older_image(near_miss: NearMiss) -> Iterator[Edit]:
    """Use an image built for a CUDA that the node's driver runs: of its own major version, or none newer than its own.

    The image is of the same repository where its tags are known; else one of NVIDIA's stands for any such.
    """
    cuda = near_miss.node.node_class.cuda
    if near_miss.code not in IMAGE_CODES or cuda is None:
        return
    images = near_miss.world.setting.knowledge.images
    for place, most in enumerate(((cuda[0], ANY_MINOR), cuda)):
        changes: dict[str, str] = {}
        for container in (*near_miss.scheduled_pod.pod.containers,):
            found = images.infer(container.image)
            if (found is not None and found.cuda[: len(most)] > most) or (found is not None and place):
                changes[container.image] = images.older(container.image, most) or OLD_IMAGE.format(show_version(cuda))
        if changes:
            shown = show_version(cuda) if place else f"{cuda[0]}.x"
            text = f"use an image built for CUDA <= {shown}, such as {', '.join(changes.values())}"
            yield Edit("older-image", text, 40 + place, _with_images(changes))


def _with_images(changes: Mapping[str, str]) -> Callable[[Document], None]:
    def change(pod: Document) -> None:
        for container in containers_of(pod):
            image = str(container.get("image") or "")
            container["image"] = changes.get(image, image)

    return change


ANY_MINOR = 999
"""Above any minor version that CUDA will have."""
OLD_IMAGE = "nvcr.io/nvidia/cuda:{}.0-base-ubuntu22.04"
IMAGE_CODES = (Code.DriverTooOld, Code.ImageRequirementUnmet, Code.ComputeCapabilityUnsupported,
               Code.ComputeCapabilityTooLow)  # fmt: skip

GPU = (
    allow_product,
    say_otherwise,
    ask_fewer,
    ask_another,
    older_image,
    free_gpus,
)
