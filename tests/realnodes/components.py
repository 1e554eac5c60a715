# SPDX-License-Identifier: Apache-2.0
"""The programs of a node that are not Kubernetes': containerd, runc, CNI plugins and nft, from Debian's packages."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.controlplane.binaries import BUILT
from tests.debian import fetching, unpack

UNPACKED = BUILT / "node-programs"
PACKAGES = ("containerd", "runc", "containernetworking-plugins", "nftables", "conntrack")
CNI_PLUGINS = UNPACKED / "usr" / "lib" / "cni"
RUNC = UNPACKED / "usr" / "sbin" / "runc"
CONTAINERD = UNPACKED / "usr" / "bin" / "containerd"
CTR = UNPACKED / "usr" / "bin" / "ctr"
REMEDY = "Run `make node-programs` (needs apt-get)."


def find_programs() -> Path | str:
    """Find the folder of the unpacked programs; a string says why there is none, and what to do."""
    return UNPACKED if CONTAINERD.is_file() else f"The programs of a node are not unpacked. {REMEDY}"


def fetch() -> Path:
    """Download and unpack the packages, unless they are there.

    Raises SystemExit with apt's own words.
    """
    if not CONTAINERD.is_file():
        unpack("node-programs", PACKAGES, UNPACKED, whole=True)
    return UNPACKED


def environment() -> Mapping[str, str]:
    """Give the environment in which the programs find each other and their libraries."""
    folders = (UNPACKED / "usr" / "sbin", UNPACKED / "usr" / "bin", UNPACKED / "sbin", UNPACKED / "bin")
    libraries = (UNPACKED / "usr" / "lib" / "x86_64-linux-gnu", UNPACKED / "lib" / "x86_64-linux-gnu")
    return {
        "PATH": ":".join([*map(str, folders), os.environ["PATH"]]),
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
    }


if __name__ == "__main__":
    sys.exit(fetching("node programs", fetch, sys.argv[1:]))
