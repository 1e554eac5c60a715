# SPDX-License-Identifier: Apache-2.0
"""A slow, obvious twin of the filters, from the fact files and a raw node straight to the reasons.

It shares no code with app/: it reads the YAML itself, compares versions and tokens in the simplest way, and follows
docs/reference and app/knowledge/cuda_driver.yaml (decision_procedure) line by line. `causes` names every reason that is
true of a pair; the filters may give any of them as their first.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from tests.placement import twin_node
from tests.placement.twin_compatible import code_causes, cuda_causes
from tests.placement.twin_cuda import facts
from tests.placement.twin_evidence import layout_to_come
from tests.placement.twin_free import free_causes
from tests.placement.twin_health import count_causes, health_causes
from tests.placement.twin_images import built_for
from tests.placement.twin_units import memory_causes, sharing_causes, slice_causes
from tests.placement.twin_world import GPU, SLICES, Part, Policy, RawDevice, RawNode, RawPod, Wish, without_remembered

__all__ = ["GPU", "Part", "Policy", "RawNode", "RawPod", "Wish", "causes", "class_causes", "could_serve", "free_causes"]

UPGRADING = (
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
)
"""The driver-upgrade states from cordon-required on (NVIDIA/k8s-operator-libs pkg/upgrade/consts.go); upgrade-required
only lowers the score (docs/reference/compatibility.md#node-states)."""
FORMS = {"SXM2": "SXM", "SXM4": "SXM", "SXM5": "SXM", "SXM6": "SXM"}
PARSES = {
    "cuda": r"(>=)?\d+(\.\d+)*",
    "compute-capability": r"(>=)?\d+(\.\d+)*",
    "gpu-memory": r"\d+(Gi|GB|Mi)",
    "sharing": r"Any|Shared|Exclusive",
    "interconnect": r"NVLink",
    "mig-profile": r"(>=)?\dg\.\d+gb(\.me)?",
    "products": r"!?[\w.*-]*[\w.-](, *!?[\w.*-]*[\w.-])*",
}
"""The grammar of the annotations (docs/reference/policy.md#annotations), as far as the tests write them. A star must
also be a token of its own."""


def causes(wish: Wish, node: RawNode, pods: Sequence[RawPod] = ()) -> set[str]:
    """Name every reason that is true of the pair; without one, the node could serve the wish now.

    What is free is a reason only where an eviction could help.
    """
    node = without_remembered(node)
    return class_causes(wish, node) or free_causes(wish, node, pods)


def class_causes(wish: Wish, node: RawNode) -> set[str]:
    """Name every reason that evicting pods cannot remove. A wish for no GPU fits anywhere."""
    node = without_remembered(node)
    if wish.claimed:
        return claim_causes(wish, node)
    if not wish.asked:
        return set()
    shown = [as_node(node, device) for device in node.devices]  # the pod may be given any device, so each must do
    reasons = {code for rule in RULES for code in rule(wish, node)}
    return reasons.union(code for device_node in shown for rule in OF_DEVICES for code in rule(wish, device_node))


def claim_causes(wish: Wish, node: RawNode) -> set[str]:
    """Name the reasons against a claim: those of the node, and those of its devices if none of them can serve it."""
    reasons = {code for rule in OF_NODES for code in rule(wish, node)}
    asking = replace(wish, parts=tuple(replace(part, claims=False, amount=1) for part in wish.containers))
    nodes = [as_node(node, device) for device in node.devices] or [undivided(node)]
    of_devices = [{code for rule in OF_DEVICES for code in rule(asking, device_node)} for device_node in nodes]
    return reasons if set() in of_devices else reasons.union(*of_devices)


def undivided(node: RawNode) -> RawNode:
    """Return a node without its device plugin's sharing labels, since a claim is for whole devices."""
    if twin_node.several_models(node) or twin_node.unnamed_slices(node):
        return node
    divided = ("sharing-strategy", "gpu.replicas", "gpu.count", "shared-clients-per-gpu")
    labels = {key: value for key, value in node.labels.items() if not key.endswith(divided)}
    if product := labels.get("nvidia.com/gpu.product"):
        labels["nvidia.com/gpu.product"] = product.removesuffix("-SHARED")
    return replace(node, labels=labels, hami="")


def as_node(node: RawNode, device: RawDevice) -> RawNode:
    """Write a device's facts as the labels of a node with one GPU. The node's own labels stay where the device lacks a
    fact."""
    labels = node.labels | {"nvidia.com/gpu.product": "-".join(device.product.split())}
    if device.driver:  # the node's CUDA label belongs to the driver that the node's labels name
        labels = {key: value for key, value in labels.items() if "cuda.runtime" not in key}
        labels |= {"nvidia.com/cuda.driver-version.full": device.driver}
    if device.capability:
        major, minor, *_ = device.capability.split(".")
        labels |= {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
    if device.memory:
        labels |= {"nvidia.com/gpu.memory": str(device.memory)}
    return RawNode(labels, {GPU: 1})


def could_serve(wish: Wish, labels: dict[str, str], offers: dict[str, int]) -> bool:
    """Tell whether a node with these labels and allocatable could ever serve the wish."""
    return not class_causes(wish, RawNode(labels, offers))


def annotation_causes(wish: Wish, _: RawNode) -> Iterator[str]:
    """An annotation that does not parse refuses every node, as does a profile other than the requested slices'."""
    for key, text in wish.broken:
        words = [word for item in text.split(",") for word in item.strip().removeprefix("!").split("-")]
        starred = key == "products" and any("*" in word and word != "*" for word in words)
        if starred or not re.fullmatch(PARSES[key], text):
            yield "InvalidAnnotation"
    named = {twin_node.profile_of(resource) for resource in wish.asked if resource.startswith(SLICES)}
    if wish.mig_profile and not wish.mig_profile.startswith(">=") and named and wish.mig_profile not in named:
        yield "InvalidAnnotation"


def operator_causes(_: Wish, node: RawNode) -> Iterator[str]:
    """F44, F45, F62: the node must not be in a state in which operators change it."""
    if node.labels.get("nvidia.com/gpu.product", "").endswith("-MIG-INVALID"):
        yield "MIGInvalid"
    paused = node.labels.get("nvidia.com/gpu.deploy.device-plugin")
    state = node.labels.get("nvidia.com/mig.config.state") or "success"
    if state == "failed" and paused != "paused-for-mig-change":
        yield "MIGLayoutFailed"
    elif state != "success" or paused == "paused-for-mig-change" or layout_to_come(node):
        yield "MIGReconfiguring"
    state = node.labels.get("nvidia.com/gpu-driver-upgrade-state", "")
    if state in UPGRADING or paused == "paused-for-driver-upgrade":
        yield "DriverUpgrading"


def selector_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """F38: the node must match the node selectors of all policies; absent keys count as in any label selector."""
    for rule in wish.rules:
        wrong = [key for key, value in rule.labels if node.labels.get(key) != value]
        for key, operator, values in rule.expressions:
            holds = {
                "In": node.labels.get(key) in values,
                "NotIn": node.labels.get(key) not in values,
                "Exists": key in node.labels,
                "DoesNotExist": key not in node.labels,
            }
            wrong += [] if holds[operator] else [key]
        if wrong:
            yield "NodeExcluded"


@cache
def means_product(word: str, product: str) -> bool:
    """Tell whether an entry of a product list means a product: a family, a name, a glob over whole tokens, or
    tokens."""
    row = twin_node.product_row(product)
    families = {entry["family"].lower() for entry in facts("gpu_products.yaml")["products"]}
    if "*" in word:
        tokens = [r"[^-]+(-[^-]+)*" if token == "*" else re.escape(token) for token in twin_node.bare(word).split("-")]
        return re.fullmatch("-".join(tokens), product) is not None
    if word.startswith(("NVIDIA-", "Tesla-")):
        return twin_node.bare(word) == product
    if word.lower() in families:
        return row is not None and row["family"].lower() == word.lower() and not row.get("part")
    tokens, words = product.split("-"), word.lower().split("-")
    return any(tokens[at : at + len(words)] == words for at in range(len(tokens)))


def machine_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """F34: an image whose publisher builds its tag for one architecture alone does not start on another CPU."""
    has = node.labels.get("kubernetes.io/arch")
    built = [built_for(part.image) for part in wish.containers if part.image]
    if has and any(architecture not in (None, has) for architecture in built):
        yield "ImageForOtherMachine"


def product_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """F30 to F32: each list of allowed products must hold, and no denied product may match."""
    words = [word.strip() for word in wish.products.split(",")] if wish.products else []
    allowed = [[word for word in words if not word.startswith("!")], *(list(rule.allow) for rule in wish.rules)]
    denied = [word[1:] for word in words if word.startswith("!")] + [word for rule in wish.rules for word in rule.deny]
    if not denied and not any(allowed):
        return
    wrong = [
        any(means_product(word, product) for word in denied)
        or any(allow_list and not any(means_product(word, product) for word in allow_list) for allow_list in allowed)
        for product in twin_node.products(node)
    ]
    if wrong and all(wrong):
        yield "ProductNotAllowed"
    elif any(wrong) or not wrong:
        yield "GPUFactsMissing"


def form_factor_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """F54: all products that the node may have must agree on the form factor."""
    allow_lists = [rule.forms for rule in wish.rules if rule.forms]
    if not allow_lists:
        return
    forms = {FORMS.get(row["form_factor"], row["form_factor"]) if row else None for row in twin_node.rows_of(node)}
    if len(forms) != 1 or None in forms:
        if wish.refuses_unknown:
            yield "GPUFactsMissing"
    elif any(form not in allow_list for allow_list in allow_lists for form in forms):
        yield "FormFactorNotAllowed"


def interconnect_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """Only GPUs that are all joined by NVLink count; bridges and slices do not.

    See docs/reference/compatibility.md#interconnect.
    """
    if not wish.nvlink and not any(rule.nvlink for rule in wish.rules):
        return
    if any(twin_node.unit_of(resource, node) in ("slice", "named slice") for resource in wish.asked):
        yield "InterconnectAbsent"
    if twin_node.label_slice(node) or any(resource.startswith(SLICES) for resource in wish.asked):
        yield "InterconnectAbsent"
        return
    joined = {
        (None if row["nvlink"] is None else row["nvlink"] is True or "NVL72" in str(row["nvlink"])) if row else None
        for row in twin_node.rows_of(node)
    }
    if len(joined) != 1 or None in joined:
        if wish.refuses_unknown:
            yield "GPUFactsMissing"
    elif joined == {False}:
        yield "InterconnectAbsent"


RULES: tuple[Callable[[Wish, RawNode], Iterator[str]], ...] = (
    annotation_causes,
    operator_causes,
    selector_causes,
    machine_causes,
    product_causes,
    form_factor_causes,
    sharing_causes,
    slice_causes,
    memory_causes,
    interconnect_causes,
    cuda_causes,
    code_causes,
    count_causes,
    health_causes,
)
OF_NODES = (annotation_causes, operator_causes, selector_causes, machine_causes, health_causes)
OF_DEVICES = (product_causes, form_factor_causes, memory_causes, interconnect_causes, cuda_causes, code_causes)
"""The rules for a claim: OF_NODES judge the node, and OF_DEVICES each device. The claim itself states shares and
counts."""
