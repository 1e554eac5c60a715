# SPDX-License-Identifier: Apache-2.0
"""A made-up history of use for the pods of a sample fleet: some work, some idle, and of some nothing is known."""

from collections.abc import Callable, Iterator, Mapping
from zlib import crc32

from app.knowledge.mig_profiles import profile_of
from app.kube.gpu_usage import GPUUsage
from app.nodes.conditions import PRODUCT
from app.nodes.model import SHARES, Node
from app.usage.history import MINUTE, Hold, UseHistory, Window

WINDOW_SECONDS = 1800
IDLE_HOURS = 9
SHAPES = ("busy", "small", "idle", "small", "busy", "unknown")
"""What a pod does, chosen by a checksum of its name without the number, so that the pods of a workload do alike."""
MEMORY_MIB = 16_384
"""The memory of a GPU whose labels do not say it."""


class DemoUsage:
    """The source of that history for a service: the pods hold what they hold now, and have held it all the time."""

    origin = "a made-up history of the sample fleet"

    def __init__(
        self, nodes: Callable[[], Mapping[str, Node]], usage_on: Callable[[str], tuple[GPUUsage, ...]]
    ) -> None:
        self._nodes = nodes
        self._usage_on = usage_on

    async def read(self, end: float, seconds: float, window: int | None = None) -> UseHistory:  # noqa: ARG002  # its own
        """Make up the history of the `seconds` before `end`."""
        nodes = dict(self._nodes())
        return demo_history(nodes, {name: self._usage_on(name) for name in nodes}, end, seconds)

    async def close(self) -> None:
        """Close nothing."""


def demo_history(
    nodes: Mapping[str, Node], usages: Mapping[str, tuple[GPUUsage, ...]], end: float, seconds: float
) -> UseHistory:
    """Make up the history of the bound pods of nodes, which held what they hold for the whole time."""
    count = max(1, round(seconds / WINDOW_SECONDS))
    end = end // MINUTE * MINUTE
    holds = (hold for name, node in nodes.items() for hold in _holds(node, usages[name], count))
    return UseHistory(end - count * WINDOW_SECONDS, end, WINDOW_SECONDS, tuple(holds))


def _holds(node: Node, usages: tuple[GPUUsage, ...], count: int) -> Iterator[Hold]:
    index = 0
    for usage in sorted(usages, key=lambda usage: usage.name):
        namespace, _, pod = usage.name.partition("/")
        for resource, units in usage.units:
            profile = profile_of(resource) or ""
            for _ in range(units):
                yield Hold(
                    namespace=namespace,
                    pod=pod,
                    node=node.name,
                    gpu=f"GPU-{node.name}-{index}",
                    instance=str(index) if profile else "",
                    profile=profile,
                    model=node.labels.get(PRODUCT, "").removesuffix("-SHARED"),
                    shared=node.node_class.unit(resource) in SHARES,
                    windows=tuple(_windows(usage.name, node, count)),
                )
                index += 1


def _windows(name: str, node: Node, count: int) -> Iterator[Window]:
    shape = SHAPES[(crc32(name.rstrip("0123456789").encode()) >> 2) % len(SHAPES)]
    minutes, memory = WINDOW_SECONDS / MINUTE, node.node_class.memory_mib or MEMORY_MIB
    idle_from = count - IDLE_HOURS * 3600 // WINDOW_SECONDS
    for index in range(count):
        idle = shape == "idle" and index >= idle_from
        share, part = (0.0, 0.3) if idle else (0.12, 0.1) if shape == "small" else (0.85, 0.8)
        if shape == "unknown":
            yield Window(index, minutes)
        else:
            yield Window(index, minutes, minutes, share * minutes, share, share, round(part * memory))
