# SPDX-License-Identifier: Apache-2.0
"""CUDA compatibility: will a container built for one CUDA run on a node's driver and GPU?

The procedure is cuda_driver.yaml `decision_procedure`: native → minor-version compatibility → forward
compatibility → no; and, apart from drivers, the range of compute capabilities that a toolkit can target.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any

from app.knowledge.nvidia_require import Expression, HostFacts, holds
from app.values.versions import Version, parse_version, release


class AcceptedCompatibility(IntEnum):
    """How much compatibility is enough; a larger value is stricter (docs/reference/policy.md#merge: strictest wins)."""

    ForwardCompatible = 0
    MinorVersion = 1
    Native = 2


@dataclass(frozen=True, slots=True)
class DriverList:
    """The NVIDIA_REQUIRE_CUDA of a CUDA base image: `cuda>=X.Y`, or one of the driver branches that it names.

    `since`: the first driver that reports the CUDA version; None where none is known. `branches`: those named for GPUs
    other than GeForce and TITAN; `consumer_branches`: for these.
    """

    cuda: Version
    since: Version | None
    branches: frozenset[int]
    consumer_branches: frozenset[int]

    def met(self, host: HostFacts) -> bool:
        """Tell whether the image starts; what is unknown of the host is taken to hold."""
        if host.cuda is None or host.driver is None or host.cuda >= self.cuda:
            return True
        return host.driver[0] in (self.consumer_branches if host.datacenter is False else self.branches)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """What one CUDA version needs of drivers. `branches`: where cuda-compat of this version is supported."""

    native: Version
    minor_version: Version | None
    forward_branches: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class CUDATables:
    """The driver tables, indexed for the procedure; compared by identity, so that what follows from them can be kept.

    `native`: by CUDA version, also with update (`12.4.1` is 12.4 U1); `reported`: highest CUDA by driver branch;
    `removed_in`: (compute capability as written, first toolkit without it); `first_in`: first toolkit with it;
    `capabilities`: every compute capability that any GPU has had.
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
        """Say what a CUDA version needs; an unknown one needs the driver of the next known one above it."""
        return Toolkit(
            native=self._native(cuda),
            minor_version=self.minor_version.get(cuda[0]),
            forward_branches=self.forward.get(release(cuda), frozenset()),
        )

    def _native(self, cuda: Version) -> Version:
        """Find the driver of an update, else of its release, else of the next release that has one.

        A toolkit newer than the table needs the branch that reports it, and that failing one that is still to come.
        """
        known = [version for version in self.native if release(version) == release(cuda) and version <= cuda]
        if known:
            return self.native[max(known)]  # the newest update up to the one asked
        above = [version for version in self.native if version >= release(cuda)]
        if above:
            return self.native[min(above)]
        reporting = [branch for branch, reported in self.reported.items() if reported >= release(cuda)]
        return (min(reporting),) if reporting else (max(self.reported) + 1,)

    def highest_cuda(self, driver: Version) -> Version | None:
        """Name the CUDA version that a driver's branch reports; None for a branch the table lacks."""
        return self.reported.get(driver[0])

    def first_branch(self, cuda: Version) -> Version | None:
        """Name the first driver branch that reports a CUDA version; None where no branch of the table does."""
        reporting = [branch for branch, reported in self.reported.items() if reported >= cuda]
        return (min(reporting),) if reporting else None

    def _removed(self, cuda: Version, capability: Version) -> bool:
        return any(cuda >= toolkit and _same_capability(written, capability) for written, toolkit in self.removed_in)

    def _targets(self, cuda: Version, capability: Version) -> bool:
        """Tell whether a toolkit is known to make machine code that a GPU runs.

        Code for X.y runs on X.z, z >= y (cuda_driver.yaml `sass_rules`): a capability newer than the toolkit is served
        where the toolkit knows an older one of the same major number. Where no row says when a major number came, as of
        Kepler, every toolkit before the one that removed it knows it.
        """
        if all(known[0] != capability[0] for known in self.first_in):
            return any(_same_capability(written, capability) for written, _ in self.removed_in)
        return any(
            known[0] == capability[0] and known <= capability and first <= cuda
            for known, first in self.first_in.items()
        )

    @lru_cache(maxsize=512)  # noqa: B019  # the tables live as long as the service
    def unsupported(self, cuda: Version) -> frozenset[Version]:
        """List the known compute capabilities that a toolkit no longer serves, and so nothing built by it."""
        return frozenset(known for known in self.capabilities if self._removed(cuda, known))

    @lru_cache(maxsize=512)  # noqa: B019  # the tables live as long as the service
    def targets(self, cuda: Version) -> frozenset[Version]:
        """List the compute capabilities for which a toolkit is known to make machine code; the others need PTX."""
        return frozenset(known for known in self.capabilities if self._targets(cuda, known))


def _same_capability(written: str, capability: Version) -> bool:
    """Compare with a table entry: `5.x` is every 5."""
    major, _, minor = written.partition(".")
    return int(major) == capability[0] and (minor == "x" or int(minor) == (capability[1] if len(capability) > 1 else 0))


@dataclass(frozen=True, slots=True)
class CUDANeed:
    """One container's CUDA need, compiled: comparing it with a driver takes no table.

    `cuda`: the version asked. `minimum`: any newer toolkit will do (annotation, environment, policy); an image tag
    names the toolkit itself. `native`, `minor_version`: driver floors, the second None where it never helps.
    `requires`: what the image's own environment demands of the driver; None where it refuses none, or is not known.
    `forward`: branches (with floors) on which the cuda-compat package that the image carries is supported.
    `capability_floor`: an image family's own floor. `unsupported`: known compute capabilities that the toolkit
    serves no longer. `targets`: those for which it is known to make machine code; None where that is not asked.
    `requirement`: what the container's own environment demands, empty for nothing. `evidence`: for people.
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
    requirement: Expression
    evidence: str = field(compare=False)

    @property
    def inferred(self) -> bool:
        """Tell whether somebody read the need off an image's tag; else an annotation, environment or policy said it."""
        return not self.minimum

    def floor(self, accept: AcceptedCompatibility) -> Version:
        """Name the driver that is surely enough under `accept`: what messages tell people to want."""
        if accept is AcceptedCompatibility.Native or self.minor_version is None:
            return self.native
        return min(self.native, self.minor_version)


class Compatibility(IntEnum):
    """How a driver runs a need; a larger value is better. From Forward on, a value is that of the Accept it fulfils."""

    RequirementUnmet = -2
    TooOld = -1
    Forward = 0
    MinorVersion = 1
    Native = 2


def judge_driver(need: CUDANeed, host: HostFacts) -> Compatibility:
    """Run the procedure for a host whose driver is known.

    An environment's requirement is judged first, literally: where it does not hold the container never starts,
    and where it does, its author vouches for the driver at least as for forward compatibility.
    """
    if host.driver is None:
        raise ValueError("judge_driver: wants a known driver")
    if not need.requirement:
        return _judge(need, host, host.driver)
    if not holds(need.requirement, host):
        return Compatibility.RequirementUnmet
    return max(_judge(need, host, host.driver), Compatibility.Forward)


def _judge(need: CUDANeed, host: HostFacts, driver: Version) -> Compatibility:
    """Go native → minor version → forward → no. Forward compatibility is for GPUs known to be data-centre ones."""
    if driver >= need.native:
        return Compatibility.Native
    starts = need.requires is None or need.requires.met(host)
    if need.minor_version is not None and driver >= need.minor_version:
        return Compatibility.MinorVersion if starts else Compatibility.RequirementUnmet
    if host.datacenter and starts and _listed(need.forward, driver):
        return Compatibility.Forward
    return Compatibility.TooOld


def _listed(branches: tuple[tuple[int, Version], ...], driver: Version) -> bool:
    return any(driver[0] == branch and driver >= floor for branch, floor in branches)


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
    """List every capability of the major numbers in the tables: products come between those that a table names."""
    written = [row["cc"] for row in document["compute_capability_first_toolkit"]]
    written += [each for row in document["compute_capability_removals"] for each in row["compute_capabilities"]]
    majors = {int(each.partition(".")[0]) for each in written}
    return frozenset(parse_version(f"{major}.{minor}") for major in majors for minor in range(10))


def _updates(toolkit: str, cuda: Version) -> Iterator[Version]:
    """Read which update a row is: `12.4 U1` is 12.4.1, `11.0.3` is itself."""
    update = toolkit.rpartition(" U")[2]
    if update.isdecimal():
        yield (*cuda, *([0] * (2 - len(cuda))), int(update))
    number = toolkit.split(" ")[0]
    if number.count(".") == 2:
        yield parse_version(number)


def _native_drivers(rows: list[Mapping[str, Any]]) -> dict[Version, Version]:
    """Index by X.Y (the lowest of its releases) and by X.Y.N for updates (`12.4 U1` is 12.4.1)."""
    drivers: dict[Version, Version] = {}
    for row in rows:
        if row["min_driver_linux"] is None or " RC" in row["toolkit"]:
            continue
        driver, cuda = parse_version(row["min_driver_linux"]), parse_version(row["cuda"])
        drivers[cuda] = min(driver, drivers.get(cuda, driver))
        for full in _updates(row["toolkit"], cuda):
            drivers[full] = driver
    return drivers
