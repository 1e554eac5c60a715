# SPDX-License-Identifier: Apache-2.0
"""One change of a pod's claims, or of what is allocated, as an explanation tries it (F84, S13)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from app.dra.claims import DeviceRequest, ResourceClaim
from app.dra.cluster_devices import ClusterDevices

Claims = tuple[ResourceClaim, ...]
Apply = Callable[[Claims, ClusterDevices], tuple[Claims, ClusterDevices]]


@dataclass(frozen=True, slots=True)
class ClaimChange:
    """One change; `weight` orders changes, the smallest first. `of` is what it changes: claim, pod or fleet."""

    kind: str
    text: str
    weight: int
    apply: Apply
    of: str = "claim"


def changed(claim: ResourceClaim, request: DeviceRequest, new: DeviceRequest) -> Apply:
    """Put one request in place of another."""

    def apply(claims: Claims, cluster: ClusterDevices) -> tuple[Claims, ClusterDevices]:
        changed = replace(claim, spec=claim.spec.with_request(request, new))
        return tuple(changed if one.key == claim.key else one for one in claims), cluster

    return apply


class ChangeKind(NamedTuple):
    """The kind of a change, its words, and its weight."""

    kind: str
    text: str
    weight: int


def reworded(
    claim: ResourceClaim, request: DeviceRequest, selector: str, conditions: tuple[str, str], kind: ChangeKind
) -> ClaimChange:
    """Write one condition of a selector anew; `conditions` are the old and the new one."""
    selectors = tuple(
        " ".join(expression.split()).replace(*conditions, 1) if expression == selector else expression
        for expression in request.selectors
    )
    return ClaimChange(*kind, changed(claim, request, replace(request, selectors=selectors)))
