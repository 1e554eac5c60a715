# SPDX-License-Identifier: Apache-2.0
"""Debian's packages, downloaded and unpacked into a folder of ours without an installation and without root."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.binaries import BUILT

APT_SECONDS = 300


def unpack(name: str, packages: Sequence[str], into: Path, whole: bool = False) -> None:
    """Download packages and unpack them over one another; `into` exists completely or not at all.

    `whole` adds all dependencies that this machine has not installed.

    Raises SystemExit with apt's output, and where there is no apt.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise SystemExit(f"{name}: no apt-get and dpkg-deb on PATH")
    BUILT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as temporary:
        folder = Path(temporary)
        _download(folder, packages, whole)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(folder / "unpacked")], folder)
        shutil.rmtree(into, ignore_errors=True)
        (folder / "unpacked").rename(into)


def fetching(name: str, fetch: Callable[[], Path], words: Sequence[str]) -> int:
    """Fetch as a command; with `--if-possible`, a machine that cannot is no failure, and the tests skip."""
    try:
        print(f"{name}: {fetch()}")
    except (SystemExit, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 0 if "--if-possible" in words else 1
    return 0


def _download(folder: Path, packages: Sequence[str], whole: bool) -> None:
    """Download by the machine's own package lists, or where it has none by lists of our own, which needs no root."""
    with contextlib.suppress(SystemExit):
        _run(["apt-get", "download", *_closure(["apt-get"], folder, packages, whole)], folder)
        return
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "archives" / "partial").mkdir(parents=True)
    own = [f"-oDir::State::lists={folder / 'lists'}", f"-oDir::Cache={folder}", "-oDebug::NoLocking=true"]
    own.append("-oAPT::Sandbox::User=")  # the folder is ours alone, root's own _apt could not write into it
    _run(["apt-get", *own, "update"], folder)
    _run(["apt-get", *own, "download", *_closure(["apt-get", *own], folder, packages, whole)], folder)


def _closure(apt: list[str], folder: Path, packages: Sequence[str], whole: bool) -> Sequence[str]:
    """Name the packages, and with `whole` those that apt would install with them, by a simulated installation."""
    if not whole:
        return packages
    played = _run([*apt, "-s", "-y", "--no-install-recommends", "install", *packages], folder)
    return [line.split()[1] for line in played.splitlines() if line.startswith("Inst ")]


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, timeout=APT_SECONDS, check=False, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr[-300:]
        raise SystemExit(f"{' '.join(command)[:60]} ended with {done.returncode}: {words}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class DebianProgram:
    """A program: the one that its variable names, the one on PATH, or that of Debian's packages, unpacked here.

    `make` has a target of its name. `inside` is its path in the packages, `on_path` are its names elsewhere. `whole`
    adds all dependencies that this machine has not installed.
    """

    name: str
    packages: tuple[str, ...]
    inside: str
    on_path: tuple[str, ...]
    whole: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the unpacked packages."""
        return BUILT / self.name

    @property
    def program(self) -> Path:
        """The program of the unpacked packages."""
        return self.folder / self.inside

    @property
    def variable(self) -> str:
        """The environment variable that names another program."""
        return f"GPU_USHER_{self.name.upper()}"

    @property
    def remedy(self) -> str:
        """What to do where there is none."""
        return f"Run `make {self.name}` (needs apt-get), or set {self.variable} to a program."

    def find(self) -> Path | str:
        """Find the program; a str gives the cause why there is none, and the remedy."""
        if named := os.environ.get(self.variable):
            return (
                Path(named)
                if os.access(named, os.X_OK)
                else f"{self.variable}={named} names no program. Correct it or unset it."
            )
        for name in self.on_path:
            if path := shutil.which(name):
                return Path(path)
        return self.program if self.program.is_file() else f"The program {self.name} is not there. {self.remedy}"

    def fetch(self) -> Path:
        """Download the packages and unpack them, unless there is a program already.

        Raises SystemExit with apt's output.
        """
        found = self.find()
        if isinstance(found, Path):
            return found
        unpack(self.name, self.packages, self.folder, self.whole)
        return self.program
