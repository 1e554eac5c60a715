# SPDX-License-Identifier: Apache-2.0
"""CUDA compatibility: whether a container that is built for one CUDA version runs on a node's driver and GPU.

For drivers the procedure is `decision_procedure` of cuda_driver.yaml: native, then minor-version compatibility, then
forward compatibility, else no. For GPUs a toolkit supports a range of compute capabilities.

NVIDIA_REQUIRE_* variables are evaluated as `nvidia-container-cli configure` does before it starts a container
(NVIDIA/libnvidia-container src/cli/dsl.c and configure.c). In a value, spaces separate alternatives, and commas
separate clauses that must all hold. All variables must hold. An invalid clause refuses the container, if evaluation
comes to it. In its mode jit-cdi the toolkit evaluates nothing
(docs/decisions/0026-judge-images-as-the-container-toolkit-does.md).
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any

from app.values.versions import Version, major_minor, parse_version

_CLAUSE = re.compile(r"([^<>=!]+)(>=|<=|!=|!|=|<|>)([^<>=!].*)")
_SUBJECTS = ("cuda", "driver", "arch", "brand")
_COMPARE: Mapping[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "!": operator.ne,  # dsl.c compares only as many characters of an operator as there are
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
CONSUMER_BRANDS = ("geforce", "titan")
"""Prefixes of the brands of consumer GPUs, as NVML names them (libnvidia-container src/nvc_info.c)."""
_BRANDS = (
    ("geforce", frozenset({"geforce", "geforcertx"})),
    ("titan", frozenset({"titan", "titanrtx"})),
    ("quadro", frozenset({"quadro", "quadrortx", "nvidiartx", "nvidia", "unknown"})),
    ("rtx-", frozenset({"quadro", "quadrortx", "nvidiartx", "nvidia", "unknown"})),
    ("grid", frozenset({"grid", "cloudgaming", "vapps", "vcs", "vpc", "vws", "nvidia", "tesla", "unknown"})),
    ("", frozenset({"tesla", "nvidia", "unknown"})),
)
"""A word in the normal form of a product, and the brands that it may have: the same GPU has others with other drivers,
and an older libnvidia-container says `unknown` of a brand that it does not know (src/nvc_info.c)."""
_OTHER_BRANDS = frozenset[str]().union(*(brands for word, brands in _BRANDS if word not in CONSUMER_BRANDS))
_CONSUMER = _BRANDS[0][1] | _BRANDS[1][1]


@dataclass(frozen=True, slots=True)
class RequireClause:
    """One comparison; `version` is None for a brand, and for a value that is not a version. An invalid
    one has no subject."""

    subject: str
    comparison: str
    value: str
    version: Version | None


RequireExpression = tuple[tuple[tuple[RequireClause, ...], ...], ...]
"""The requirement of a container: variables, which are alternatives, which are clauses that must all hold."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts about a node with which clauses are compared; a comparison with an unknown fact, None, holds.

    `datacenter` says that the GPU is not of a consumer brand (GeForce, TITAN); `product` is its normal form;
    `architecture` is that of the CPU.
    """

    driver: Version | None
    cuda: Version | None
    capability: Version | None
    datacenter: bool | None
    product: str | None = None
    architecture: str | None = None

    def brands(self) -> frozenset[str] | None:
        """Give the brands that NVML may name; None where nothing is known of the GPU."""
        if self.product is not None:
            return next(brands for word, brands in _BRANDS if word in self.product)
        return None if self.datacenter is None else _OTHER_BRANDS if self.datacenter else _CONSUMER


def parse_require(values: Iterable[str]) -> RequireExpression:
    """Read the values of all NVIDIA_REQUIRE_* variables of a container, without empty ones.

    Their number is not limited here, since a pod or an image with more clauses than MOST_CLAUSES of kube/pod_limits.py
    is not read at all.
    """
    return tuple(
        tuple(tuple(_clause(text) for text in group.split(",") if text) for group in value.split(" ") if group)
        for value in values
        if value.strip(" ")
    )


def _clause(text: str) -> RequireClause:
    match = _CLAUSE.fullmatch(text)
    subject, comparison, value = match.groups() if match else ("", "=", text[:40])
    subject, value = subject.lower(), value.lower()
    if subject == "brand":
        return RequireClause(subject if comparison in ("=", "!=", "!") else "", comparison, value, None)
    numeric = re.fullmatch(r"\d{1,6}(?:\.\d{1,6}){0,3}", value, re.ASCII)
    known = subject in _SUBJECTS and numeric
    return RequireClause(subject if known else "", comparison, value, parse_version(value) if known else None)


def requirement_holds(expression: RequireExpression, host: HostFacts) -> bool:
    """Tell whether a container with these variables would start on a host."""
    return all(_variable_holds(variable, host) for variable in expression)


def _variable_holds(variable: tuple[tuple[RequireClause, ...], ...], host: HostFacts) -> bool:
    """Try the alternatives in turn; an invalid clause that is reached ends the evaluation."""
    for group in variable:
        first_false = next((clause for clause in group if not clause.subject or not _holds(clause, host)), None)
        if first_false is None or not first_false.subject:
            return first_false is None
    return False


def _holds(clause: RequireClause, host: HostFacts) -> bool:
    if clause.version is None:
        brands = host.brands()
        if clause.comparison == "=":
            return brands is None or clause.value in brands
        return brands is None or brands != frozenset({clause.value})
    facts = {"cuda": host.cuda, "driver": host.driver, "arch": host.capability}
    fact = facts[clause.subject]
    return fact is None or _COMPARE[clause.comparison](fact, clause.version)


def lowest_cuda(expression: RequireExpression) -> Version | None:
    """Give the least CUDA version that the container requires; None if it requires none.

    It is the highest over all variables of the lowest `cuda>=` in each.
    """
    lows = []
    for variable in expression:
        bounds = [
            clause.version
            for group in variable
            for clause in group
            if clause.subject == "cuda" and clause.comparison in (">=", "=", ">") and clause.version
        ]
        if bounds:
            lows.append(min(bounds))
    return max(lows, default=None)


def named_branches(expression: RequireExpression) -> tuple[tuple[int, Version], ...]:
    """List the driver branches that a requirement names, each with a driver, for its cuda-compat package."""
    clauses = (clause for variable in expression for group in variable for clause in group)
    least = (one.version for one in clauses if (one.subject, one.comparison) == ("driver", ">="))
    return tuple(sorted({version[0]: version for version in least if version}.items()))


class AcceptedCompatibility(IntEnum):
    """The least compatibility that a policy accepts; a larger value is stricter (docs/reference/policy.md#merge)."""

    ForwardCompatible = 0
    MinorVersion = 1
    Native = 2


@dataclass(frozen=True, slots=True)
class DriverList:
    """The NVIDIA_REQUIRE_CUDA of a CUDA base image: `cuda>=X.Y`, or one of the driver branches that it names.

    `since` is the first driver that reports the CUDA version, None if none is known. `consumer_branches` are the
    branches that the image names for GeForce and TITAN GPUs, and `branches` those for other GPUs.
    """

    cuda: Version
    since: Version | None
    branches: frozenset[int]
    consumer_branches: frozenset[int]

    def is_met_by(self, host: HostFacts) -> bool:
        """Tell whether the image starts on a host; a requirement on an unknown fact counts as fulfilled."""
        if host.cuda is None or host.driver is None or host.cuda >= self.cuda:
            return True
        return host.driver[0] in (self.consumer_branches if host.datacenter is False else self.branches)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The least drivers for one CUDA version: natively, and with minor-version compatibility (None if there is none).

    `forward_branches` are the driver branches on which NVIDIA supports the cuda-compat package of this version.
    """

    native: Version
    minor_version: Version | None
    forward_branches: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class CUDATables:
    """The tables of cuda_driver.yaml; compared by identity, so that caches can have them in the key.

    `native` is the least driver by CUDA version, also with update (`12.4.1` is 12.4 U1), `minor_version` is that for
    minor-version compatibility by CUDA major version, and `forward` are the driver branches with forward compatibility
    by CUDA version. `reported` is the highest CUDA version by driver branch. `removed_in` are pairs of a compute
    capability as the table writes it and the first toolkit without it, and `first_in` is the first toolkit with a
    compute capability. `capabilities` are all known compute capabilities.
    """

    native: Mapping[Version, Version]
    minor_version: Mapping[int, Version]
    forward: Mapping[Version, frozenset[int]]
    reported: Mapping[int, Version]
    removed_in: tuple[tuple[str, Version], ...]
    first_in: Mapping[Version, Version]
    capabilities: frozenset[Version]

    @lru_cache(maxsize=512)  # noqa: B019  # the tables live as long as the service
    def toolkit(self, cuda: Version) -> Toolkit:
        """Give the drivers that a CUDA version needs; an unknown version needs those of the next known one above it."""
        return Toolkit(
            native=self._native(cuda),
            minor_version=self.minor_version.get(cuda[0]),
            forward_branches=self.forward.get(major_minor(cuda), frozenset()),
        )

    def _native(self, cuda: Version) -> Version:
        """Find the least driver of an update, else that of its release, else that of the next release in the table.

        A toolkit newer than the table needs the branch that reports it, or else a branch after those in the table.
        """
        updates = [version for version in self.native if major_minor(version) == major_minor(cuda) and version <= cuda]
        if updates:
            return self.native[max(updates)]  # the newest update that is not above `cuda`
        above = [version for version in self.native if version >= major_minor(cuda)]
        if above:
            return self.native[min(above)]
        reporting = [branch for branch, reported in self.reported.items() if reported >= major_minor(cuda)]
        return (min(reporting),) if reporting else (max(self.reported) + 1,)

    def highest_cuda(self, driver: Version | None) -> Version | None:
        """Give the highest CUDA version that a driver's branch reports; None for a branch that the table lacks."""
        return self.reported.get(driver[0]) if driver else None

    def first_branch(self, cuda: Version) -> Version | None:
        """Give the first driver branch that reports a CUDA version; None if no branch of the table does."""
        reporting = [branch for branch, reported in self.reported.items() if reported >= cuda]
        return (min(reporting),) if reporting else None

    def _removed(self, cuda: Version, capability: Version) -> bool:
        return any(cuda >= toolkit and _same_capability(written, capability) for written, toolkit in self.removed_in)

    def _targets(self, cuda: Version, capability: Version) -> bool:
        """Tell whether a toolkit can generate machine code that a GPU of this compute capability runs.

        Code for X.y runs on X.z if z >= y (cuda_driver.yaml `sass_rules`), so that a toolkit also supports a newer
        capability if it knows an older one of the same major number. For major numbers without a row for their first
        toolkit, such as Kepler's, every toolkit before the one that removed them supports them.
        """
        if all(older[0] != capability[0] for older in self.first_in):
            return any(_same_capability(written, capability) for written, _ in self.removed_in)
        return any(
            older[0] == capability[0] and older <= capability and first <= cuda
            for older, first in self.first_in.items()
        )

    @lru_cache(maxsize=512)  # noqa: B019  # the tables live as long as the service
    def unsupported(self, cuda: Version) -> frozenset[Version]:
        """List the known compute capabilities that a toolkit, and so its code, no longer supports."""
        return frozenset(capability for capability in self.capabilities if self._removed(cuda, capability))

    @lru_cache(maxsize=512)  # noqa: B019  # the tables live as long as the service
    def targets(self, cuda: Version) -> frozenset[Version]:
        """List the compute capabilities for which a toolkit can generate machine code; the others need PTX."""
        return frozenset(capability for capability in self.capabilities if self._targets(cuda, capability))


def _same_capability(written: str, capability: Version) -> bool:
    """Compare with a table entry, in which `5.x` stands for every capability of major number 5."""
    major, _, minor = written.partition(".")
    return int(major) == capability[0] and (minor == "x" or int(minor) == (capability[1] if len(capability) > 1 else 0))


@dataclass(frozen=True, slots=True)
class CUDANeed:
    """The CUDA need of one container, compiled so that comparing it with a driver looks up no table.

    `cuda` is the needed version. `minimum` says that newer toolkits qualify too, as for an annotation, environment or
    policy; an image tag names the toolkit itself. `native` and `minor_version` are the least drivers, the second None
    if minor-version compatibility does not apply. `requires` is the driver requirement in the image's environment, None
    if it has none or is not known. `forward` are the driver branches, each with its least driver, on which the
    cuda-compat package in the image is supported. `forward_depends` says that the container may not load that package,
    which no object shows: then it is not refused, and scored lower. `forced_compat` says that it always does, also on
    GPUs that do not support it. `capability_floor` is the least compute capability of the image family. `unsupported`
    are the known compute capabilities that the toolkit no longer supports, and `targets` those for which it can
    generate machine code, None if that is not checked. `requirement` is the requirement in the container's own
    environment, empty if there is none, and `requirements` is that on each CPU architecture, where these differ.
    `evidence` says in words where the need comes from.
    """

    cuda: Version
    minimum: bool
    native: Version
    minor_version: Version | None
    requires: DriverList | None
    forward: tuple[tuple[int, Version], ...]
    capability_floor: Version | None
    unsupported: frozenset[Version]
    targets: frozenset[Version] | None
    requirement: RequireExpression
    evidence: str = field(compare=False)
    forward_depends: bool = False
    forced_compat: bool = False
    requirements: tuple[tuple[str, RequireExpression], ...] = ()

    @property
    def inferred(self) -> bool:
        """Tell whether the need is inferred from an image tag, and not stated by annotation, environment or policy."""
        return not self.minimum

    @property
    def trusts_requirement(self) -> bool:
        """Tell whether the requirement alone says on which drivers the container runs, as no toolkit is known."""
        return self.minimum and bool(self.requirement)

    def floor(self, accept: AcceptedCompatibility) -> Version:
        """Give the least driver that may suffice under `accept`; images that list drivers refuse some above it."""
        if accept is AcceptedCompatibility.Native or self.minor_version is None:
            return self.native
        return min(self.native, self.minor_version)

    def sufficient(self, accept: AcceptedCompatibility) -> Version:
        """Give the least driver from which on every one suffices under `accept`."""
        if self.requirement or self.forced_compat:
            return self.native
        starts = (self.requires.since or self.native) if self.requires else ()
        return min(self.native, max(self.floor(accept), starts))


class Compatibility(IntEnum):
    """The kind of compatibility of a driver with a need; a larger value is better.

    From Forward on, the values are equal to those of `AcceptedCompatibility`, so that the two can be compared.
    """

    RequirementUnmet = -2
    TooOld = -1
    Forward = 0
    MinorVersion = 1
    Native = 2


def judge_driver(need: CUDANeed, host: HostFacts) -> Compatibility:
    """Work out the compatibility of a host whose driver is known.

    The requirement comes first: if the host does not fulfil it, the container cannot start. If the host does, and the
    toolkit in the image is not known, the driver counts at least as forward-compatible, since the author allows it.
    """
    if host.driver is None:
        raise ValueError("judge_driver: wants a known driver")
    if not need.requirement:
        return _judge_by_version(need, host, host.driver)
    requirement = next((one for name, one in need.requirements if name == host.architecture), need.requirement)
    if not requirement_holds(requirement, host):
        return Compatibility.RequirementUnmet
    judged = _judge_by_version(need, host, host.driver)
    return max(judged, Compatibility.Forward) if need.trusts_requirement else judged


def _judge_by_version(need: CUDANeed, host: HostFacts, driver: Version) -> Compatibility:
    """Check native, minor-version and forward compatibility in turn; the last only for known data-centre GPUs."""
    if driver >= need.native:
        return Compatibility.Native
    starts = need.requires is None or need.requires.is_met_by(host)
    if starts and need.forced_compat and host.datacenter is False and driver[0] < need.native[0]:
        return Compatibility.TooOld  # CUDA error 804, forward compatibility was attempted on non supported HW
    if need.minor_version is not None and driver >= need.minor_version:
        return Compatibility.MinorVersion if starts else Compatibility.RequirementUnmet
    if host.datacenter and starts and any(driver[0] == branch and driver >= floor for branch, floor in need.forward):
        return Compatibility.Forward
    return Compatibility.TooOld


def load_cuda(document: Mapping[str, Any]) -> CUDATables:
    """Read cuda_driver.yaml."""
    forward: dict[Version, set[int]] = {}
    matrices = document["forward_compat"]
    for row in (*matrices["matrix_current"], *matrices["matrix_older_edition"]):
        version = parse_version(row["package"].removeprefix("cuda-compat-").replace("-", "."))
        forward.setdefault(version, set()).update(row["supported_on_branches"])
    return CUDATables(
        native=_native_drivers(document["toolkits"]),
        minor_version={row["cuda_major"]: parse_version(row["min_driver"]) for row in document["minor_version_compat"]},
        forward={version: frozenset(branches) for version, branches in forward.items()},
        reported={row["branch"]: parse_version(row["max_cuda_reported"]) for row in document["driver_branches"]},
        removed_in=tuple(
            (capability, parse_version(row["removed_in"].removeprefix("CUDA ")))
            for row in document["compute_capability_removals"]
            for capability in row["compute_capabilities"]
        ),
        first_in={
            parse_version(row["cc"]): parse_version(row["cuda"]) for row in document["compute_capability_first_toolkit"]
        },
        capabilities=_capabilities(document),
    )


def _capabilities(document: Mapping[str, Any]) -> frozenset[Version]:
    """List every capability of the major numbers in the tables, since products may have minor numbers between them."""
    written = [row["cc"] for row in document["compute_capability_first_toolkit"]]
    for row in document["compute_capability_removals"]:
        written += row["compute_capabilities"]
    majors = {int(capability.partition(".")[0]) for capability in written}
    return frozenset(parse_version(f"{major}.{minor}") for major in majors for minor in range(10))


def _updates(toolkit: str, cuda: Version) -> Iterator[Version]:
    """Read the update version of a row: `12.4 U1` is 12.4.1, and `11.0.3` stays as it is."""
    update = toolkit.rpartition(" U")[2]
    if update.isdecimal():
        yield (*cuda, *([0] * (2 - len(cuda))), int(update))
    number = toolkit.split(" ")[0]
    if number.count(".") == 2:
        yield parse_version(number)


def _native_drivers(rows: list[Mapping[str, Any]]) -> dict[Version, Version]:
    """Index the least drivers by X.Y (the lowest of its releases) and by X.Y.N for updates (`12.4 U1` is 12.4.1)."""
    drivers: dict[Version, Version] = {}
    for row in rows:
        if row["min_driver_linux"] is None or " RC" in row["toolkit"]:
            continue
        driver, cuda = parse_version(row["min_driver_linux"]), parse_version(row["cuda"])
        drivers[cuda] = min(driver, drivers.get(cuda, driver))
        for full in _updates(row["toolkit"], cuda):
            drivers[full] = driver
    return drivers
