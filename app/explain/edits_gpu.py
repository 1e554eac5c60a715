# SPDX-License-Identifier: Apache-2.0
"""Edits for the filters' objections: another need, another resource, another image, or GPUs freed on the node."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from app.admission.validators import pod_level_gpus
from app.explain.container_requests import (
    at_most_each,
    lowered,
    names_of_requesters,
    names_resource,
    replace_resource,
    requests_text,
    set_requests,
    total_after,
    units_of,
)
from app.explain.edits import ENDS_OTHERS, Edit, EditedDocument, NearMiss, containers_of, distance, set_annotation
from app.explain.edits_in_tree import OPERATING_SYSTEM
from app.intree.checks import InTreeCause
from app.knowledge.gpu_resources import is_refused, similar_resources
from app.knowledge.images import split_reference
from app.knowledge.mig_profiles import nominal_size, profile_of
from app.knowledge.products import ProductPattern, Products, normal_form
from app.kube.gpu_usage import GPUUsage
from app.kube.pods import PREFIX, Pod
from app.nodes.model import SHARES, Node, NodeClass, Sharing
from app.placement.filters import allows_product
from app.policy.demand import Demand
from app.policy.needs import LEAST_CUDA, LEAST_MEMORY, MIG_PROFILE, NEEDS, Need
from app.policy.schema_placement import SharingWish
from app.values.quantity import enough_memory
from app.values.reasons import Code, join_with_or
from app.values.versions import ABOVE_ANY_MINOR, show_version


def request_fewer_gpus(near_miss: NearMiss) -> Iterator[Edit]:
    """Request as many GPUs as the node has free, as the policy allows, or as its device plugin gives one container."""
    if near_miss.code not in FEWER_HELP:
        return
    most, pod = near_miss.scheduled_pod.ruling.enforced.max_gpus_per_pod, near_miss.scheduled_pod.pod
    for resource, amount in near_miss.scheduled_pod.demand.resources:
        left = min(near_miss.node.free.units.get(resource, 0), amount if most is None else most)
        if (most_each := _most_per_container(near_miss, resource)) is not None:
            requests = at_most_each(pod, resource, most_each)
        else:
            requests = lowered(pod, resource, left) if 0 < left < amount else ()
        after = total_after(pod, resource, requests) if requests else amount
        if after < amount:
            text = f"ask for {after} {resource} instead of {amount}{requests_text(pod, resource, requests)}"
            any_unit = near_miss.scheduled_pod.demand.sharing is SharingWish.Any and profile_of(resource) is None
            part = f": {one}" if any_unit and (one := _part_of_gpu(near_miss)) else ""
            weight = 30 + amount - after + 15 * bool(part)
            yield Edit("ask-fewer", text + part, weight, set_requests(resource, requests), on=near_miss.node.name)


def whole_gpus(near_miss: NearMiss) -> Iterator[Edit]:
    """Ask for a whole number of GPUs instead of a fraction, rounded up."""
    if near_miss.code is not Code.QuantityFractional:
        return
    pod = near_miss.scheduled_pod.pod
    for resource, amount in near_miss.scheduled_pod.demand.resources:
        requests = [(one, units_of(one, resource)) for one in pod.containers if one.requested(resource) % 1]
        if requests:
            text = f"ask for {amount} {resource}, a whole number{requests_text(pod, resource, requests)}"
            yield Edit("ask-whole", text, 5, set_requests(resource, requests))


FEWER_HELP = (Code.InsufficientGPUs, Code.RequestExceedsNode, Code.TooManyGPUs, Code.SharedReplicasAskedAsGPUs)


def _most_per_container(near_miss: NearMiss, resource: str) -> int | None:
    """Give the most units that the node's device plugin gives one container; None where that is not what refuses."""
    if near_miss.code is Code.SharedReplicasAskedAsGPUs:
        return 1
    hami = near_miss.node.node_class.unit(resource) is Sharing.HAMi and near_miss.code is Code.RequestExceedsNode
    return near_miss.node.node_class.hami_gpus or None if hami else None


