# SPDX-License-Identifier: Apache-2.0
"""Nodes with MIG slices and with whole GPUs, and pods mutated by policies about MIG resizing."""

from dataclasses import replace
from typing import Any

from app.admission.fleet_facts import FleetFacts
from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate
from app.admission.reviewed_pod import PodForm
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from tests.builders import node, policies, policy, setting

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


def rules(words: str = "", action: str = "Enforce") -> PolicySet:
    """Make a policy with MIG resizing alone."""
    return policies(policy("p", f"action: {action}, admission: {{{words}}}"))


def admit(
    document: dict[str, Any], fleet_facts: FleetFacts, policy_set: PolicySet, form: PodForm = PodForm.Pod
) -> ReviewResult:
    """Mutate an object of team-a."""
    return mutate(document, "team-a", {}, replace(setting(policy_set, fleet_facts), form=form))


def resources_after(document: dict[str, Any], fleet_facts: FleetFacts, policy_set: PolicySet) -> set[str]:
    """Return the GPU resources after admission, which a second review leaves unchanged."""
    changed = apply(document, admit(document, fleet_facts, policy_set).operations)
    assert not admit(changed, fleet_facts, policy_set).operations
    resources = [
        container["resources"]
        for name in ("containers", "initContainers")
        for container in changed["spec"].get(name, ())
    ]
    return {key for sides in resources for side in sides.values() for key in side if key.startswith("nvidia.com/")}
