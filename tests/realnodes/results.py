# SPDX-License-Identifier: Apache-2.0
"""tests/results/real-nodes.md and claims.md: what containers saw, written by a run that has seen all of their rows."""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.realnodes.bypass_cases import BYPASSES, Bypass
from tests.realnodes.claim_cases import CLAIMS
from tests.realnodes.nvml_config import CAPS_MAJOR, CONTROL_MINOR, MODESET_MINOR, NVIDIA_MAJOR, UVM_MAJOR
from tests.realnodes.seen_devices import SeenDevices
from tests.realnodes.whole_path_cases import CASES
from tests.realnodes.worlds import World

RESULTS, CLAIM_RESULTS = (Path(__file__).parents[1] / "results" / f"{name}.md" for name in ("real-nodes", "claims"))
REQUIREMENTS = (
    "without gpu-usher, toolkit in its default mode",
    "without gpu-usher, toolkit in mode legacy",
    "with it",
)
"""The rows of the table of requirements."""
GPUS = 8
"""The GPUs of the node on which pods go around us."""


class Results:
    """The rows of one run, by what was asked for, or by the way around."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}
        self._bypasses: dict[str, str] = {}
        self._requirements: dict[str, str] = {}
        self._claims: dict[str, str] = {}

    def add_path(self, name: str, world: World, seen: SeenDevices, allowed: Collection[tuple[int, int]]) -> None:
        """Add what a container saw that asked for devices by a request."""
        case = CASES[name]
        asked = ", ".join(f"`{resource}: {count}`" for resource, count in case.limits.items())
        variables = [f"{case.devices} × `{case.kind}-…`"]
        if seen.mps:
            variables.append(f"`CUDA_MPS_PIPE_DIRECTORY={seen.mps}`")
        cells = (
            f"{name}: {asked}" + (f" ({case.note})" if case.note else ""),
            _describe(world),
            "; ".join(variables),
            _count_files(seen.opened),
            _count_numbers(allowed),
            ", ".join(f"`{library}`" for library in seen.libraries),
        )
        self._paths[name] = f"| {' | '.join(cells)} |\n"

    def add_bypass(self, way: str, bypass: Bypass, refusal: str) -> None:
        """Add what a container saw that went around us, and what our guards say of its pod."""
        seen = f"opens {bypass.opened} of {GPUS} GPUs"
        if bypass.denied:
            seen += f", sees the files of {bypass.denied} that it may not open"
        guards = f"refused: {_escape(refusal)}" if refusal else "admitted: it gets no GPU by that"
        self._bypasses[way] = f"| {way} | {bypass.runtime} | {seen} | {guards} |\n"

    def add_claim(self, name: str, devices: Collection[str], seen: SeenDevices) -> None:
        """Add the devices that a claim says, and what its container could open; it saw no others."""
        files = ", ".join(f"`{file.removeprefix('/dev/')}`" for file in sorted(seen.opened))
        given = ", ".join(f"`{device}`" for device in sorted(devices))
        self._claims[name] = f"| {name}: {CLAIMS[name]} | {given} | {files} |\n"

    def add_requirement(self, where: str, outcome: str) -> None:
        """Add what becomes of a container whose requirement its node does not meet."""
        self._requirements[where] = f"| {where} | {_escape(outcome)} |\n"

    def write(self) -> None:
        """Write each page of which this run has every row."""
        tables = ((self._paths, CASES), (self._bypasses, BYPASSES), (self._requirements, REQUIREMENTS))
        if all(rows.keys() == set(names) for rows, names in tables):
            paths, bypasses, requirements = ("".join(rows[name] for name in names) for rows, names in tables)
            page = PAGE.format(paths=paths, bypasses=bypasses, requirements=requirements)
            RESULTS.write_text(page, "utf-8")
        if self._claims.keys() == set(CLAIMS):
            CLAIM_RESULTS.write_text(CLAIMS_PAGE + "".join(self._claims[name] for name in CLAIMS), "utf-8")


def _describe(world: World) -> str:
    models = Counter(gpu.name for gpu in world.machine.gpus)
    sharing = "" if world.sharing == "-" else f", {world.sharing}"
    strategy = "" if world.strategy == "none" else f", MIG {world.strategy}"
    return " and ".join(f"{count} {model}" for model, count in models.items()) + strategy + sharing


def _count_files(files: Collection[str]) -> str:
    kinds = Counter("`nvidia-caps/nvidia-capN`" if "caps" in file else "`nvidiaN`" for file in files)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), reverse=True))


def _count_numbers(allowed: Collection[tuple[int, int]]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(sorted(_kinds(allowed))).items())


def _kinds(allowed: Collection[tuple[int, int]]) -> Iterator[str]:
    for major, minor in allowed:
        control = major == UVM_MAJOR or (major == NVIDIA_MAJOR and minor in (CONTROL_MINOR, MODESET_MINOR))
        yield "control" if control else "MIG" if major == CAPS_MAJOR else "GPU"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


CLAIMS_PAGE = """# What claims gave to containers