def request_other_resource(near_miss: NearMiss) -> Iterator[Edit]:
    """Request another resource of the same vendor: the MIG profile, the share or the whole GPU that the node has.

    Several GPUs are never replaced by slices: a CUDA process uses only one MIG device (NVIDIA MIG User Guide).
    """
    if near_miss.code not in (Code.ResourceNotOffered, Code.MIGProfileAbsent, Code.SharingNotAllowed):
        return
    families, selector = near_miss.snapshot.knowledge.families, near_miss.scheduled_pod.own.selector
    on_windows = (OPERATING_SYSTEM, "windows") in selector
    others = [name for name in near_miss.node.allocatable if on_windows and families.elsewhere(name) in families.others]
    for resource, amount in near_miss.scheduled_pod.demand.resources:
        domain = resource.partition("/")[0]
        for other, free in (*near_miss.node.free.units.items(), *((name, amount) for name in others)):
            changes_kind = (profile_of(other) is None) is not (profile_of(resource) is None)
            enough = amount <= min(free, 1 if changes_kind else free)
            if enough and other != resource and (other.partition("/")[0] == domain or other in others):
                requesters = names_of_requesters(near_miss.scheduled_pod.pod, resource)
                wish = near_miss.scheduled_pod.demand.mig_profile
                wished = wish is not None and profile_of(other) == wish[0]
                lesser = "" if wished else _lesser_unit(near_miss.node.node_class, resource, other)
                text = f"ask for {other} instead of {resource}{requesters}{f': {lesser}' if lesser else ''}"
                weight = 10 if wished else 35 + changes_kind + 8 * bool(lesser)
                yield Edit("ask-another", text, weight, replace_resource(resource, other), on=near_miss.node.name)


def _lesser_unit(node_class: NodeClass, resource: str, other: str) -> str:
    """Say that a unit of another resource is less than one of the resource that is asked for; else empty."""
    asked, offered = (profile_of(name) or "" for name in (resource, other))
    if not asked and (offered or node_class.unit(other) in SHARES) and not resource.endswith(".shared"):
        return f"{node_class.unit_words(other)}, not a whole GPU"
    sizes = nominal_size(asked), nominal_size(offered)
    if sizes[0] and sizes[1] and (sizes[1].compute, sizes[1].memory_mib) < (sizes[0].compute, sizes[0].memory_mib):
        return f"a smaller slice, with {sizes[1].memory_mib} MiB"
    if sizes[0] and not offered and node_class.unit(other) in SHARES:
        return f"{node_class.unit_words(other)}, which has no memory of its own"
    if sizes[0] and not offered and not enough_memory(node_class.memory_mib or inf, sizes[0].memory_mib):
        return f"a smaller GPU, with {node_class.memory_mib} MiB"
    if MEDIA in asked and MEDIA not in offered:
        return "it need not have media engines; a device plugin before v0.20.0 gives those slices the same name"
    return ""


MEDIA = ".me"
"""The part of a profile's name for media engines (NVIDIA/k8s-device-plugin#1807, #1972: v0.20.0)."""


def correct_resource(near_miss: NearMiss) -> Iterator[Edit]:
    """Request the resource that a misspelt name means, or that replaced one of former versions of Kubernetes."""
    offered = [resource for resource, free in near_miss.node.free.units.items() if free > 0]
    families = near_miss.snapshot.knowledge.families
    for name in _names_in_question(near_miss):
        naming = [one for one in near_miss.scheduled_pod.pod.containers if names_resource(one, name)]
        for position, other in enumerate(similar_resources(name, offered, families)):
            if other in offered and not any(names_resource(one, other) for one in naming):
                text = f"ask for {other} instead of {name}{names_of_requesters(near_miss.scheduled_pod.pod, name)}"
                yield Edit("correct-resource", text, 5 + position, replace_resource(name, other))


def move_to_container(near_miss: NearMiss) -> Iterator[Edit]:
    """Move the GPUs of the pod's own resources to its first container."""
    pod, families = near_miss.scheduled_pod, near_miss.snapshot.knowledge.families
    names = pod_level_gpus(pod.document, families) if near_miss.code is Code.ResourceNameInvalid else []
    main = next((one.name for one in pod.pod.containers if one.list_name == "containers"), "")

    def move(document: EditedDocument) -> None:
        for kind, amounts in (document["spec"].get("resources") or {}).items():
            for name in [name for name in amounts if name in names]:
                resources = document["spec"]["containers"][0].setdefault("resources", {})
                resources.setdefault(kind, {})[name] = amounts.pop(name)

    if names and main:
        yield Edit("correct-resource", f"ask for {', '.join(names)} in container {main}, not in the pod", 4, move)


def _names_in_question(near_miss: NearMiss) -> Iterator[str]:
    """List the names of resources to which the objection may be."""
    if near_miss.code is InTreeCause.InsufficientResource and near_miss.about[0] not in near_miss.node.allocatable:
        yield near_miss.about[0]
    elif near_miss.code is Code.ResourceNameInvalid:
        names = (name for container in near_miss.scheduled_pod.pod.containers for name in container.resources())
        yield from dict.fromkeys(filter(is_refused, names))
    elif near_miss.code in (Code.ResourceNotOffered, Code.MIGProfileAbsent):
        yield from (resource for resource, _ in near_miss.scheduled_pod.demand.resources)


