# SPDX-License-Identifier: Apache-2.0
"""What a device-plugin demand would be under DRA: a ResourceClaimTemplate with its DeviceClass and CEL selectors (S13).

Attributes and capacities are those of NVIDIA's driver (NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go,
partitions.go). Its versions are semantic ones without leading zeros: driver 570.124.06 is published as 570.124.6.
Whole GPUs of GB10 and the like have no memory of their own there; CEL that reads what is absent fails the pod on every
node, so that what may be absent is asked for with `has`.
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
from app.kube.resource_slices import NVIDIA_DRIVER
from app.placement.unit_filters import MEMORY_TOLERANCE
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish
from app.values.versions import Version

API_VERSION = "resource.k8s.io/v1"
SLICES = "mig.nvidia.com"
"""The DeviceClass of MIG slices; that of whole GPUs is the family's first."""
MOST_SELECTORS = 32
MOST_DEVICES = 32
"""Of a request, and of a claim when it is allocated (k8s.io/api resource/v1 types.go DeviceSelectorsMaxSize,
AllocationResultsMaxSize). The API server takes a claim for more devices, and no node ever fits it."""
_ATTRIBUTES = f"device.attributes['{NVIDIA_DRIVER}']"
_CAPABILITY = f"{_ATTRIBUTES}.cudaComputeCapability"
_DRIVER = f"{_ATTRIBUTES}.driverVersion"
_MEMORY = f"device.capacity['{NVIDIA_DRIVER}'].memory"
_PRODUCT = f"{_ATTRIBUTES}.productName.lowerAscii().replace(' ', '-')"
"""As GPU Feature Discovery labels it, in lower case; it writes dashes for spaces, which nothing can undo."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """One request: units of a resource, and the class that gives them. `profiles`: of MIG; empty for whole GPUs."""

    resource: str
    count: int
    device_class: str
    profiles: tuple[str, ...] = ()


class _Dumper(yaml.SafeDumper):
    """Writes CEL as a block of its own, so that its quotes are not doubled."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "'" in text else None)


_Dumper.add_representer(str, _text)


