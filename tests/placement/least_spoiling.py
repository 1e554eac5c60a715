# SPDX-License-Identifier: Apache-2.0
"""The place at which an instance costs the least of what instances to come could use: the rule of `make bench-mig`.

kube-scheduler and MIG Manager choose the place on a node; gpu-usher chooses the node by the same loss.
"""

from collections.abc import Sequence

from app.knowledge.mig_placements import GPULayout, InstancePlacement
from app.placement.mig_headroom import placement_losses


def least_spoiling(layouts: Sequence[GPULayout], profile: str) -> InstancePlacement | None:
    """Find the place with the least loss; of equal places the highest start, then the first GPU; None if there is none.

    Low starts stay free for large instances, most of which have no other legal start.
    """
    losses = [
        (loss, -start, index)
        for index, layout in enumerate(layouts)
        for loss, start in placement_losses(layout.geometry, layout.taken, profile)
    ]
    _, start, index = min(losses, default=(0.0, 0, 0))
    return InstancePlacement(index, -start) if losses else None
