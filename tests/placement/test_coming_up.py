# SPDX-License-Identifier: Apache-2.0
"""A node comes up, and fails, step by step, while pods wait: none is bound before its GPU or slice is there.

The steps are those of the kubelet, the GPU Operator, the device plugin, GPU Feature Discovery and MIG Manager
(NVIDIA/gpu-operator controllers/state_manager.go, NVIDIA/mig-parted deployments/container), in every order that their
selectors of nodes leave possible.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pytest

from app.nodes.reading import read_node
from app.placement.engine import judge
from tests.builders import demand, gpus, knowledge, pod

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
DEPLOY = "nvidia.com/gpu.deploy."
WISHED = {"nvidia.com/mig.config": "all-1g.10gb"}
OPERANDS = {
    f"{DEPLOY}{name}": "true"
    for name in ("driver", "container-toolkit", "device-plugin", "gpu-feature-discovery", "operator-validator")
}
DISCOVERED = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/cuda.driver-version.full": "570.124.06",
}
SLICED = {f"{SLICE}.count": "56", f"{SLICE}.memory": "9984", "nvidia.com/gpu.replicas": "0"}


@dataclass
class GrowingNode:
    """A node as its API object stands after some steps; `made` says that its slices exist."""

    labels: dict[str, str] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)
    made: bool = False

    def document(self) -> dict[str, Any]:
        amounts = {name: str(amount) for name, amount in self.units.items()}
        status = {"allocatable": amounts, "capacity": dict(amounts)}
        return {"kind": "Node", "metadata": {"name": "n", "labels": dict(self.labels)}, "spec": {}, "status": status}


Step = Callable[[GrowingNode], None]


def operator(node: GrowingNode) -> None:
    node.labels |= {"nvidia.com/gpu.present": "true", **OPERANDS}


def plugin(node: GrowingNode) -> None:
    node.units |= {GPU: 8}


def discovery(node: GrowingNode) -> None:
    node.labels |= DISCOVERED


def manager(node: GrowingNode) -> None:
    node.labels[f"{DEPLOY}mig-manager"] = "true"


def pause(node: GrowingNode) -> None:
    node.labels |= {f"{DEPLOY}device-plugin": "paused-for-mig-change", "nvidia.com/mig.config.state": "pending"}
    node.units = {GPU: 0}


def slices(node: GrowingNode) -> None:
    node.labels[f"{DEPLOY}device-plugin"] = "true"
    node.units, node.made = {GPU: 0, SLICE: 56}, True


def success(node: GrowingNode) -> None:
    node.labels["nvidia.com/mig.config.state"] = "success"


def relabelled(node: GrowingNode) -> None:
    node.labels |= SLICED


STEPS: tuple[Step, ...] = (operator, plugin, discovery, manager, pause, slices, success, relabelled)
BEFORE = (
    (operator, discovery), (discovery, manager), (operator, plugin), (manager, pause), (plugin, pause), (pause, slices),
    (slices, success), (slices, relabelled),
)  # fmt: skip
"""Pairs of a step and one that cannot come before it: operands select nodes by the operator's labels, and the operator
labels a node for MIG Manager by what GPU Feature Discovery found."""
CLOUDS = ((operator, plugin),)
"""The pairs that do not hold where the cloud runs the device plugin."""


def orders(pairs: tuple[tuple[Step, Step], ...], done: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """List every order of the steps that the pairs allow."""
    if len(done) == len(STEPS):
        yield done
    for step in STEPS:
        if step not in done and all(first in done for first, then in pairs if then is step):
            yield from orders(pairs, (*done, step))


ASKING = tuple(demand(pod(gpus(1, name))) for name in (GPU, SLICE))


def too_early(node: GrowingNode) -> int:
    """Count the pods of two that would be bound to the node now, without the GPU or slice that they ask for.

    A whole GPU is never there for longer than MIG Manager needs, since every GPU is wished to be cut.
    """
    read = read_node(node.document(), knowledge())
    whole, sliced = (judge(asking, read, recount=True) is None for asking in ASKING)
    return int(whole) + int(sliced and not node.made)


def bound_while(order: tuple[Step, ...], node: GrowingNode) -> int:
    """Count the pods that are bound too early after any step."""
    bound = too_early(node)
    for step in order:
        step(node)
        bound += too_early(node)
    return bound


@pytest.mark.parametrize("pairs", [BEFORE, tuple(set(BEFORE) - set(CLOUDS))], ids=["operator", "plugin of the cloud"])
def test_no_pod_is_bound_to_a_node_that_comes_up_before_its_slices_are_made(
    pairs: tuple[tuple[Step, Step], ...],
) -> None:
    """F45, F46, F62: in every order of the kubelet, labels, device plugin and MIG Manager."""
    bound = {order: bound_while(order, GrowingNode(dict(WISHED))) for order in orders(pairs)}

    assert sum(bound.values()) == 0
    assert len(bound) >= 4


def plugin_gone(node: GrowingNode) -> None:
    node.units = dict.fromkeys(node.units, 0)


def rebooted(node: GrowingNode) -> None:
    """A reboot takes the slices; the device plugin registers whole GPUs, and the labels are those of before."""
    node.units, node.made = {GPU: 8}, False


def labels_gone(node: GrowingNode) -> None:
    kept = (*WISHED, *OPERANDS, f"{DEPLOY}mig-manager")
    node.labels = {key: value for key, value in node.labels.items() if key in kept}


def state_gone(node: GrowingNode) -> None:
    node.labels.pop("nvidia.com/mig.config.state", None)


def test_no_pod_is_bound_to_a_node_that_fails_without_its_slices() -> None:
    """F45, F46: MIG, device plugin, labels and kubelet go, in any order."""
    bound = 0
    for order in permutations((rebooted, plugin_gone, labels_gone, state_gone)):
        node = GrowingNode(dict(WISHED))
        for step in (operator, plugin, discovery, manager, pause, slices, success, relabelled):
            step(node)
        bound += bound_while(order, node)

    assert bound == 0


def test_pods_are_bound_once_the_slices_are_there() -> None:
    """F45: the rule does not keep pods off for ever."""
    node = GrowingNode(dict(WISHED))
    for step in STEPS:
        step(node)

    assert judge(ASKING[1], read_node(node.document(), knowledge()), recount=True) is None
