# SPDX-License-Identifier: Apache-2.0
"""A slow, obvious twin of the filters: from the fact files and what a node says of itself straight to the reasons.

It shares no code with app/: it reads the YAML itself, compares versions and tokens in the plainest way, and follows
docs/reference and app/knowledge/cuda_driver.yaml (decision_procedure) line by line. `causes` names every reason
that is true of a pair; the filters may give any of them as their first.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from tests.placement import twin_node as said
from tests.placement.twin_compatible import cuda_causes
from tests.placement.twin_cuda import facts
from tests.placement.twin_free import free_causes
from tests.placement.twin_health import count_causes, health_causes
from tests.placement.twin_world import GPU, SLICES, Part, Policy, RawDevice, RawNode, RawPod, Wish

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
"""Driver-upgrade states from cordon-required on (NVIDIA/k8s-operator-libs pkg/upgrade/consts.go);
upgrade-required alone scores down (docs/reference/compatibility.md#node-states)."""
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
"""The annotations' grammar (docs/reference/policy.md#annotations), as far as the tests write it; besides, a star is a
token of its own."""


def causes(wish: Wish, node: RawNode, pods: Sequence[RawPod] = ()) -> set[str]:
    """Name every reason that is true of the pair; none: the node could serve the wish now.

    What is free is no reason of its own where no eviction would help.
    """
    return class_causes(wish, node) or free_causes(wish, node, pods)


def class_causes(wish: Wish, node: RawNode) -> set[str]:
    """Name every reason that evicting pods cannot mend. A wish for no GPU fits anywhere."""
    if wish.claimed:
        return claim_causes(wish, node)
    if not wish.asked:
        return set()
    shown = [as_node(node, device) for device in node.devices]  # all of them must do, since any may be given
    found = {code for rule in RULES for code in rule(wish, node)}
    return found.union(code for each in shown for rule in OF_DEVICES for code in rule(wish, each))


def claim_causes(wish: Wish, node: RawNode) -> set[str]:
    """Name what stands against a claim: of the node, and of its devices where none of them does."""
    found = {code for rule in OF_NODES for code in rule(wish, node)}
    asking = replace(wish, parts=tuple(replace(part, claims=False, amount=1) for part in wish.containers))
    nodes = [as_node(node, device) for device in node.devices] or [undivided(node)]
    of_devices = [{code for rule in OF_DEVICES for code in rule(asking, each)} for each in nodes]
    return found if set() in of_devices else found.union(*of_devices)


def undivided(node: RawNode) -> RawNode:
    """Write a node without what its device plugin says of shares: a claim is for devices."""
    if said.several_models(node) or said.unnamed_slices(node):
        return node
    divided = ("sharing-strategy", "gpu.replicas", "gpu.count", "shared-clients-per-gpu")
    labels = {key: value for key, value in node.labels.items() if not key.endswith(divided)}
    if product := labels.get("nvidia.com/gpu.product"):
        labels["nvidia.com/gpu.product"] = product.removesuffix("-SHARED")
    return replace(node, labels=labels, hami="")


def as_node(node: RawNode, device: RawDevice) -> RawNode:
    """Write a device's facts as the labels of a node that has nothing else; what it does not say, its node may."""
    labels = node.labels | {"nvidia.com/gpu.product": "-".join(device.product.split())}
    if device.driver:  # the CUDA that the node's labels report is of the driver that they name
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


def readable(wish: Wish, _: RawNode) -> Iterator[str]:
    """An annotation that does not parse refuses everywhere; so does a profile that is none of the slices asked."""
    for key, text in wish.broken:
        words = [word for item in text.split(",") for word in item.strip().removeprefix("!").split("-")]
        starred = key == "products" and any("*" in word and word != "*" for word in words)
        if starred or not re.fullmatch(PARSES[key], text):
            yield "InvalidAnnotation"
    named = {said.profile_of(resource) for resource in wish.asked if resource.startswith(SLICES)}
    if wish.mig_profile and not wish.mig_profile.startswith(">=") and named and wish.mig_profile not in named:
        yield "InvalidAnnotation"


def settled(_: Wish, node: RawNode) -> Iterator[str]:
    """F44, F45, F62: what the operators are doing to the node."""
    if node.labels.get("nvidia.com/gpu.product", "").endswith("-MIG-INVALID"):
        yield "MIGInvalid"
    paused = node.labels.get("nvidia.com/gpu.deploy.device-plugin")
    if node.labels.get("nvidia.com/mig.config.state", "success") != "success" or paused == "paused-for-mig-change":
        yield "MIGReconfiguring"
    state = node.labels.get("nvidia.com/gpu-driver-upgrade-state", "")
    if state in UPGRADING or paused == "paused-for-driver-upgrade":
        yield "DriverUpgrading"


def right_labels(wish: Wish, node: RawNode) -> Iterator[str]:
    """F38: the node selectors of all policies; absent keys count as for any label selector."""
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


def refuses_unknown(wish: Wish) -> bool:
    """Refuse of any policy (docs/reference/compatibility.md#unknown-facts)."""
    return any(rule.unknown == "Refuse" for rule in wish.rules)


@cache
def named(word: str, product: str) -> bool:
    """Tell whether a word of a product list means a product: family, one name, a glob over whole tokens, tokens."""
    row = said.product_row(product)
    families = {each["family"].lower() for each in facts("gpu_products.yaml")["products"]}
    if "*" in word:
        tokens = [r"[^-]+(-[^-]+)*" if each == "*" else re.escape(each) for each in said.bare(word).split("-")]
        return re.fullmatch("-".join(tokens), product) is not None
    if word.startswith(("NVIDIA-", "Tesla-")):
        return said.bare(word) == product
    if word.lower() in families:
        return row is not None and row["family"].lower() == word.lower()
    tokens, wanted = product.split("-"), word.lower().split("-")
    return any(tokens[at : at + len(wanted)] == wanted for at in range(len(tokens)))


def right_product(wish: Wish, node: RawNode) -> Iterator[str]:
    """F30 to F32; each list of allowed products must hold, none of the denied may."""
    words = [word.strip() for word in wish.products.split(",")] if wish.products else []
    allowed = [[word for word in words if not word.startswith("!")], *(list(rule.allow) for rule in wish.rules)]
    denied = [word[1:] for word in words if word.startswith("!")] + [word for rule in wish.rules for word in rule.deny]
    if not denied and not any(allowed):
        return
    wrong = [
        any(named(word, product) for word in denied)
        or any(each and not any(named(word, product) for word in each) for each in allowed)
        for product in said.products(node)
    ]
    if wrong and all(wrong):
        yield "ProductNotAllowed"
    elif any(wrong) or not wrong:
        yield "GPUFactsMissing"


def right_form(wish: Wish, node: RawNode) -> Iterator[str]:
    """F54; products that the node may be must agree."""
    wanted = [rule.forms for rule in wish.rules if rule.forms]
    if not wanted:
        return
    forms = {FORMS.get(row["form_factor"], row["form_factor"]) if row else None for row in said.rows_of(node)}
    if len(forms) != 1 or None in forms:
        if refuses_unknown(wish):
            yield "GPUFactsMissing"
    elif any(form not in each for each in wanted for form in forms):
        yield "FormFactorNotAllowed"


def right_sharing(wish: Wish, node: RawNode) -> Iterator[str]:
    """F63, F67 to F69; an unknown word of sharing is a whole GPU, and where nothing tells, it is not known."""
    for part in wish.containers:
        if said.unit_of(part.resource, node) == "mps-share" and part.amount > 1:
            yield "SharedReplicasAskedAsGPUs"
    units = [said.unit_of(resource, node) for resource in wish.asked]
    if not (allowed := units_wanted(wish)):
        return
    if any(unit not in (*allowed, "unknown") for unit in units):
        yield "SharingNotAllowed"
    if "unknown" in units and refuses_unknown(wish):
        yield "GPUFactsMissing"


def units_wanted(wish: Wish) -> tuple[str, ...]:
    """List the units that will do; none where any will. The strictest holds: beside Shared, admission has denied it."""
    wanted = {wish.sharing, *(rule.sharing for rule in wish.rules)}
    if "Exclusive" in wanted:
        return "whole", "named slice"
    return ("share", "mps-share") if "Shared" in wanted else ()


def right_slice(wish: Wish, node: RawNode) -> Iterator[str]:
    """F59: judged where no slice is asked by name (docs/reference/sharing-and-memory.md#mig-at-least)."""
    if wish.mig_profile is None or any(resource.startswith(SLICES) for resource in wish.asked):
        return
    has, wanted = said.label_slice(node), wish.mig_profile.removeprefix(">=")
    if wanted == wish.mig_profile:
        if has != wanted:
            yield "MIGProfileAbsent"
        return
    compute, memory = said.slice_size(wanted)
    if has:
        size = said.slice_size(has)
        if size[0] < compute or size[1] < memory:
            yield "MIGProfileAbsent"
        return
    if "share" in units_wanted(wish):
        yield "MIGProfileAbsent"
    for resource in wish.asked:
        unit = said.unit_of(resource, node)
        told, most = said.unit_memory(resource, node)
        small = any(found is not None and found < 0.93 * memory for found in (told, most))
        if small or unit not in ("whole", "unknown"):
            yield "MIGProfileAbsent"
        elif (told is None or unit == "unknown") and refuses_unknown(wish):
            yield "GPUFactsMissing"


def right_memory(wish: Wish, node: RawNode) -> Iterator[str]:
    """F37: the label is at least 0.93 of what is wanted; a slice's, an MPS share's own.

    See docs/reference/sharing-and-memory.md#memory.
    """
    needs = [each for each in (wish.memory, *(rule.memory for rule in wish.rules)) if each]
    if not needs:
        return
    wanted = 0.93 * max(map(mib, needs))
    for resource in wish.asked:
        has, most = said.unit_memory(resource, node)
        shares = said.replicas(resource, node) if said.unit_of(resource, node) == "mps-share" else 1
        if any(memory is not None and memory / shares < wanted for memory in (has, most)):
            yield "GPUMemoryTooSmall"
        elif has is None and refuses_unknown(wish):
            yield "GPUFactsMissing"


def mib(text: str) -> int:
    """Read `40Gi`, `40GB` (one wish) or `512Mi`."""
    number = int(re.match(r"\d+", text)[0])  # type: ignore[index]
    return number if text.endswith("Mi") else number * 1024


def right_interconnect(wish: Wish, node: RawNode) -> Iterator[str]:
    """GPUs that are joined all-to-all count, bridges and slices do not.

    See docs/reference/compatibility.md#interconnect.
    """
    if not wish.nvlink and not any(rule.nvlink for rule in wish.rules):
        return
    if any(said.unit_of(resource, node) in ("slice", "named slice") for resource in wish.asked):
        yield "InterconnectAbsent"
    if said.label_slice(node) or any(resource.startswith(SLICES) for resource in wish.asked):
        yield "InterconnectAbsent"
        return
    joined = {row["nvlink"] is True or "NVL72" in str(row["nvlink"]) if row else None for row in said.rows_of(node)}
    if len(joined) != 1 or None in joined:
        if refuses_unknown(wish):
            yield "GPUFactsMissing"
    elif joined == {False}:
        yield "InterconnectAbsent"


def compatible(wish: Wish, node: RawNode) -> Iterator[str]:
    """F34 to F36."""
    return cuda_causes(wish, node, refuses_unknown(wish))


RULES: tuple[Callable[[Wish, RawNode], Iterator[str]], ...] = (
    readable,
    settled,
    right_labels,
    right_product,
    right_form,
    right_sharing,
    right_slice,
    right_memory,
    right_interconnect,
    compatible,
    count_causes,
    health_causes,
)
OF_NODES = (readable, settled, right_labels, health_causes)
OF_DEVICES = (right_product, right_form, right_memory, right_interconnect, compatible)
"""What a claim is judged by: the node as it is, and each device. Shares and counts are the claim's own to say."""
