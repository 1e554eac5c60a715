# SPDX-License-Identifier: Apache-2.0
"""The ResourceClaimTemplate for devices that are requested as resources of a device plugin."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from app.admission.claims.selectors import NVIDIA_CLASSES, SLICES, selectors_of
from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.knowledge.mig_profiles import nominal_size, profile_of
from app.knowledge.tables import Knowledge
from app.kube.api_kinds import API_KINDS
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish

TEMPLATES = API_KINDS["ResourceClaimTemplate"]
NEWEST_VERSION = TEMPLATES.versions[0]
FLAT_VERSION = "v1beta1"
"""The version of resource.k8s.io in which a request has its fields beside its name; later ones have them in
`exactly` (k8s.io/api resource/v1beta1, v1beta2, v1 types.go DeviceRequest)."""
MOST_REQUESTS = 32
MOST_DEVICES = 32
"""Requests of one claim; devices of one request, and of one claim when it is allocated (k8s.io/api resource/v1 types.go
DeviceRequestsMaxSize, AllocationResultsMaxSize). The API server accepts a claim for more devices, but it fits no
node."""
PREFIX = "gpu-usher-"
HASH_LENGTH = 10
"""Hexadecimal digits of the hash in a template's name: of a million templates two are alike with a chance of 1 in 2."""


@dataclass(frozen=True, slots=True)
class RequestedDevices:
    """One request of a claim: its name, the resource that it stands for, the number of devices, their DeviceClass.

    `profiles` are the MIG profiles that serve it, as resource names write them; empty for whole GPUs.
    """

    name: str
    resource: str
    count: int
    device_class: str
    profiles: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Tell whether the attributes of its devices are known, so that needs can be written as selectors."""
        return self.device_class in NVIDIA_CLASSES


def device_class_of(resource: str, demand: Demand, knowledge: Knowledge) -> tuple[str, tuple[str, ...]] | None:
    """Return the DeviceClass that serves a resource, and the MIG profiles that do; None if no class is known."""
    family = knowledge.families.of(resource)
    profiles = _profiles(resource, demand, knowledge)
    if family is not None and profiles and SLICES in family.device_classes:
        return SLICES, profiles
    return (family.device_classes[0], ()) if family is not None and family.device_classes else None


def _profiles(resource: str, demand: Demand, knowledge: Knowledge) -> tuple[str, ...]:
    """List the MIG profiles that serve a resource, as resource names write them, sorted; none for whole GPUs."""
    named = profile_of(resource)
    if named or demand.mig_profile is None or any(profile_of(other) for other, _ in demand.resources):
        return (named,) if named else ()
    profile, at_least = demand.mig_profile
    size = nominal_size(profile)
    if not at_least or size is None:
        return (profile,)
    profiles = {name for _, name in knowledge.mig.sizes}
    larger = {name for name in profiles if (other := nominal_size(name)) is not None and other.covers(size)}
    return tuple(sorted({profile, *larger}))


def request_name(resource: str, several: bool) -> str:
    """Name a request after its resource as a DNS label: `gpu`, `mig-1g-10gb`; of several with the vendor's domain.

    The name leaves room for a number after it (63 characters, RFC 1123).
    """
    name = resource if several else resource.partition("/")[2]
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:60].strip("-")


def claim_template(
    devices: Sequence[RequestedDevices], demand: Demand, knowledge: Knowledge, name: str, version: str
) -> dict[str, Any]:
    """Write a ResourceClaimTemplate, without a namespace. `version` is that of resource.k8s.io."""
    requests = [_request(one, demand, knowledge) for one in devices]
    template = {
        "apiVersion": TEMPLATES.api_version(NEWEST_VERSION),
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    return in_version(template, version)


def in_version(template: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Write a template of the newest version in another version of resource.k8s.io."""
    requests = template["spec"]["spec"]["devices"]["requests"]
    if version == FLAT_VERSION:
        requests = [{"name": request["name"], **request["exactly"]} for request in requests]
    spec = {"spec": {"devices": {"requests": requests}}}
    return {**template, "apiVersion": TEMPLATES.api_version(version), "spec": spec}


def _request(devices: RequestedDevices, demand: Demand, knowledge: Knowledge) -> dict[str, Any]:
    exactly: dict[str, Any] = {
        "deviceClassName": devices.device_class,
        "allocationMode": "ExactCount",
        "count": devices.count,
    }
    expressions = list(selectors_of(devices.device_class, devices.profiles, demand, knowledge))
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": devices.name, "exactly": exactly}


def content_name(devices: Sequence[RequestedDevices], demand: Demand, knowledge: Knowledge) -> str:
    """Name a template after its content: `gpu-usher-2-gpu-` and a hash, which is the same in each version of the API.

    The words are those of the first request, for people; the hash is over all of them.
    """
    requests = [_request(one, demand, knowledge) for one in devices]
    digest = sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()[:HASH_LENGTH]
    return f"{PREFIX}{devices[0].count}-{devices[0].name}-{digest}"


def not_expressible(demand: Demand, devices: Sequence[RequestedDevices]) -> Iterator[str]:
    """List the parts of a demand that the claim does not express."""
    if (count := sum(one.count for one in devices)) > MOST_DEVICES:
        yield f"{count} devices: a claim gets at most {MOST_DEVICES}"
    if demand.nvlink:
        yield "NVLink: the driver publishes no attribute for it; name the products instead"
    if demand.sharing is SharingWish.Shared or any(one.resource.endswith(".shared") for one in devices):
        yield "a share of a GPU: DRA shares by one ResourceClaim for several pods, or by the driver's own configuration"
    if demand.mig_profile and demand.mig_profile[1] and any(one.profiles and one.is_known for one in devices):
        yield "a whole GPU in place of a larger slice: that would be a second choice under firstAvailable"
    yield from _not_expressible_cuda(demand)
    if demand.preferred_products or demand.preferred_cuda or demand.warned:
        yield "preferences: a claim selects devices, it does not rank them"
    for one in devices:
        if not one.is_known:
            yield f"needs of {one.resource}: attributes of this driver are not known"


def _not_expressible_cuda(demand: Demand) -> Iterator[str]:
    for need in demand.cuda:
        if need.requirement:
            yield f"NVIDIA_REQUIRE_*: {show_need(need)}"
        if need.requires and need.requires.branches != need.requires.consumer_branches:
            yield "driver branches that the image names for some brands of GPU only: the claim takes them for any"
        if demand.accept is AcceptedCompatibility.ForwardCompatible and need.forward:
            yield "forward compatibility on data-centre GPUs only: the claim takes these drivers on any GPU"
