# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.realnodes.former_image`: make the image of the former release by its own Dockerfile (images.py)."""

import platform
import shutil
import sys
import tempfile
from pathlib import Path

from tests import former_release
from tests.controlplane.binaries import BUILT
from tests.debian import fetching
from tests.realnodes import images
from tests.realnodes.dockerfile import read_ignored, read_stages
from tests.realnodes.layers import LAYERS, digest, follow
from tests.realnodes.rootfs import ENVIRONMENT, debian_layer

NAME = "registry.example.com/gpu-usher:former"
"""The name of the image on the nodes. The Dockerfile of a tree does not say its release."""
REMEDY = "Run `python -m tests.realnodes.former_image` (needs root, apt-get and a package index for pip)."


def find() -> Path | str:
    """Find the OCI archive; a string says why there is none, and what to do."""
    if lack := former_release.missing():
        return lack
    target = _target()
    return target if target.is_file() else images.missing() or f"The former release's image is not built. {REMEDY}"


def build() -> Path:
    """Build the archive, unless it is there already; return its path.

    Raises SystemExit with the words of what failed.
    """
    target = _target()
    with images.one_at_a_time():
        if not target.is_file():
            if lack := images.missing():
                raise SystemExit(f"former image: {lack}")
            _build(target)
    return target


def _build(target: Path) -> None:
    """Write the archive, and then give it its name; its layers but those of dependencies are of no further use."""
    LAYERS.mkdir(exist_ok=True)
    before = set(LAYERS.iterdir())
    with tempfile.TemporaryDirectory(dir=BUILT) as temporary:
        tree = former_release.unpack(Path(temporary, "tree"))
        stages = read_stages((tree / "Dockerfile").read_text("utf-8"), ENVIRONMENT)
        layers = follow(stages, debian_layer(), tree, read_ignored((tree / ".dockerignore").read_text("utf-8")))
        archive = Path(temporary, "former.tar")
        images.write_archive(archive, NAME, layers[stages[-1].name], stages[-1].config)
        for earlier in BUILT.glob("former-*.tar"):
            earlier.unlink()
        archive.rename(target)
    for layer in set(LAYERS.iterdir()) - before:
        shutil.rmtree(layer)


def _target() -> Path:
    """Name the archive by all that it is made from, except for the versions of packages."""
    sources = (Path(__file__).with_name(name) for name in (*images.SOURCES, Path(__file__).name))
    return BUILT / f"former-{digest(platform.machine(), former_release.find_commit(), *sources)}.tar"


if __name__ == "__main__":
    sys.exit(fetching("former image", build, sys.argv[1:]))
