# SPDX-License-Identifier: Apache-2.0
"""Changes of a pod's claims, or of what is allocated, as an explanation tries them.

Here are the changes that fix what is wrong with a claim, as a class or a name; the allocator proves each of them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial

from app.dra.cluster_devices import ClusterDevices
from app.kube.device_classes import DeviceClass
from app.kube.resource_claims import DeviceRequest, ResourceClaim

Claims = tuple[ResourceClaim, ...]
Alter = Callable[[DeviceRequest], DeviceRequest]
"""Changes one request; a request that the change is not for comes back as it is."""


@dataclass(frozen=True, slots=True)
class ClaimChange:
    """One change; `weight` orders changes, the smallest first. `of` is what it changes: claim, pod or fleet.

    `alter` changes the claims, and `frees` is the key of an allocated claim that it deletes. `about` is the key of the
    taint that it tolerates.
    """

    kind: str
    text: str
    weight: float
    alter: Callable[[Claims], Claims] = tuple
    of: str = "claim"
    about: str = ""
    frees: str = ""

    def apply(self, claims: Claims, cluster: ClusterDevices) -> tuple[Claims, ClusterDevices]:
        """Change the claims of a pod, or what is allocated."""
        if self.frees:
            cluster = replace(cluster, allocated=cluster.allocated.without([self.frees]))
        return self.alter(claims), cluster


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """One request of the claims for which a pod has no devices yet."""

    claims: Claims
    claim: ResourceClaim
    request: DeviceRequest

    def change(self, kind: str, text: str, weight: float, alter: Alter, about: str = "") -> Iterator[ClaimChange]:
        """Change this request; and with it, as another change, all requests of the pod that have the same need.

        These are of the same DeviceClass, and the change is for them too.
        """
        same = [
            (one.claim.key, one.request.name)
            for one in asked_by(self.claims)
            if one.request.device_class == self.request.device_class and alter(one.request) != one.request
        ]
        chosen = (self.claim.key, self.request.name)
        for targets in ([chosen], same) if len(same) > 1 else ([chosen],):
            names = [name if len(self.claims) < 2 else f"{name} of claim {key}" for key, name in targets]
            words = f"request{'s' * (len(names) > 1)} {', '.join(names)}: {text}"
            apply = partial(_altered, frozenset(targets), alter)
            yield ClaimChange(kind, words, weight + 0.001 * (len(targets) - 1), apply, "claim", about)


def asked_by(claims: Claims) -> list[AskedRequest]:
    """List the requests of claims, with each alternative."""
    return [
        AskedRequest(claims, one, request) for one in claims for choices in one.spec.requests for request in choices
    ]


def _altered(targets: Collection[tuple[str, str]], alter: Alter, claims: Claims) -> Claims:
    def requests(claim: ResourceClaim) -> Iterator[tuple[DeviceRequest, ...]]:
        for choices in claim.spec.requests:
            yield tuple(alter(one) if (claim.key, one.name) in targets else one for one in choices)

    return tuple(replace(claim, spec=replace(claim.spec, requests=tuple(requests(claim)))) for claim in claims)


def reworded(selector: str, old: str, new: str, request: DeviceRequest) -> DeviceRequest:
    """Write one condition of a selector anew, in a request that has this selector."""
    changed = " ".join(selector.split()).replace(old, new, 1)
    return replace(request, selectors=tuple(changed if one == selector else one for one in request.selectors))


CLAIM_KINDS: Mapping[str, str] = {
    "change-class": "another DeviceClass",
    "loosen-selector": "a looser condition",
    "drop-selector": "one condition less",
    "ask-fewer": "fewer devices",
    "ask-less-capacity": "less capacity",
    "tolerate-device-taint": "a toleration of a device taint",
    "drop-constraint": "no constraint",
    "drop-claim": "no claim of another device",
    "free-devices": "ending pods",
    "name-claim": "another claim",
    "create-template": "a new template",
    "label-namespace": "a label of the namespace",
}
"""Each kind of change, and what an explanation calls it where none of its kind helps."""


MOST_CLASSES = 3
"""Other DeviceClasses that are tried for one request."""
OTHER_CLASS = "change-class"
"""The kind of a change that asks for another DeviceClass, the devices of which other nodes may have."""


def of_other_classes(asked: AskedRequest, classes: Mapping[str, DeviceClass]) -> Iterator[ClaimChange]:
    """Propose another DeviceClass that keeps all conditions: of a similar name, where there is none of that name."""
    wanted = asked.request.device_class
    if wanted in classes and not asked.request.selectors:
        return
    close = get_close_matches(wanted, classes, MOST_CLASSES)
    others = close if close and wanted not in classes else sorted(classes)
    for name in [name for name in others if name != wanted][:MOST_CLASSES]:
        text = f"ask for DeviceClass {name} instead of {wanted}"
        yield from asked.change(OTHER_CLASS, text, 15, partial(replace, device_class=name))