def evict_to_free_gpus(near_miss: NearMiss) -> Iterator[Edit]:
    """Evict pods from the node to free GPUs: idle or broken ones first, then the lowest priority, and few."""
    if near_miss.code is not Code.InsufficientGPUs:
        return
    node = near_miss.node
    for resource, amount in near_miss.scheduled_pod.demand.resources:
        short = amount - node.free.units.get(resource, 0)
        usages = [
            (usage, dict(usage.units).get(resource, 0))
            for usage in near_miss.snapshot.state.allocations.bound(node.name)
        ]
        evicted: list[GPUUsage] = []
        freed = 0
        idle = near_miss.snapshot.idle
        states = {pod.name: pod.state for pod in near_miss.snapshot.existing_pods or () if pod.state}
        for usage, held in sorted(
            usages,
            key=lambda pair: (not {pair[0].name} & {*idle, *states}, pair[0].priority, -pair[1], pair[0].name),
        ):
            if held and freed < short:
                evicted.append(usage)
                freed += held
        if 0 < short <= freed:
            names = ", ".join(_holder(one, idle.get(one.name), states.get(one.name, "")) for one in evicted[:3])
            more = f" and {len(evicted) - 3} more" if len(evicted) > 3 else ""
            elsewhere = {one.name.partition("/")[0] for one in evicted} - {near_miss.scheduled_pod.pod.namespace}
            ask = f"; ask who runs namespace {join_with_or(sorted(elsewhere))}" if elsewhere else ""
            text = f"free {short} {resource} on {node.name}, held by {names}{more}{ask}"
            weight = 51 + freed + ENDS_OTHERS * bool(elsewhere)
            yield Edit("free-gpus", text, weight, None, _with_units(resource, freed), node.name, None, tuple(evicted))


def _holder(usage: GPUUsage, idle_seconds: float | None, state: str) -> str:
    idle = f", idle for {idle_seconds / 3600:.0f} h" if idle_seconds else ""
    return f"{usage.name} (priority {usage.priority}{idle}{f', {state}' if state else ''})"


def _with_units(resource: str, amount: int) -> Callable[[Node], Node]:
    return lambda node: replace(node, free=node.free.with_units([(resource, amount)]))


