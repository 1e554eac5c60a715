# SPDX-License-Identifier: Apache-2.0
"""The ResourceClaimTemplate for devices that are requested as resources of a device plugin.

The needs of a pod become CEL over the attributes and capacities of NVIDIA's driver (NVIDIA/k8s-dra-driver-gpu
cmd/gpu-kubelet-plugin/deviceinfo.go, partitions.go). Its versions are semantic ones without leading zeros: driver
570.124.06 is published as 570.124.6. Whole GPUs of GB10 and the like publish no memory. CEL that reads an absent member
fails the pod on every node, so that members which may be absent are tested with `has` first.
"""

import json
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import Any

from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed, DriverList
from app.knowledge.mig_profiles import nominal_size, profile_of
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.kube.api_kinds import API_KINDS
from app.kube.claimed_devices import PublishedShares
from app.kube.device_models import NVIDIA_DRIVER
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.facts import ATTRIBUTES, UNSTATED, Fact, semver, semver_at_least
from app.policy.needs import LEAST_MEMORY, WITH_FACT
from app.policy.schema_placement import SharingWish
from app.values.versions import Version

MIG_CLASS = "mig.nvidia.com"
"""The DeviceClass of MIG slices; that of whole GPUs has the name of the driver."""
NVIDIA_CLASSES = (NVIDIA_DRIVER, MIG_CLASS)
MOST_SELECTORS = 32
"""Selectors of one request (k8s.io/api resource/v1 types.go DeviceSelectorsMaxSize)."""
_CAPABILITY = f"{ATTRIBUTES}.cudaComputeCapability"
_DRIVER = f"{ATTRIBUTES}.driverVersion"
_PRODUCT = f"{ATTRIBUTES}.productName.lowerAscii().replace(' ', '-')"
"""CEL: the product as GPU Feature Discovery labels it, in lower case; GFD writes dashes for spaces."""
_OTHER_PRODUCT = (
    f"(has({ATTRIBUTES}.productName) ? {ATTRIBUTES}.productName : {ATTRIBUTES}.model)"
    ".lowerAscii().replace(' ', '-').replace('_', '-')"
)
"""CEL: the product as other vendors' drivers publish it, once their name is NVIDIA's (kube/device_models.py)."""
_ATTRIBUTE = re.compile(rf"(?<!has\(){re.escape(ATTRIBUTES)}\.\w+")
"""An attribute that CEL reads without asking first whether the device has it."""


