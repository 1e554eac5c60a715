# SPDX-License-Identifier: Apache-2.0
"""Running containers as the kernel shows them: their processes, mounts and memory, not what a manifest says of them."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.kubectl import Object
from tests.realnodes.components import CTR
from tests.realnodes.node import SOCKET, Node
from tests.realnodes.sandbox import CGROUPS

MEBIBYTE = 2**20
UNLIMITED = 2**62
"""More than any limit: cgroup v1 writes the largest multiple of a page below 2⁶³ where there is none."""


@dataclass(frozen=True, slots=True)
class Container:
    """A running container, its memory cgroup, and the limit of its manifest in bytes, if it has one."""

    pod: str
    name: str
    limit: int | None
    cgroup: Path

    def memory(self, file: str) -> int:
        """Read a number of the memory cgroup, such as `memory.limit_in_bytes`."""
        return int((self.cgroup / file).read_text("ascii"))

    def status(self) -> Mapping[str, str]:
        """Read /proc/PID/status (proc_pid_status(5)) of the container's first process."""
        lines = (self._process() / "status").read_text("utf-8").splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def root_options(self) -> list[str]:
        """Read the mount options of the container's root (proc_pid_mountinfo(5): the fifth and sixth fields)."""
        rows = (line.split() for line in (self._process() / "mountinfo").read_text("utf-8").splitlines())
        return next(row[5].split(",") for row in rows if row[4] == "/")

    def _process(self) -> Path:
        return Path("/proc", (self.cgroup / "cgroup.procs").read_text("ascii").split()[0])


def containers_of(pod: Object) -> Iterator[Container]:
    """Find the running containers of a pod, sidecars too."""
    spec, status = pod["spec"], pod["status"]
    limits = {
        container["name"]: container["resources"].get("limits", {}).get("memory")
        for container in (*spec.get("initContainers", ()), *spec["containers"])
    }
    for state in (*status.get("initContainerStatuses", ()), *status["containerStatuses"]):
        identifier = state["containerID"].removeprefix("containerd://")
        (cgroup,) = (CGROUPS / "memory" / spec["nodeName"]).rglob(identifier)
        yield Container(pod["metadata"]["name"], state["name"], _bytes(limits[state["name"]]), cgroup)


def allowed_devices(pod: Object, majors: Collection[int]) -> set[tuple[int, int]]:
    """Read major and minor of the character devices with these majors that a running pod's only container may open.

    A line of the device cgroup is such as `c 195:0 rw` (Linux' admin-guide/cgroup-v1/devices.rst).
    """
    (cgroup,) = (CGROUPS / "devices" / pod["spec"]["nodeName"]).rglob(_only_identifier(pod))
    rules = re.findall(r"^c (\d+):(\d+) rw", (cgroup / "devices.list").read_text("ascii"), re.MULTILINE)
    return {(int(major), int(minor)) for major, minor in rules if int(major) in majors}


def requested_environment(node: Node, pod: Object) -> Mapping[str, str]:
    """Read the environment with which a running pod's only container was created; its runtime may change it."""
    words = ("-a", SOCKET, "--namespace", "k8s.io", "containers", "info", _only_identifier(pod))
    specification = json.loads(node.run(str(CTR), *words))["Spec"]
    return dict(variable.split("=", 1) for variable in specification["process"]["env"])


def _only_identifier(pod: Object) -> str:
    (state,) = pod["status"]["containerStatuses"]
    identifier: str = state["containerID"]
    return identifier.removeprefix("containerd://")


def _bytes(quantity: str | None) -> int | None:
    """Read a quantity in Mi, as our manifests have them."""
    return None if quantity is None else int(quantity.removesuffix("Mi")) * MEBIBYTE