def _memory_left(demand: Demand, node: Node) -> float | None:
    """Give the memory in MiB that other pods have left undeclared of each unit of the shared GPUs."""
    left = [node.free.memory[name] // amount for name, amount in demand.resources if name in node.free.memory]
    return min(left, default=0) or None


NEEDS_BY_CODE: Mapping[Code | InTreeCause, Need[Any]] = {
    Code.MIGProfileAbsent: MIG_PROFILE,
    Code.ImageRequirementUnmet: LEAST_CUDA,
    Code.GPUMemoryBudgetExceeded: LEAST_MEMORY,
    **{code: need for need in NEEDS if need.annotation for code in need.codes},
}
"""The need behind a code, which the pod's annotation may state."""


def offer_of(code: Code | InTreeCause, demand: Demand, node: Node) -> Any:
    """Give what a node offers of the need behind a code; None where that is unknown, or has no order."""
    if code is Code.GPUMemoryBudgetExceeded:
        return _memory_left(demand, node)
    fact = need.fact if (need := NEEDS_BY_CODE.get(code)) else None
    return fact.value(demand, node.node_class) if fact and fact.compared.ordered else None


OVERCOMMITS = ", so that pods share that memory without a limit, and may run out of it"
"""What follows a change by which a pod no longer declares the memory that it uses of a shared GPU."""


def change_need(near_miss: NearMiss) -> Iterator[Edit]:
    """Change a need that an annotation of the pod states to what the node offers, or drop the annotation."""
    code, annotations = near_miss.code, near_miss.scheduled_pod.pod.annotations
    need = NEEDS_BY_CODE.get(code)
    if need is None or need.annotation is None or (key := PREFIX + need.annotation.name) not in annotations:
        return
    stated, offer = annotations[key], offer_of(code, near_miss.scheduled_pod.demand, near_miss.node)
    value, shared = need.eased(stated, offer, near_miss.node.node_class), code is Code.GPUMemoryBudgetExceeded
    if value is not None and value != stated:
        wish = None if offer is None else need.annotation.read(stated)
        weight = 24 + (0 if wish is None else distance(_as_number(wish), _as_number(offer)))
        weight += 22 * (value == "Any")  # a share in place of a whole GPU, or the reverse
        yield Edit("lower-need", f"set {key}: {value} instead of {stated}", weight, set_annotation(key, value))
    if value is None or value == stated or shared:
        text = f"drop the annotation {key}: {stated}{OVERCOMMITS if shared else ''}"
        yield Edit("drop-need", text, 45 if shared else 25, set_annotation(key, None))


def _as_number(value: float | tuple[int, ...]) -> float:
    return sum(part * 0.001**position for position, part in enumerate(value)) if isinstance(value, tuple) else value


def fewer_shares(near_miss: NearMiss) -> Iterator[Edit]:
    """Ask for as many shares as have the memory that the pod declares of each."""
    declared, pod = near_miss.scheduled_pod.demand.declared_mib, near_miss.scheduled_pod.pod
    if near_miss.code is not Code.GPUMemoryBudgetExceeded or not declared:
        return
    for resource, amount in near_miss.scheduled_pod.demand.resources:
        left = near_miss.node.free.memory.get(resource, 0) // declared
        if 0 < left < amount:
            requests = lowered(pod, resource, left)
            text = f"ask for {left} {resource} instead of {amount}{requests_text(pod, resource, requests)}"
            yield Edit("ask-fewer", text, 30 + distance(amount, left), set_requests(resource, requests))


def allow_product(near_miss: NearMiss) -> Iterator[Edit]:
    """Add the node's product to those that the pod's annotation allows."""
    key, product = PREFIX + "products", near_miss.node.node_class.product
    allowed = near_miss.scheduled_pod.pod.annotations.get(key)
    if near_miss.code is not Code.ProductNotAllowed or not allowed or product is None:
        return
    row = near_miss.snapshot.knowledge.products.by_form.get(product)
    own = (value for value in near_miss.node.labels.values() if normal_form(value) == product)
    label = row.label if row else next(own, product)
    names = [name for name in allowed.split(",") if not name.strip().startswith("!")]
    denied = [name for name in allowed.split(",") if name.strip().startswith("!")]
    part_text = _part_of_gpu(near_miss)
    if names and not (part_text and any(amount > 1 for _, amount in near_miss.scheduled_pod.demand.resources)):
        lesser, larger = part_text or _less_memory(near_miss), ""
        asked, offered = _asked_memory(near_miss), near_miss.node.node_class.memory_mib
        if asked and offered and offered > MUCH_LARGER * _asked_memory(near_miss, max):
            larger = f"a larger GPU, with {offered} MiB of memory"
        value = ",".join((*(name.strip() for name in allowed.split(",")), label))
        text = ": ".join(filter(None, (f"allow {label} too, in {key}", lesser or larger)))
        farther = distance(asked, offered) if asked and offered else 0.0
        weight = (45 if lesser else 27 if larger else 23) + farther
        yield Edit("allow-product", text, weight, set_annotation(key, value))
    if denied:
        text = ",".join(name.strip() for name in names)
        yield Edit("allow-product", f"deny no product in {key}, which has {', '.join(denied)}", 24,
                   set_annotation(key, text or None))  # fmt: skip


MUCH_LARGER = 1.5
"""Times the memory of the requested product from which another one is called larger; a guess."""
MOST_CORRECTED = 8
"""Names of one annotation that are compared with all products: 0.5 ms each, and people misspell the first."""


def correct_product(near_miss: NearMiss) -> Iterator[Edit]:
    """Replace a name in the annotation that is of no known product by the one that it is like."""
    key, pod, products = PREFIX + "products", near_miss.scheduled_pod.pod, near_miss.snapshot.knowledge.products
    if near_miss.code in (Code.ProductNotAllowed, Code.InvalidAnnotation):
        for value, pattern in corrected_products(pod, products):
            if pattern.matches(near_miss.node.node_class.product or ""):
                text = f"set {key}: {value} instead of {pod.annotations[key]}"
                yield Edit("correct-product", text, 10, set_annotation(key, value))


def corrected_products(pod: Pod, products: Products) -> Iterator[tuple[str, ProductPattern]]:
    """Give values of the annotation in which one name is corrected, with the products of that name."""
    names = [name.strip() for name in pod.annotations.get(PREFIX + "products", "").split(",")]
    for name in names[:MOST_CORRECTED]:
        similar = products.correction(name) if name and not name.startswith("!") else None
        if similar is not None:
            yield ",".join(similar if one == name else one for one in names), products.pattern(similar)


def _part_of_gpu(near_miss: NearMiss) -> str:
    """Write what one unit is on the node where it is not a whole GPU; else empty."""
    units = [near_miss.node.node_class.unit_words(name) for name, _ in near_miss.scheduled_pod.demand.resources]
    parts = (unit for unit in units if unit not in (Sharing.Exclusive.value, Sharing.Unknown.value))
    return next((f"one unit is {unit} there" for unit in parts), "")


def _asked_memory(near_miss: NearMiss, which: Callable[..., int] = min) -> int:
    """Return the least memory of the requested products in MiB, or the most (`max`); 0 where no table knows any."""
    demand = near_miss.scheduled_pod.demand
    rows = near_miss.snapshot.knowledge.products.by_form.items()
    return which((row.memory_mib for form, row in rows if row.memory_mib and allows_product(demand, form)), default=0)


def _less_memory(near_miss: NearMiss) -> str:
    """Write the memory of the node's GPUs where it is less than that of every requested product; else empty."""
    memory_mib = near_miss.node.node_class.memory_mib
    if memory_mib and not enough_memory(memory_mib, _asked_memory(near_miss)):
        return f"{memory_mib} MiB of memory each"
    return ""


def older_image(near_miss: NearMiss) -> Iterator[Edit]:
    """Use an image built for a CUDA version that the node's driver runs: of its major version, or at most its own.

    The image is of the same repository; where its tags are not known, the change names none.
    """
    cuda = near_miss.node.node_class.cuda
    if near_miss.code not in IMAGE_CODES or cuda is None:
        return
    images = near_miss.snapshot.knowledge.images
    for exact, most in enumerate(((cuda[0], ABOVE_ANY_MINOR), cuda)):
        changes, examples = dict[str, str](), list[str]()
        for container in near_miss.scheduled_pod.pod.containers:
            inferred = images.infer(container.image)
            if inferred is not None and (exact or inferred.cuda[: len(most)] > most):
                known = images.older_image(container.image, most)
                changes[container.image] = known or f"{split_reference(container.image)[0]}:cuda{show_version(cuda)}"
                examples += [known] if known else []
        if changes:
            shown = show_version(cuda) if exact else f"{cuda[0]}.x"
            such = f", such as {', '.join(examples)}" if examples else ""
            of = f" of {', '.join(split_reference(image)[0] for image in changes)}" * (not examples)
            text = f"use an image{of} built for CUDA <= {shown}{such}"
            yield Edit("older-image", text, (19 if examples else 22) + exact / 4, _with_images(changes))


def image_with_code(near_miss: NearMiss) -> Iterator[Edit]:
    """Use the nearest image of the same repository that serves the node's CPU and GPU, where such a tag is known."""
    table, pod = near_miss.snapshot.knowledge.image_code, near_miss.scheduled_pod.pod
    capability, architecture = near_miss.node.node_class.compute_capability, near_miss.node.node_class.architecture
    if near_miss.code not in (Code.ImageWithoutCodeForGPU, Code.ImageForOtherMachine) or capability is None:
        return
    builds = ((container.image, table.build(container.image)) for container in pod.containers)
    without = [image for image, build in builds if build and not build.serves(capability, architecture)]
    changes = {image: found for image in without if (found := table.nearest_image(image, capability, architecture))}
    if changes:
        text = f"use {', '.join(changes.values())}, which has code for this machine"
        yield Edit("image-with-code", text, 35, _with_images(changes))


def _with_images(changes: Mapping[str, str]) -> Callable[[EditedDocument], None]:
    def change(pod: EditedDocument) -> None:
        for container in containers_of(pod):
            image = str(container.get("image") or "")
            container["image"] = changes.get(image, image)

    return change


def drop_runtime_class(near_miss: NearMiss) -> Iterator[Edit]:
    """Drop runtimeClassName, where the node lacks the handler of the class."""
    if near_miss.code is Code.RuntimeHandlerAbsent:
        name = near_miss.scheduled_pod.pod.runtime_class_name
        text = f"drop runtimeClassName: {name}"
        yield Edit("drop-runtime-class", text, 15, lambda pod: pod["spec"].pop("runtimeClassName", None))


IMAGE_CODES = (Code.DriverTooOld, Code.ImageRequirementUnmet, Code.ComputeCapabilityUnsupported,
               Code.ComputeCapabilityTooLow)  # fmt: skip

GPU_EDITS = (
    whole_gpus,
    move_to_container,
    correct_resource,
    correct_product,
    allow_product,
    change_need,
    fewer_shares,
    request_fewer_gpus,
    request_other_resource,
    older_image,
    image_with_code,
    drop_runtime_class,
    evict_to_free_gpus,
)
