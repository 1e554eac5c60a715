# SPDX-License-Identifier: Apache-2.0
"""A real browser without a window: the one on PATH, or Debian's, unpacked here (`make chromium`).

The download is what this machine lacks of it, about 110 MB, with apt's own settings and without root. Where there is no
apt, the tests that need it skip, and say so.
"""

import os
import shutil
import sys
from pathlib import Path

from tests.controlplane.binaries import BUILT
from tests.debian import fetching, unpack

VARIABLE = "GPU_USHER_CHROMIUM"
UNPACKED = BUILT / "chromium"
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
PROGRAM = UNPACKED / "usr" / "lib" / "chromium" / "chromium-headless-shell"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
REMEDY = f"run `make chromium` (needs apt-get), or set {VARIABLE} to a program"
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><dir>/usr/share/fonts</dir><cachedir>{cache}</cachedir>
<alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias></fontconfig>
"""


def find_chromium() -> Path | str:
    """Find the program; a str gives the cause why there is none, and the remedy."""
    if named := os.environ.get(VARIABLE):
        return Path(named) if os.access(named, os.X_OK) else f"{VARIABLE}={named}: no program"
    for name in NAMES:
        if path := shutil.which(name):
            return Path(path)
    return PROGRAM if PROGRAM.is_file() else f"no Chromium: {REMEDY}"


def environment(program: Path) -> dict[str, str]:
    """Return the variables with which the unpacked program finds its libraries and fonts; {} for an installed one."""
    if program != PROGRAM:
        return {}
    libraries = sorted(
        {str(library.parent) for library in UNPACKED.glob("usr/lib/**/*.so*") if library.parent.name != "chromium"}
    )
    config = UNPACKED / "fonts.conf"
    config.write_text(FONTS.format(fonts=UNPACKED / "usr" / "share" / "fonts", cache=UNPACKED / "cache"), "utf-8")
    return {"LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(config)}


def fetch() -> Path:
    """Download Debian's packages and unpack them, unless there is a program already.

    Raises SystemExit with apt's output.
    """
    program = find_chromium()
    if isinstance(program, Path):
        return program
    unpack("chromium", PACKAGES, UNPACKED, whole=True)
    return PROGRAM


if __name__ == "__main__":
    sys.exit(fetching("chromium", fetch, sys.argv[1:]))
