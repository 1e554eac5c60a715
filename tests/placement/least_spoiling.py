# SPDX-License-Identifier: Apache-2.0
"""The rule of `make bench-mig`: the placement at which an instance costs later instances the least.

kube-scheduler and MIG Manager choose the placement on a node; gpu-usher chooses the node by the same loss.
"""

from collections.abc import Sequence

from app.knowledge.mig_geometry import GPULayout, InstancePlacement
from app.placement.mig_slices import placement_losses


def least_spoiling(layouts: Sequence[GPULayout], profile: str) -> InstancePlacement | None:
    """Return the placement with the least loss, or None if there is none.

    Of equal placements the highest start wins, then the first GPU. Low starts stay free for large instances, most of
    which have no other legal start.
    """
    losses = [
        (loss, -start, index)
        for index, layout in enumerate(layouts)
        for loss, start in placement_losses(layout.geometry, layout.taken, profile)
    ]
    _, start, index = min(losses, default=(0.0, 0, 0))
    return InstancePlacement(index, -start) if losses else None
