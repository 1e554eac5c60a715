# SPDX-License-Identifier: Apache-2.0
"""What the nodes that refuse a pod have, where the reason says only what the pod wants.

A reason names no value of a node, since kube-scheduler groups nodes by the text of their reasons (values/reasons.py).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from app.knowledge.dcgm import GPUCondition
from app.nodes.model import NodeClass
from app.values.reasons import Code
from app.values.versions import show_driver, show_version

MOST_VALUES = 3
"""Values that are named, those of most nodes first, so that a sentence stays one."""
Tell = Callable[[NodeClass], str | None]


def _driver(node: NodeClass) -> str | None:
    return f"driver {show_driver(node.driver)}" if node.driver else None


def _compute_capability(node: NodeClass) -> str | None:
    return show_version(node.compute_capability) if node.compute_capability else None


def _memory(node: NodeClass) -> str | None:
    return f"{node.memory_mib} MiB" if node.memory_mib else None


def _conditions(node: NodeClass) -> str | None:
    return " and ".join(name for name, severity in node.bad_conditions if severity is GPUCondition.Ill) or None


def _promises(node: NodeClass) -> str | None:
    return "; ".join(promise.words for promise in node.absent) or None


VALUES: Mapping[str, Tell] = {
    Code.DriverTooOld.name: _driver,
    Code.ImageRequirementUnmet.name: _driver,
    Code.ComputeCapabilityTooLow.name: _compute_capability,
    Code.GPUMemoryTooSmall.name: _memory,
    Code.GPUUnhealthy.name: _conditions,
    Code.GhostGPUs.name: _promises,
}
"""The value of a node by the code of the reason for which it is refused."""


def values_of(code: str, nodes: Iterable[NodeClass]) -> tuple[str, ...]:
    """List the values that nodes have of what a code is about, those of most nodes first; none where it is unknown."""
    tell = VALUES.get(code)
    counts = Counter(value for node in nodes if (value := tell(node))) if tell else Counter[str]()
    return tuple(sorted(counts, key=lambda value: (-counts[value], value))[:MOST_VALUES])