def selectors_of(device_class: str, profiles: Iterable[str], demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    """Write each need of a demand as CEL; all of them must hold. There are no more than a request can have.

    `profiles` are the MIG profiles that serve it, none for whole GPUs. For other vendors' DeviceClasses there are no
    selectors, since the attributes of their drivers are not known.
    """
    needs = list(dict.fromkeys(_needs(tuple(profiles), demand, knowledge))) if device_class in NVIDIA_CLASSES else []
    yield from needs[: MOST_SELECTORS - 1]
    yield from _joined(needs[MOST_SELECTORS - 1 :])


def guarded_selectors(driver: str, demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    """Write each need as CEL for a DeviceClass that may also give devices of other drivers, or without the attributes.

    Of a driver that is not NVIDIA's only product and memory are read (kube/device_models.py).
    """
    needs = _needs((), demand, knowledge) if driver == NVIDIA_DRIVER else _needs_of_others(demand)
    for need in dict.fromkeys(needs):
        members = dict.fromkeys(_ATTRIBUTE.findall(need)) if driver == NVIDIA_DRIVER else ()
        present = "".join(f"has({member}) && " for member in members)
        yield f"device.driver != '{driver}' || ({present}({need.replace(NVIDIA_DRIVER, driver)}))"


def _needs_of_others(demand: Demand) -> Iterator[str]:
    named = f"(has({ATTRIBUTES}.productName) || has({ATTRIBUTES}.model))"
    yield from (f"{named} && ({_any_product(any_of, _OTHER_PRODUCT)})" for any_of in demand.products)
    if demand.denied_products:
        yield f"{named} && !({_any_product(demand.denied_products, _OTHER_PRODUCT)})"
    yield from (condition for fact, condition in _facts(demand) if fact.any_vendor)


def _joined(needs: Sequence[str]) -> Iterator[str]:
    if needs:
        yield needs[0] if len(needs) == 1 else " && ".join(f"({need})" for need in needs)


def _needs(profiles: tuple[str, ...], demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    yield from (_any_product(any_of) for any_of in demand.products)
    if demand.denied_products:
        yield f"!({_any_product(demand.denied_products)})"
    if profiles:
        yield f"{ATTRIBUTES}.profile.replace('+', '.') in [{', '.join(map(_quoted, profiles))}]"
    yield from (condition for _, condition in _facts(demand))
    for need in demand.cuda:
        if (driver := _driver(need, demand.accept)) is not None:
            yield driver
    existing = {product.compute_capability for product in knowledge.products.by_form.values()}
    unsupported = {capability for need in demand.cuda for capability in need.unsupported}
    for build in demand.builds:
        if build.required:
            unsupported |= {capability for capability in existing if not build.runs_on(capability, None)}
    yield from _not_among(unsupported, existing | set(knowledge.cuda.first_in))


def _any_product(patterns: Iterable[ProductPattern], product: str = _PRODUCT) -> str:
    """Write that the product is one of these: exact names, or patterns over the name without the vendor's prefix."""
    product_patterns = list(patterns)
    forms = sorted({_plain(re.escape(form)) for pattern in product_patterns for form in pattern.labels or ()})
    tests = [f"{product}.matches('^(nvidia-|tesla-)?({'|'.join(forms)})$')"] if forms else []
    expressions = [pattern.expression.pattern for pattern in product_patterns if pattern.expression is not None]
    if expressions:
        bare = "p.matches('^(nvidia|tesla)-') ? p.substring(p.indexOf('-') + 1) : p"
        matched = " || ".join(f"n.matches('{_plain(expression)}')" for expression in expressions)
        tests.append(f"cel.bind(p, {product}, cel.bind(n, {bare}, {matched}))")
    return " || ".join(tests) or "false"


def _plain(pattern: str) -> str:
    """Write a pattern over product names (letters, digits, `.`, `_`, `-`) without backslashes, as RE2 reads it."""
    return pattern.replace("\\-", "-").replace("\\.", "[.]")


def _facts(demand: Demand) -> Iterator[tuple[Fact, str]]:
    """Require what is wanted of each fact; one that a device may lack is judged by the policy where it is unknown."""
    for need, fact in WITH_FACT:
        if fact.member and (wanted := need.wanted(demand)) not in UNSTATED:
            enough, known = fact.compared.in_cel(fact.member, wanted), f"has({fact.member})"
            if fact.any_vendor:
                enough = f"{known} && {enough}" if demand.refuse_unknown else f"!{known} || {enough}"
            yield fact, enough


def _driver(need: CUDANeed, accept: AcceptedCompatibility) -> str | None:
    """Write on which drivers a need runs (rules: knowledge/cuda_compatibility.py); None where any driver will do."""
    trusted = need.trusts_requirement and accept is AcceptedCompatibility.ForwardCompatible
    if trusted or need.native <= (0,):
        return None
    conditions = [semver_at_least(_DRIVER, need.native)]
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
        yield semver_at_least(_DRIVER, lowest)
        return
    yield semver_at_least(_DRIVER, max(lowest, min(native, requires.since or native)))
    floors = ((branch, max((branch,), lowest)) for branch in sorted(requires.branches))
    yield from (_branch(branch, floor) for branch, floor in floors if floor < (branch + 1,))


def _branch(branch: int, floor: Version) -> str:
    """Write that a driver is of a branch, at or above a lowest version in it."""
    below = f"{_DRIVER}.compareTo({semver((branch + 1,))}) < 0"
    return f"({semver_at_least(_DRIVER, max(floor, (branch,)))} && {below})"


def _not_among(unsupported: set[Version], existing: set[Version]) -> Iterator[str]:
    """Write that a compute capability is none of these, as ranges between those that existing GPUs have."""
    supported = sorted(existing - unsupported)
    for position, run in groupby(sorted(unsupported), lambda capability: bisect(supported, capability)):
        excluded = tuple(run)
        above = f"{_CAPABILITY}.compareTo({semver(excluded[-1])}) > 0"
        yield f"{_CAPABILITY}.compareTo({semver(excluded[0])}) < 0 || {above}" if position else above


def _quoted(text: str) -> str:
    """Write a CEL string; a resource name comes from the user and must not break out of the quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


TEMPLATE_KIND = API_KINDS["ResourceClaimTemplate"]
NEWEST_VERSION = TEMPLATE_KIND.versions[0]
FLAT_VERSION = "v1beta1"
"""The version of resource.k8s.io in which a request has its fields beside its name; later ones have them in
`exactly` (k8s.io/api resource/v1beta1, v1beta2, v1 types.go DeviceRequest)."""
MOST_CLAIM_REQUESTS = 32
MOST_CLAIMED_DEVICES = 32
"""Requests of one claim; devices of one request, and of one claim when it is allocated (k8s.io/api resource/v1 types.go
DeviceRequestsMaxSize, AllocationResultsMaxSize). The API server accepts a claim for more devices, but it fits no
node."""
TEMPLATE_PREFIX = "gpu-usher-"
HASH_LENGTH = 10
"""Hexadecimal digits of the hash in a template's name: of a million templates two are alike with a chance of 1 in 2."""


@dataclass(frozen=True, slots=True)
class RequestedDevices:
    """One request of a claim: its name, the resource that it stands for, the number of devices, their DeviceClass.

    `profiles` are the MIG profiles that serve it, as resource names write them; empty for whole GPUs. `capacity` is
    what a share of each device has, by capacity. `shareable` says whether other claims may use the devices too, None
    where both are right. `no_share` says why there is no claim for the share that is asked for.
    """

    name: str
    resource: str
    count: int
    device_class: str
    profiles: tuple[str, ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    shareable: bool | None = None
    no_share: str = ""

    @property
    def is_known(self) -> bool:
        """Tell whether the attributes of its devices are known, so that needs can be written as selectors."""
        return self.device_class in NVIDIA_CLASSES


def device_class_of(resource: str, demand: Demand, knowledge: Knowledge) -> tuple[str, tuple[str, ...]] | None:
    """Return the DeviceClass that serves a resource, and the MIG profiles that do; None if no class is known."""
    family = knowledge.families.of(resource)
    profiles = _profiles(resource, demand, knowledge)
    if family is not None and profiles and MIG_CLASS in family.device_classes:
        return MIG_CLASS, profiles
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


SHAREABLE = "device.allowMultipleAllocations"
"""CEL: several claims may use the device (Kubernetes 1.34 and newer, as the devices themselves)."""


def wants_share(demand: Demand, resource: str) -> bool:
    """Tell whether a pod asks for shares by a resource."""
    return demand.sharing is SharingWish.Shared or resource.endswith(".shared")


def with_sharing(devices: RequestedDevices, demand: Demand, shares: PublishedShares) -> RequestedDevices:
    """Request shares of GPUs for a pod that asks for shares, and whole ones for a pod that wants no share.

    The memory that a pod declares is that of its share; without it a share is what the driver counts as one.
    """
    if not wants_share(demand, devices.resource):
        whole = demand.sharing is SharingWish.Exclusive and shares.by_default and not devices.profiles
        return replace(devices, shareable=False) if whole else devices
    if devices.profiles:
        return replace(devices, no_share="a share of a MIG slice: a claim takes a whole slice")
    memory = demand.declared_mib or LEAST_MEMORY.value(demand)
    if memory and "memory" in shares.capacities:
        return replace(devices, capacity=(("memory", f"{memory}Mi"),), shareable=True)
    if "shares" in shares.capacities:
        return replace(devices, capacity=(("shares", "1"),), shareable=True)
    if shares.capacities:
        return replace(devices, no_share="a share of a GPU: claims share by memory, and the pod declares none")
    return replace(devices, no_share="a share of a GPU: no DRA driver here publishes GPUs that claims can share")


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
        "apiVersion": TEMPLATE_KIND.api_version(NEWEST_VERSION),
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
    return {**template, "apiVersion": TEMPLATE_KIND.api_version(version), "spec": spec}


def _request(devices: RequestedDevices, demand: Demand, knowledge: Knowledge) -> dict[str, Any]:
    exactly: dict[str, Any] = {
        "deviceClassName": devices.device_class,
        "allocationMode": "ExactCount",
        "count": devices.count,
    }
    expressions = list(selectors_of(devices.device_class, devices.profiles, demand, knowledge))
    if devices.shareable is not None:
        first = SHAREABLE if devices.shareable else f"!{SHAREABLE}"
        expressions = [first, *expressions[: MOST_SELECTORS - 2], *_joined(expressions[MOST_SELECTORS - 2 :])]
    if devices.capacity:
        exactly["capacity"] = {"requests": dict(devices.capacity)}
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": devices.name, "exactly": exactly}


def content_name(devices: Sequence[RequestedDevices], demand: Demand, knowledge: Knowledge) -> str:
    """Name a template after its content: `gpu-usher-2-gpu-` and a hash, which is the same in each version of the API.

    The words are those of the first request, for people; the hash is over all of them.
    """
    requests = [_request(one, demand, knowledge) for one in devices]
    digest = sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()[:HASH_LENGTH]
    return f"{TEMPLATE_PREFIX}{devices[0].count}-{devices[0].name}-{digest}"


def not_expressible(demand: Demand, devices: Sequence[RequestedDevices]) -> Iterator[str]:
    """List the parts of a demand that the claim does not express."""
    if (count := sum(one.count for one in devices)) > MOST_CLAIMED_DEVICES:
        yield f"{count} devices: a claim gets at most {MOST_CLAIMED_DEVICES}"
    for row, fact in WITH_FACT:
        instead = "; name the products instead" if fact.by_product else ""
        for line in row.lines(demand) if not fact.member else ():
            yield f"{line}: the driver publishes no attribute for it{instead}"
    if any(wants_share(demand, one.resource) and not one.capacity for one in devices):
        yield "a share of a GPU: DRA shares by one ResourceClaim for several pods, or by a capacity request"
    if demand.mig_profile and demand.mig_profile[1] and any(one.profiles and one.is_known for one in devices):
        yield "a whole GPU in place of a larger slice: that would be a second choice under firstAvailable"
    for need in demand.cuda:
        if need.requirement:
            yield f"NVIDIA_REQUIRE_*: {show_need(need)}"
        if need.requires and need.requires.branches != need.requires.consumer_branches:
            yield "driver branches that the image names for some brands of GPU only: the claim takes them for any"
        if demand.accept is AcceptedCompatibility.ForwardCompatible and need.forward:
            yield "forward compatibility on data-centre GPUs only: the claim takes these drivers on any GPU"
    if demand.preferred_products or demand.preferred_cuda or demand.warned:
        yield "preferences: a claim selects devices, it does not rank them"
    for one in devices:
        if not one.is_known:
            yield f"needs of {one.resource}: attributes of this driver are not known"
