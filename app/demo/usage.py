# SPDX-License-Identifier: Apache-2.0
"""A made-up use for the pods of a sample fleet: some work, some idle, and of some nothing is known."""

from collections.abc import Callable, Iterator, Mapping
from zlib import crc32

from app.knowledge.mig_profiles import profile_of
from app.kube.gpu_usage import GPUUsage
from app.nodes.conditions import PRODUCT
from app.nodes.model import SHARES, Node
from app.usage.table import MINUTE, GPUUse, Hold

IDLE_SECONDS = 9 * 3600.0
SHAPES = ("busy", "small", "idle", "small", "busy", "unknown")
"""What a pod does, chosen by a checksum of its name without the number, so that the pods of a workload do alike."""
FIGURES: Mapping[str, tuple[float, float]] = {"busy": (0.85, 0.8), "idle": (0.85, 0.8), "small": (0.12, 0.1)}
"""The activity of a shape, and the share of the memory that it uses at most."""
MEMORY_MIB = 16_384
"""The memory of a GPU whose labels do not say it."""


class DemoUsage:
    """The source of that use: the pods hold what they hold now, and have held it all the time."""

    origin = "a made-up use of the sample fleet"

    def __init__(
        self, nodes: Callable[[], Mapping[str, Node]], usage_on: Callable[[str], tuple[GPUUsage, ...]]
    ) -> None:
        self._nodes = nodes
        self._usage_on = usage_on

    async def read(self, end: float, seconds: float, belows: tuple[float, ...]) -> GPUUse:
        """Make up the use in the `seconds` before `end`."""
        end = end // MINUTE * MINUTE
        holds = (
            hold
            for name, node in dict(self._nodes()).items()
            for hold in _holds(node, self._usage_on(name), seconds, belows)
        )
        return GPUUse(end - seconds, end, MINUTE, tuple(holds))

    async def close(self) -> None:
        """Close nothing."""


def _holds(node: Node, usages: tuple[GPUUsage, ...], seconds: float, belows: tuple[float, ...]) -> Iterator[Hold]:
    index, held, memory_mib = 0, seconds / MINUTE, node.node_class.memory_mib or MEMORY_MIB
    for usage in sorted(usages, key=lambda usage: usage.name):
        namespace, _, pod = usage.name.partition("/")
        shape = SHAPES[(crc32(usage.name.rstrip("0123456789").encode()) >> 2) % len(SHAPES)]
        share, memory_share = FIGURES.get(shape, (None, None))
        known = 0.0 if share is None else held
        idle = min(seconds, IDLE_SECONDS) if shape == "idle" else 0.0
        for resource, units in usage.units:
            profile = profile_of(resource) or ""
            for _ in range(units):
                yield Hold(
                    namespace=namespace,
                    pod=pod,
                    node=node.name,
                    device=(f"GPU-{node.name}-{index}", str(index) if profile else ""),
                    profile=profile,
                    model=node.labels.get(PRODUCT, "").removesuffix("-SHARED"),
                    shared=node.node_class.unit(resource) in SHARES,
                    held=held,
                    known=known,
                    active=(share or 0.0) * (known - idle / MINUTE),
                    memory_mib=None if memory_share is None else round(memory_share * memory_mib),
                    memory_known=known,
                    part=share,
                    held_now=True,
                    idle=dict.fromkeys(belows, idle),
                )
                index += 1
