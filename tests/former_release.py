# SPDX-License-Identifier: Apache-2.0
"""The former release of gpu-usher: its files, read from the history of this repository by git."""

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TAG, COMMIT = "v0.1.0", "97f0e07e4f3062369bc0764eb44a170997075317"
"""Its tag, and the commit of the tag for a clone without tags. A release changes both."""
REMEDY = "Run `git fetch --tags --unshallow`, or in a clone that is not shallow `git fetch --tags`."
GIT_SECONDS = 60


def find_commit() -> str:
    """Return the commit of the former release.

    Raises SystemExit with what is missing, and what to do.
    """
    if shutil.which("git") is None:
        raise SystemExit("The former release is read from the history, and this machine lacks git. Install it.")
    said = ""
    for name in (TAG, COMMIT):
        done = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if done.returncode == 0:
            return done.stdout.decode("ascii").strip()
        said = said or done.stderr.decode("utf-8", "replace").strip()[-200:]
    raise SystemExit(f"This clone has neither the tag {TAG} nor the commit {COMMIT[:12]}. {REMEDY} {said}".strip())


def missing() -> str:
    """Say why there is no former release, and what to do; empty if there is one."""
    try:
        find_commit()
    except SystemExit as error:
        return str(error)
    return ""


def unpack(folder: Path) -> Path:
    """Unpack all files of the former release into a folder, which is made, and return it.

    Raises SystemExit as `find_commit`.
    """
    commit = find_commit()
    with tempfile.TemporaryFile() as archive:
        archive.write(_git("archive", "--format=tar", commit).stdout)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            tar.extractall(folder, filter="data")
    return folder


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, timeout=GIT_SECONDS, check=False)
