# SPDX-License-Identifier: Apache-2.0
"""A real browser without a window: the one on PATH, or Debian's, unpacked here (`make chromium`).

The download is what this machine lacks of it, about 110 MB, with apt's own settings and without root. Where there is no
apt, the tests that need it skip, and say so.
"""

import sys
from pathlib import Path

from tests.debian import DebianProgram, fetching

CHROMIUM = DebianProgram(
    "chromium",
    ("chromium-headless-shell", "fonts-dejavu-core"),
    "usr/lib/chromium/chromium-headless-shell",
    ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"),
    whole=True,
)

FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><dir>/usr/share/fonts</dir><cachedir>{cache}</cachedir>
<alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias></fontconfig>
"""


def environment(program: Path) -> dict[str, str]:
    """Return the variables with which the unpacked program finds its libraries and fonts; {} for an installed one."""
    if program != CHROMIUM.program:
        return {}
    libraries = sorted(
        {str(file.parent) for file in CHROMIUM.folder.glob("usr/lib/**/*.so*") if file.parent.name != "chromium"}
    )
    config = CHROMIUM.folder / "fonts.conf"
    config.write_text(
        FONTS.format(fonts=CHROMIUM.folder / "usr" / "share" / "fonts", cache=CHROMIUM.folder / "cache"), "utf-8"
    )
    return {"LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(config)}


if __name__ == "__main__":
    sys.exit(fetching("chromium", CHROMIUM.fetch, sys.argv[1:]))
