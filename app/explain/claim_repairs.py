# SPDX-License-Identifier: Apache-2.0
"""Changes that fix what is wrong with a claim: what a selector reads and compares, classes, names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

from app.dra.claims import DeviceRequest, ResourceClaim
from app.dra.classes import DeviceClass
from app.dra.cluster_devices import ClusterDevices
from app.dra.devices import Device
from app.dra.obstacles import Repair
from app.dra.pod_claims import PodClaims
from app.explain.claim_edits import Apply, ChangeKind, ClaimChange, Claims, of_request, reworded
from app.explain.selector_rewrites import rewritings

MOST_CLASSES = 3
"""Other DeviceClasses that are tried for one request."""
OTHER_CLASS = "change-class"
"""The kind of a change that asks for another DeviceClass, the devices of which other nodes may have."""


def repairs_of_pod(claims: PodClaims) -> Iterator[ClaimChange]:
    """Propose what removes the one obstacle that is in the way of the pod; nothing where there are several."""
    if len(claims.obstacles) == 1:
        for repair in claims.obstacles[0].repairs:
            yield ClaimChange(repair.kind, repair.text, 5, _with(repair), repair.of)


def _with(repair: Repair) -> Apply:
    def apply(claims: Claims, cluster: ClusterDevices) -> tuple[Claims, ClusterDevices]:
        return (claims if repair.adds is None else (*claims, repair.adds)), cluster

    return apply


def repairs_of_request(
    claims: Claims,
    claim: ResourceClaim,
    request: DeviceRequest,
    devices: Sequence[Device],
    classes: Mapping[str, DeviceClass],
) -> Iterator[ClaimChange]:
    """Propose other selectors, and other classes, for a request at which kube-scheduler gives up."""
    for expression in request.selectors:
        for position, (old, new, words) in enumerate(rewritings(expression, devices)):
            kind = ChangeKind("rewrite-selector", words, 10 + 0.01 * position)
            yield from of_request(claims, claim, request, kind, reworded(expression, old, new))
    yield from of_other_classes(claims, claim, request, classes)


def of_other_classes(
    claims: Claims, claim: ResourceClaim, request: DeviceRequest, classes: Mapping[str, DeviceClass]
) -> Iterator[ClaimChange]:
    """Propose another DeviceClass that keeps all conditions: of a similar name, where there is none of that name."""
    if request.device_class in classes and not request.selectors:
        return
    close = get_close_matches(request.device_class, classes, MOST_CLASSES)
    others = close if close and request.device_class not in classes else sorted(classes)
    for name in [name for name in others if name != request.device_class][:MOST_CLASSES]:
        kind = ChangeKind(OTHER_CLASS, f"ask for DeviceClass {name} instead of {request.device_class}", 15)
        yield from of_request(claims, claim, request, kind, partial(replace, device_class=name))
