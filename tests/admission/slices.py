# SPDX-License-Identifier: Apache-2.0
"""Nodes with MIG slices and with whole GPUs, and pods mutated by policies about MIG resizing."""

from typing import Any

from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.world.fleet_facts import FleetFacts
from tests.admission.mutated import spec_of
from tests.builders import node

GPU, SMALL, MIDDLE, LARGE = (
    "nvidia.com/gpu",
    *(f"nvidia.com/mig-{profile}" for profile in ("1g.10gb", "2g.20gb", "3g.40gb")),
)


def slices(*resources: str, product: str = "NVIDIA-A100-SXM4-80GB", used: int = 0, **more: Any) -> Node:
    """Make a node that offers seven of each of these slices."""
    held = dict.fromkeys(resources, used)
    return node(product=product, offers=dict.fromkeys(resources, 7), used=held, name="+".join(resources), **more)


def whole(product: str, **more: Any) -> Node:
    """Make a node of whole GPUs."""
    return node(name=product, product=product, offers={GPU: 8}, **more)


def resources_after(document: dict[str, Any], policy_set: PolicySet, fleet_facts: FleetFacts) -> set[str]:
    """Return the GPU resources after admission, which a second review leaves unchanged."""
    spec = spec_of(document, policy_set, fleet_facts)
    resources = [one["resources"] for name in ("containers", "initContainers") for one in spec.get(name, ())]
    return {key for sides in resources for side in sides.values() for key in side if key.startswith("nvidia.com/")}