`make e2e-nodes` wrote this, by `tests/realnodes/claims`. The nodes run containerd 2. A driver on Kubernetes'
own library for DRA drivers (`tests/controlplane/dra_driver.go`) publishes their GPUs as NVIDIA's driver does;
kube-scheduler allocates, the kubelet has the driver prepare the claim, and the container gets its device files by CDI.
The files are stand-ins ([what is real](../../docs/real-nodes.md)). No container saw a file that it could not open.

| the pod's claim | its devices, by the claim's status | the device files that its container could open |
|---|---|---|
"""
PAGE = """# What containers saw on real nodes

`make e2e-nodes` wrote this. kubelet, containerd, runc, and NVIDIA's device plugin v0.19.3, gpu-feature-discovery and
container toolkit v1.19.1 are real; `libnvidia-ml` and the device files are stand-ins
([what is real](../../docs/real-nodes.md)).

## The whole path

A manifest with GPUs in requests alone → our webhook, which also sets `runtimeClassName: nvidia` → kube-scheduler with
our extender → the kubelet → NVIDIA's device plugin → NVIDIA's runtime in its default mode → runc.

The files that a container can open, and the numbers that its device cgroup allows, are those of the devices that the
plugin named in `NVIDIA_VISIBLE_DEVICES`, and no others. *Control* are nvidiactl, nvidia-modeset, nvidia-uvm and
nvidia-uvm-tools. In the container itself the variable is `void`: NVIDIA's runtime has done what it asked for.

| asked for | GPUs of the node | the plugin's variables | opened in `/dev` | device cgroup | driver's libraries |
|---|---|---|---|---|---|
{paths}
MPS needs `nvidia-cuda-mps-control`, a program of NVIDIA's driver that does not run without a GPU; a script stands in
for it (`tests/realnodes/nvml`). Without one the device plugin offers nothing, and logs: *Failed to start plugin: error
waiting for MPS daemon: error checking MPS daemon health: failed to start NVIDIA MPS command: exec:
"nvidia-cuda-mps-control": executable file not found in $PATH*.

## Ways around

Each pod names its node instead of a scheduler. Without guards: in a namespace that is exempt. With guards: a policy
with `visibleDevices: Deny, privileged: Deny, bypass: Deny`. Where the toolkit does not accept the variable, its
`accept-nvidia-visible-devices-envvar-when-unprivileged` is false; its default is true. Device lists as volume mounts
count with `accept-nvidia-visible-devices-as-volume-mounts`, which is false by default. Volumes of other paths are not
guarded, such as that of the kubelet's sockets; the Pod Security level `baseline` forbids every hostPath volume.

| the pod | runtime | without guards its container | with guards |
|---|---|---|---|
{bypasses}
## Requirements of an image

A container with one GPU and `NVIDIA_REQUIRE_CUDA=cuda>=99.0`, which no driver meets.

| where | what comes of it |
|---|---|
{requirements}"""