def equivalent(demand: Demand, knowledge: Knowledge, name: str = "gpus") -> dict[str, Any]:
    """Write the ResourceClaimTemplate that asks DRA for the same devices, what a pod then says, and what neither can.

    `template` is None where no resource asked has a DeviceClass. `yaml`: the same as lines for people.
    """
    asks = tuple(_asks(demand, knowledge))
    several = len(asks) > 1
    requests = [_request(each, demand, knowledge, several) for each in asks]
    template = {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    pod = {
        "resourceClaims": [{"name": name, "resourceClaimTemplateName": name}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": name}]}}],
    }
    return {
        "template": template if asks else None,
        "pod": pod if asks else None,
        "yaml": yaml.dump(template, Dumper=_Dumper, sort_keys=False).splitlines() if asks else [],
        "not_expressible": [*_without_class(demand, knowledge), *_unsaid(demand, asks)],
    }


def _asks(demand: Demand, knowledge: Knowledge) -> Iterator[_Ask]:
    """Find the DeviceClass for each resource asked; one without is left out."""
    for resource, count in demand.resources:
        family = knowledge.families.of(resource)
        profiles = _profiles(resource, demand, knowledge)
        if family is not None and profiles and SLICES in family.device_classes:
            yield _Ask(resource, count, SLICES, profiles)
        elif family is not None and family.device_classes:
            yield _Ask(resource, count, family.device_classes[0])


def _profiles(resource: str, demand: Demand, knowledge: Knowledge) -> tuple[str, ...]:
    """List the MIG profiles that will do for a resource, as resource names write them, sorted; none for whole GPUs."""
    named = profile_of(resource)
    if named or demand.mig_profile is None or any(profile_of(each) for each, _ in demand.resources):
        return (named,) if named else ()
    wanted, at_least = demand.mig_profile
    size = nominal_size(wanted)
    if not at_least or size is None:
        return (wanted,)
    known = {profile for _, profile in knowledge.mig.sizes}
    larger = {each for each in known if (found := nominal_size(each)) is not None and found.covers(size)}
    return tuple(sorted({wanted, *larger}))


def _request(ask: _Ask, demand: Demand, knowledge: Knowledge, several: bool) -> dict[str, Any]:
    exactly: dict[str, Any] = {
        "deviceClassName": ask.device_class,
        "allocationMode": "ExactCount",
        "count": ask.count,
    }
    needs = list(dict.fromkeys(_selectors(ask, demand, knowledge)))
    if len(needs) > MOST_SELECTORS:
        needs[MOST_SELECTORS - 1 :] = [" && ".join(f"({each})" for each in needs[MOST_SELECTORS - 1 :])]
    if needs:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in needs]
    return {"name": _name(ask.resource, several), "exactly": exactly}


def _name(resource: str, several: bool) -> str:
    """Name a request after its resource, a DNS label: `gpu`, `mig-1g-10gb`; with the vendor's domain among several."""
    return re.sub(r"[^a-z0-9]+", "-", (resource if several else resource.partition("/")[2]).lower())[:63].strip("-")


def _selectors(ask: _Ask, demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    """Write each need as CEL; all of them must hold. Other vendors' attributes are not ours to know."""
    if ask.device_class not in (NVIDIA_DRIVER, SLICES):
        return
    yield from (_any_product(any_of) for any_of in demand.products)
    if demand.denied_products:
        yield f"!({_any_product(demand.denied_products)})"
    if ask.profiles:
        wanted = ", ".join(map(_quoted, ask.profiles))
        yield f"{_ATTRIBUTES}.profile.replace('+', '.') in [{wanted}]"
    if demand.memory_mib:
        yield _memory(demand)
    capabilities = [demand.compute_capability, *(need.capability_floor for need in demand.cuda)]
    if floor := max((each for each in capabilities if each is not None), default=None):
        yield _at_least(_CAPABILITY, floor)
    for need in demand.cuda:
        if (driver := _driver(need, demand.accept)) is not None:
            yield driver
    yield from _not_among({each for need in demand.cuda for each in need.unsupported}, knowledge)


def _any_product(patterns: Iterable[ProductPattern]) -> str:
    """Write that the product is any of these: exact names, or patterns over what is left without the vendor's word."""
    several = list(patterns)
    forms = sorted({_plain(re.escape(form)) for each in several for form in each.labels or ()})
    tests = [f"{_PRODUCT}.matches('^(nvidia-|tesla-)?({'|'.join(forms)})$')"] if forms else []
    expressions = [each.expression.pattern for each in several if each.expression is not None]
    if expressions:
        bare = "p.matches('^(nvidia|tesla)-') ? p.substring(p.indexOf('-') + 1) : p"
        met = " || ".join(f"n.matches('{_plain(each)}')" for each in expressions)
        tests.append(f"cel.bind(p, {_PRODUCT}, cel.bind(n, {bare}, {met}))")
    return " || ".join(tests) or "false"


def _plain(pattern: str) -> str:
    """Write a pattern over product tokens, letters, digits, `.`, `_` and `-`, without a backslash; RE2 reads it so."""
    return pattern.replace("\\-", "-").replace("\\.", "[.]")


def _memory(demand: Demand) -> str:
    """Ask for the share of nominal memory that filter asks for; where it is unknown, what the policy says of that."""
    enough = f"{_MEMORY}.compareTo(quantity('{ceil(MEMORY_TOLERANCE * demand.memory_mib)}Mi')) >= 0"
    return f"has({_MEMORY}) && {enough}" if demand.refuse_unknown else f"!has({_MEMORY}) || {enough}"


def _driver(need: CUDANeed, accept: AcceptedCompatibility) -> str | None:
    """Write on which drivers a need runs, the procedure of knowledge/cuda.py; None where any driver will do."""
    vouched = need.requirement and accept is AcceptedCompatibility.ForwardCompatible
    if vouched or need.native <= (0,):
        return None
    ways = [_at_least(_DRIVER, need.native)]
    if (
        accept <= AcceptedCompatibility.MinorVersion
        and need.minor_version is not None
        and need.minor_version < need.native
    ):
        ways = list(_minor_version(need.requires, need.minor_version, need.native))
    if accept is AcceptedCompatibility.ForwardCompatible:
        ways += [_branch(branch, floor) for branch, floor in need.forward]
    return " || ".join(ways)


def _minor_version(requires: DriverList | None, lowest: Version, native: Version) -> Iterator[str]:
    """Write on which drivers minor-version compatibility holds: all, or those on which the image starts."""
    if requires is None:
        yield _at_least(_DRIVER, lowest)
        return
    yield _at_least(_DRIVER, max(lowest, min(native, requires.since or native)))
    floors = ((branch, max((branch,), lowest)) for branch in sorted(requires.branches))
    yield from (_branch(branch, floor) for branch, floor in floors if floor < (branch + 1,))


def _branch(branch: int, floor: Version) -> str:
    """Write that a driver is of a branch, at or above a floor in it."""
    below = f"{_DRIVER}.compareTo({_semver((branch + 1,))}) < 0"
    return f"({_at_least(_DRIVER, max(floor, (branch,)))} && {below})"


def _not_among(unsupported: set[Version], knowledge: Knowledge) -> Iterator[str]:
    """Write that a compute capability is none of these, as ranges between those that GPUs do have."""
    known = {product.compute_capability for product in knowledge.products.by_form.values()}
    supported = sorted((known | set(knowledge.cuda.first_in)) - unsupported)
    for position, run in groupby(sorted(unsupported), lambda each: bisect(supported, each)):
        several = tuple(run)
        above = f"{_CAPABILITY}.compareTo({_semver(several[-1])}) > 0"
        yield f"{_CAPABILITY}.compareTo({_semver(several[0])}) < 0 || {above}" if position else above


def _at_least(attribute: str, version: Version) -> str:
    return f"{attribute}.compareTo({_semver(version)}) >= 0"


def _quoted(text: str) -> str:
    """Write a CEL string; the name of a resource is what anybody sends, and must not get out of it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _semver(version: Version) -> str:
    """Write a version with exactly three fields, as CEL's semver wants them."""
    return f"semver('{'.'.join(map(str, (*version, 0, 0)[:3]))}')"


def _without_class(demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    for resource, count in demand.resources:
        family = knowledge.families.of(resource)
        if family is None or not family.device_classes:
            yield f"{count} x {resource}: no DeviceClass of its family is known"


def _unsaid(demand: Demand, asks: tuple[_Ask, ...]) -> Iterator[str]:
    """List what the demand asks and the claim does not."""
    ours = [each for each in asks if each.device_class in (NVIDIA_DRIVER, SLICES)]
    if (devices := sum(each.count for each in asks)) > MOST_DEVICES:
        yield f"{devices} devices: a claim is given {MOST_DEVICES} at most"
    if demand.nvlink:
        yield "NVLink: the driver publishes no attribute for it; name the products instead"
    if demand.sharing is SharingWish.Shared or any(each.resource.endswith(".shared") for each in asks):
        yield "a share of a GPU: DRA shares by one ResourceClaim for several pods, or by the driver's own configuration"
    if demand.mig_profile and demand.mig_profile[1] and any(each.profiles for each in ours):
        yield "a whole GPU in place of a larger slice: that would be a second choice under firstAvailable"
    for need in demand.cuda:
        if need.requirement:
            yield f"NVIDIA_REQUIRE_*: {show_need(need)}"
        if need.requires and need.requires.branches != need.requires.consumer_branches:
            yield "driver branches that the image names for some brands of GPU only: the claim takes them for any"
        if demand.accept is AcceptedCompatibility.ForwardCompatible and need.forward:
            yield "forward compatibility on data-centre GPUs only: the claim takes these drivers on any GPU"
    if demand.preferred_products or demand.cuda_wishes or demand.warned:
        yield "preferences: a claim takes or refuses, it does not rank"
    yield from (
        f"needs of {each.resource}: attributes of this driver are not known" for each in asks if each not in ours
    )
