# SPDX-License-Identifier: Apache-2.0
"""The DRA equivalent of a device-plugin demand: a ResourceClaimTemplate with its DeviceClass and CEL selectors (S13).

Attributes and capacities are those of NVIDIA's driver (NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go,
partitions.go). Its versions are semantic ones without leading zeros: driver 570.124.06 is published as 570.124.6.
Whole GPUs of GB10 and the like publish no memory. CEL that reads an absent member fails the pod on every node, so that
members which may be absent are tested with `has` first.
"""

import re
from bisect import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import Any

import yaml

from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed, DriverList
from app.knowledge.mig_profiles import nominal_size, profile_of
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.kube.api_kinds import API_KINDS
from app.kube.resource_slices import NVIDIA_DRIVER
from app.placement.unit_filters import MEMORY_TOLERANCE
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish
from app.values.versions import Version

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
_ATTRIBUTES = f"device.attributes['{NVIDIA_DRIVER}']"
_CAPABILITY = f"{_ATTRIBUTES}.cudaComputeCapability"
_DRIVER = f"{_ATTRIBUTES}.driverVersion"
_MEMORY = f"device.capacity['{NVIDIA_DRIVER}'].memory"
_PRODUCT = f"{_ATTRIBUTES}.productName.lowerAscii().replace(' ', '-')"
"""CEL: the product as GPU Feature Discovery labels it, in lower case; GFD writes dashes for spaces."""


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
    if request.device_class not in (NVIDIA_DRIVER, SLICES):
        return
    yield from (_any_product(any_of) for any_of in demand.products)
    if demand.denied_products:
        yield f"!({_any_product(demand.denied_products)})"
    if request.profiles:
        profiles = ", ".join(map(_quoted, request.profiles))
        yield f"{_ATTRIBUTES}.profile.replace('+', '.') in [{profiles}]"
    if demand.memory_mib:
        yield _memory(demand)
    capabilities = [demand.compute_capability, *(need.capability_floor for need in demand.cuda)]
    if floor := max((capability for capability in capabilities if capability is not None), default=None):
        yield _at_least(_CAPABILITY, floor)
    for need in demand.cuda:
        if (driver := _driver(need, demand.accept)) is not None:
            yield driver
    yield from _not_among({capability for need in demand.cuda for capability in need.unsupported}, knowledge)


def _any_product(patterns: Iterable[ProductPattern]) -> str:
    """Write that the product is one of these: exact names, or patterns over the name without the vendor's prefix."""
    product_patterns = list(patterns)
    forms = sorted({_plain(re.escape(form)) for pattern in product_patterns for form in pattern.labels or ()})
    tests = [f"{_PRODUCT}.matches('^(nvidia-|tesla-)?({'|'.join(forms)})$')"] if forms else []
    expressions = [pattern.expression.pattern for pattern in product_patterns if pattern.expression is not None]
    if expressions:
        bare = "p.matches('^(nvidia|tesla)-') ? p.substring(p.indexOf('-') + 1) : p"
        matched = " || ".join(f"n.matches('{_plain(expression)}')" for expression in expressions)
        tests.append(f"cel.bind(p, {_PRODUCT}, cel.bind(n, {bare}, {matched}))")
    return " || ".join(tests) or "false"


def _plain(pattern: str) -> str:
    """Write a pattern over product names (letters, digits, `.`, `_`, `-`) without backslashes, as RE2 reads it."""
    return pattern.replace("\\-", "-").replace("\\.", "[.]")


def _memory(demand: Demand) -> str:
    """Require the share of nominal memory that the filter requires; unknown memory is judged by the policy."""
    enough = f"{_MEMORY}.compareTo(quantity('{ceil(MEMORY_TOLERANCE * demand.memory_mib)}Mi')) >= 0"
    return f"has({_MEMORY}) && {enough}" if demand.refuse_unknown else f"!has({_MEMORY}) || {enough}"


def _driver(need: CUDANeed, accept: AcceptedCompatibility) -> str | None:
    """Write on which drivers a need runs (rules: knowledge/cuda_compatibility.py); None where any driver will do."""
    trusted = need.requirement and accept is AcceptedCompatibility.ForwardCompatible
    if trusted or need.native <= (0,):
        return None
    conditions = [_at_least(_DRIVER, need.native)]
    if (
        accept <= AcceptedCompatibility.MinorVersion
        and need.minor_version is not None
        and need.minor_version < need.native
    ):
        conditions = list(_minor_version(need.requires, need.minor_version, need.native))
    if accept is AcceptedCompatibility.ForwardCompatible:
        conditions += [_branch(branch, floor) for branch, floor in need.forward]
    return " || ".join(conditions)


def _minor_version(requires: DriverList | None, lowest: Version, native: Version) -> Iterator[str]:
    """Write for which drivers minor-version compatibility holds: from the lowest on, or where the image allows it."""
    if requires is None:
        yield _at_least(_DRIVER, lowest)
        return
    yield _at_least(_DRIVER, max(lowest, min(native, requires.since or native)))
    floors = ((branch, max((branch,), lowest)) for branch in sorted(requires.branches))
    yield from (_branch(branch, floor) for branch, floor in floors if floor < (branch + 1,))


def _branch(branch: int, floor: Version) -> str:
    """Write that a driver is of a branch, at or above a lowest version in it."""
    below = f"{_DRIVER}.compareTo({_semver((branch + 1,))}) < 0"
    return f"({_at_least(_DRIVER, max(floor, (branch,)))} && {below})"


def _not_among(unsupported: set[Version], knowledge: Knowledge) -> Iterator[str]:
    """Write that a compute capability is none of these, as ranges between those that existing GPUs have."""
    existing = {product.compute_capability for product in knowledge.products.by_form.values()}
    supported = sorted((existing | set(knowledge.cuda.first_in)) - unsupported)
    for position, run in groupby(sorted(unsupported), lambda capability: bisect(supported, capability)):
        excluded = tuple(run)
        above = f"{_CAPABILITY}.compareTo({_semver(excluded[-1])}) > 0"
        yield f"{_CAPABILITY}.compareTo({_semver(excluded[0])}) < 0 || {above}" if position else above


def _at_least(attribute: str, version: Version) -> str:
    return f"{attribute}.compareTo({_semver(version)}) >= 0"


def _quoted(text: str) -> str:
    """Write a CEL string; a resource name comes from the user and must not break out of the quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _semver(version: Version) -> str:
    """Write a version with exactly three fields, as CEL's semver requires."""
    return f"semver('{'.'.join(map(str, (*version, 0, 0)[:3]))}')"


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
