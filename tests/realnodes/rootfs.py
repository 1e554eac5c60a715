# SPDX-License-Identifier: Apache-2.0
"""The root file systems that the tests' images begin with: Debian with Python, and busybox; without a registry."""

import shutil
import subprocess
from pathlib import Path

from tests.debian import APT_SECONDS, unpack
from tests.realnodes.layers import digest, kept

PACKAGES = (
    *("base-files", "base-passwd", "dash", "coreutils", "netbase", "tzdata", "ca-certificates"),
    *("python-is-python3", "python3-venv", "libstdc++6"),
)
"""They stand in for docker.io/library/python: the shell and coreutils that a step may call, Debian's Python, whose venv
module brings pip along, and the C++ library, which that image has because apt needs it, and the wheel of google-re2."""
LEFT_OUT = tuple(f"./usr/share/{name}/*" for name in ("doc", "info", "lintian", "locale", "man"))
MERGED = ("bin", "lib", "lib64", "sbin")
"""Directories that are links into /usr since Debian 12. Debian's installer makes the links, no package has them."""
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""The environment of the base; container engines set this PATH where an image sets none."""


def debian_layer() -> Path:
    """Give the base: a Debian system with Python and nothing that serves booting or administration.

    Raises SystemExit with apt's own words.
    """
    return kept(f"debian-{digest(Path(__file__))}", _fill_with_debian)


def busybox_layer() -> Path:
    """Give a layer with Debian's static busybox, and a link for each of its programs.

    Raises SystemExit with apt's own words.
    """
    return kept(f"busybox-{digest(Path(__file__))}", _fill_with_busybox)


def _fill_with_busybox(folder: Path) -> None:
    layer = folder / "layer"
    unpack("busybox", ("busybox-static",), layer)
    shutil.rmtree(layer / "usr" / "share")
    program = layer / "bin" / "busybox"
    for name in _output(program, "--list").decode().split():
        if not (program.parent / name).exists():
            (program.parent / name).symlink_to("busybox")
    for name in ("dev", "proc", "sys", "tmp"):
        (layer / name).mkdir()
    (layer / "tmp").chmod(0o1777)


def _fill_with_debian(folder: Path) -> None:
    layer = folder / "layer"
    for name in MERGED:
        (layer / "usr" / name).mkdir(parents=True)
        (layer / name).symlink_to(f"usr/{name}")
    for package in _download(folder):
        files = _output("dpkg-deb", "--fsys-tarfile", package)
        excluded = [f"--exclude={pattern}" for pattern in LEFT_OUT]
        _output("tar", "-x", "-C", layer, "--numeric-owner", "--keep-directory-symlink", *excluded, fed=files)
    # The scripts of the packages are not run. Of what they would make, Python, pip and the runtime need these files.
    for name in ("passwd", "group"):
        shutil.copy(layer / "usr/share/base-passwd" / f"{name}.master", layer / "etc" / name)
    certificates = sorted((layer / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = layer / "etc/ssl/certs/ca-certificates.crt"
    bundle.write_text("".join(path.read_text("ascii").strip() + "\n" for path in certificates), "ascii")
    # Empty files, over which a container runtime mounts its own.
    for name in ("hosts", "hostname", "resolv.conf"):
        (layer / "etc" / name).touch()


def _download(folder: Path) -> list[Path]:
    """Download the packages with all that they need on an empty system. Without package lists, fetch some first."""
    for name in ("lists", "archives"):
        (folder / name / "partial").mkdir(parents=True)
    options = [f"-oDir::Cache={folder}", "-oDir::State::status=/dev/null", "-oDebug::NoLocking=true"]
    options.append("-oAPT::Sandbox::User=")  # the folder is root's alone, apt's own user could not write into it
    install = ("--yes", "--no-install-recommends", "--download-only", "install", *PACKAGES)
    try:
        _output("apt-get", *options, *install)
    except SystemExit:
        options.append(f"-oDir::State::lists={folder / 'lists'}")
        _output("apt-get", *options, "update")
        _output("apt-get", *options, *install)
    return sorted((folder / "archives").glob("*.deb"))


def _output(*command: str | Path, fed: bytes | None = None) -> bytes:
    done = subprocess.run(command, input=fed, timeout=APT_SECONDS, check=False, capture_output=True)
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace")[-300:]
        raise SystemExit(f"{' '.join(map(str, command))[:60]} ended with {done.returncode}: {words}")
    return done.stdout
