# SPDX-License-Identifier: Apache-2.0
"""The DRA equivalent of a device-plugin demand: a ResourceClaimTemplate with its DeviceClass and CEL selectors (S13).

The CEL is that of app/dra/needs_as_cel.py.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from app.dra.needs_as_cel import cel_needs, existing_capabilities
from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.knowledge.mig_profiles import nominal_size, profile_of
from app.knowledge.tables import Knowledge
from app.kube.api_kinds import API_KINDS
from app.kube.resource_slices import NVIDIA_DRIVER
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish

TEMPLATES = API_KINDS["ResourceClaimTemplate"]
NEWEST_VERSION = TEMPLATES.versions[0]
FLAT_VERSION = "v1beta1"
"""The version of resource.k8s.io in which a request has its fields beside its name; later ones have them in
`exactly` (k8s.io/api resource/v1beta1, v1beta2, v1 types.go DeviceRequest)."""
SLICES = "mig.nvidia.com"
"""The DeviceClass of MIG slices; the DeviceClass of whole GPUs is the first one of the family."""
MOST_SELECTORS = 32
MOST_DEVICES = 32
"""Devices of one request, and of one claim when it is allocated (k8s.io/api resource/v1 types.go
DeviceSelectorsMaxSize, AllocationResultsMaxSize). The API server accepts a claim for more devices, but it fits no
node."""


@dataclass(frozen=True, slots=True)
class _DeviceRequest:
    """One device request: units of a resource, and their DeviceClass. `profiles` are of MIG; empty for whole GPUs."""

    resource: str
    count: int
    device_class: str
    profiles: tuple[str, ...] = ()


class _Dumper(yaml.SafeDumper):
    """Writes CEL as a YAML block, so that its quotes are not doubled."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "'" in text else None)


_Dumper.add_representer(str, _text)


def dra_equivalent(
    demand: Demand, knowledge: Knowledge, name: str = "gpus", version: str = NEWEST_VERSION
) -> dict[str, Any]:
    """Write the ResourceClaimTemplate for the same devices, the pod's part of it, and what DRA cannot express.

    `version` is the version of resource.k8s.io that the template is written in, one that the cluster serves.
    In the result `template` and `pod` are None where no requested resource has a DeviceClass. `yaml` is the template
    as lines of text for people. `not_expressible` are sentences.
    """
    device_requests = tuple(_device_requests(demand, knowledge))
    several = len(device_requests) > 1
    claim_requests = [_request(request, demand, knowledge, several, version) for request in device_requests]
    template = {
        "apiVersion": f"{TEMPLATES.group}/{version}",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": claim_requests}}},
    }
    pod = {
        "resourceClaims": [{"name": name, "resourceClaimTemplateName": name}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": name}]}}],
    }
    return {
        "template": template if device_requests else None,
        "pod": pod if device_requests else None,
        "yaml": yaml.dump(template, Dumper=_Dumper, sort_keys=False).splitlines() if device_requests else [],
        "not_expressible": [*_without_class(demand, knowledge), *_not_expressible(demand, device_requests)],
    }


def _device_requests(demand: Demand, knowledge: Knowledge) -> Iterator[_DeviceRequest]:
    """Find the DeviceClass of each requested resource; a resource without one is left out."""
    for resource, count in demand.resources:
        family = knowledge.families.of(resource)
        profiles = _profiles(resource, demand, knowledge)
        if family is not None and profiles and SLICES in family.device_classes:
            yield _DeviceRequest(resource, count, SLICES, profiles)
        elif family is not None and family.device_classes:
            yield _DeviceRequest(resource, count, family.device_classes[0])


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


def _request(
    request: _DeviceRequest, demand: Demand, knowledge: Knowledge, several: bool, version: str
) -> dict[str, Any]:
    exactly: dict[str, Any] = {
        "deviceClassName": request.device_class,
        "allocationMode": "ExactCount",
        "count": request.count,
    }
    needs = list(dict.fromkeys(_selectors(request, demand, knowledge)))
    if len(needs) > MOST_SELECTORS:
        needs[MOST_SELECTORS - 1 :] = [" && ".join(f"({need})" for need in needs[MOST_SELECTORS - 1 :])]
    if needs:
        exactly["selectors"] = [{"cel": {"expression": need}} for need in needs]
    name = {"name": _name(request.resource, several)}
    return {**name, **exactly} if version == FLAT_VERSION else {**name, "exactly": exactly}


def _name(resource: str, several: bool) -> str:
    """Name a request after its resource as a DNS label: `gpu`, `mig-1g-10gb`; of several with the vendor's domain."""
    return re.sub(r"[^a-z0-9]+", "-", (resource if several else resource.partition("/")[2]).lower())[:63].strip("-")


def _selectors(request: _DeviceRequest, demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    """Write each need as CEL; all of them must hold. The attributes of other vendors' drivers are not known."""
    if request.device_class in (NVIDIA_DRIVER, SLICES):
        yield from cel_needs(demand, request.profiles, existing_capabilities(knowledge))


def _without_class(demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    for resource, count in demand.resources:
        family = knowledge.families.of(resource)
        if family is None or not family.device_classes:
            yield f"{count} x {resource}: no DeviceClass of its family is known"


def _not_expressible(demand: Demand, requests: tuple[_DeviceRequest, ...]) -> Iterator[str]:
    """List the parts of a demand that the claim does not express."""
    known_requests = [request for request in requests if request.device_class in (NVIDIA_DRIVER, SLICES)]
    if (devices := sum(request.count for request in requests)) > MOST_DEVICES:
        yield f"{devices} devices: a claim is given {MOST_DEVICES} at most"
    if demand.nvlink:
        yield "NVLink: the driver publishes no attribute for it; name the products instead"
    if demand.sharing is SharingWish.Shared or any(request.resource.endswith(".shared") for request in requests):
        yield "a share of a GPU: DRA shares by one ResourceClaim for several pods, or by the driver's own configuration"
    if demand.mig_profile and demand.mig_profile[1] and any(request.profiles for request in known_requests):
        yield "a whole GPU in place of a larger slice: that would be a second choice under firstAvailable"
    for need in demand.cuda:
        if need.requirement:
            yield f"NVIDIA_REQUIRE_*: {show_need(need)}"
        if need.requires and need.requires.branches != need.requires.consumer_branches:
            yield "driver branches that the image names for some brands of GPU only: the claim takes them for any"
        if demand.accept is AcceptedCompatibility.ForwardCompatible and need.forward:
            yield "forward compatibility on data-centre GPUs only: the claim takes these drivers on any GPU"
    if demand.preferred_products or demand.preferred_cuda or demand.warned:
        yield "preferences: a claim takes or refuses, it does not rank"
    yield from (
        f"needs of {request.resource}: attributes of this driver are not known"
        for request in requests
        if request not in known_requests
    )
