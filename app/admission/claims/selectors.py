# SPDX-License-Identifier: Apache-2.0
"""The needs of a pod as CEL over the devices of NVIDIA's DRA driver.

Attributes and capacities are those of NVIDIA's driver (NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go,
partitions.go). Its versions are semantic ones without leading zeros: driver 570.124.06 is published as 570.124.6.
Whole GPUs of GB10 and the like publish no memory. CEL that reads an absent member fails the pod on every node, so that
members which may be absent are tested with `has` first.
"""

import re
from bisect import bisect
from collections.abc import Iterable, Iterator
from itertools import groupby
from math import ceil

from app.knowledge.cuda_compatibility import AcceptedCompatibility, CUDANeed, DriverList
from app.knowledge.products import ProductPattern
from app.knowledge.tables import Knowledge
from app.kube.resource_slices import NVIDIA_DRIVER
from app.placement.unit_filters import MEMORY_TOLERANCE
from app.policy.demand import Demand
from app.values.versions import Version

SLICES = "mig.nvidia.com"
"""The DeviceClass of MIG slices; that of whole GPUs has the name of the driver."""
NVIDIA_CLASSES = (NVIDIA_DRIVER, SLICES)
MOST_SELECTORS = 32
"""Selectors of one request (k8s.io/api resource/v1 types.go DeviceSelectorsMaxSize)."""
_ATTRIBUTES = f"device.attributes['{NVIDIA_DRIVER}']"
_CAPABILITY = f"{_ATTRIBUTES}.cudaComputeCapability"
_DRIVER = f"{_ATTRIBUTES}.driverVersion"
_MEMORY = f"device.capacity['{NVIDIA_DRIVER}'].memory"
_PRODUCT = f"{_ATTRIBUTES}.productName.lowerAscii().replace(' ', '-')"
"""CEL: the product as GPU Feature Discovery labels it, in lower case; GFD writes dashes for spaces."""


def selectors_of(device_class: str, profiles: Iterable[str], demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    """Write each need of a demand as CEL; all of them must hold. There are no more than a request can have.

    `profiles` are the MIG profiles that serve it, none for whole GPUs. For other vendors' DeviceClasses there are no
    selectors, since the attributes of their drivers are not known.
    """
    needs = list(dict.fromkeys(_needs(tuple(profiles), demand, knowledge))) if device_class in NVIDIA_CLASSES else []
    yield from needs[: MOST_SELECTORS - 1]
    rest = needs[MOST_SELECTORS - 1 :]
    if rest:
        yield rest[0] if len(rest) == 1 else " && ".join(f"({need})" for need in rest)


def _needs(profiles: tuple[str, ...], demand: Demand, knowledge: Knowledge) -> Iterator[str]:
    yield from (_any_product(any_of) for any_of in demand.products)
    if demand.denied_products:
        yield f"!({_any_product(demand.denied_products)})"
    if profiles:
        yield f"{_ATTRIBUTES}.profile.replace('+', '.') in [{', '.join(map(_quoted, profiles))}]"
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
