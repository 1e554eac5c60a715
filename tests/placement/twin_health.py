# SPDX-License-Identifier: Apache-2.0
"""Why a node has too few healthy units in all: counts that no eviction changes, and faults that somebody reports."""

from collections.abc import Iterator

from tests.placement import twin_node
from tests.placement.twin_evidence import absent
from tests.placement.twin_world import GPU, SHARED, SLICES, RawNode, Wish

STRICTEST = ("Refuse", "ScoreDown", "Ignore")
DEFAULTS = {"ill": "Refuse", "ailing": "ScoreDown", "unhealthy": "ScoreDown", "conditions": "ScoreDown"}
NVIDIA = "nvidia.com/"
FAULTS = {
    ("AcceleratedHardwareReady", "False"),
    ("GPUMissing", "True"),
    ("SysLogsXIDError", "True"),
    ("nvidia.com/GPUReady", "False"),
    ("nvidia.com/GPUReady", "Unknown"),
}
"""Conditions by which a GPU is faulty, of those that are drawn (twin_draw_nodes.py), as documented."""


def count_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """F46, F57, F70: judge what the node has in all, healthy or withdrawn (docs/reference/reasons.md#class-reasons).

    A container gets each of its HAMi shares from a GPU of its own. GPUs that only NVIDIA's DRA driver publishes are
    given to claims alone (docs/reference/dra.md).
    """
    for part in wish.containers:
        if node.hami and part.resource == GPU and part.amount > twin_node.registered(node):
            yield "RequestExceedsNode"
    for resource, amount in wish.asked.items():
        offered = node.offers(resource)
        if amount <= offered:
            continue
        if amount <= offered + node.withdrawn(resource):
            yield "GPUUnhealthy"
        elif offered:
            yield "RequestExceedsNode"
        elif node.devices and not any(map(node.offers, node.resources())) and resource.startswith(NVIDIA):
            yield "OfferedByClaimOnly"
        else:
            promised = absent(resource, node)
            if promised:
                yield "GhostGPUs"
            if resource.startswith(SLICES):
                yield "MIGProfileAbsent"
            elif not promised:
                yield "ResourceNotOffered"


def rule_for(wish: Wish, part: str) -> str:
    """Merge a health rule: the strictest action of the policies, or the default if no policy states one."""
    words = [word for rule in wish.rules if (word := getattr(rule, part))]
    return next((action for action in STRICTEST if action in words), DEFAULTS[part])


def health_causes(wish: Wish, node: RawNode) -> Iterator[str]:
    """F70, F72: judge withdrawn devices, conditions, and unhealthy GPUs that the device plugin has not withdrawn."""
    gone = withdrawn_gpus(node)
    if gone and rule_for(wish, "unhealthy") == "Refuse":
        yield "GPUUnhealthy"
    if FAULTS.intersection(node.conditions) and rule_for(wish, "conditions") == "Refuse":
        yield "GPUUnhealthy"
    if node.health is None:
        return
    ill, ailing = node.health
    if (rule_for(wish, "ill") == "Refuse" and ill > gone) or (rule_for(wish, "ailing") == "Refuse" and ailing):
        yield "GPUUnhealthy"


def withdrawn_gpus(node: RawNode) -> int:
    """Count the GPUs behind the withdrawn units, since every share or slice of a GPU is withdrawn with it."""
    gpus = 0
    for resource in node.resources():
        units = node.withdrawn(resource)
        shared = resource.endswith(SHARED) or twin_node.unit_of(resource, node) in ("share", "mps-share")
        gpus += -(-units // twin_node.replicas(resource, node)) if shared else units
    return gpus
