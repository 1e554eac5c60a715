# SPDX-License-Identifier: Apache-2.0
"""The container images of real nodes: what the archives hold, and what runs in a chroot of them."""

import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.controlplane.processes import Process, free_port, wait_until
from tests.realnodes.images import archives, find, missing, our_image

CONTAINER = """
mount --bind "$1" "$1"
mount -t proc -o ro proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/tmp"
mount -o remount,bind,ro "$1"
user=$2
cd "$1"
shift 2
exec chroot --userspec="$user" --groups= . "$@"
"""
"""Runs a command as a container runtime does, with a read-only root and a writable /tmp."""
RUN_SECONDS = 60
READY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Layout:
    """An OCI archive, read back: blobs by digest."""

    index: dict[str, Any]
    blobs: dict[str, bytes]

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of its only image."""
        (descriptor,) = self.index["manifests"]
        return dict(json.loads(self.blobs[descriptor["digest"]]))

    @property
    def image(self) -> dict[str, Any]:
        """The image's configuration."""
        return dict(json.loads(self.blobs[self.manifest["config"]["digest"]]))


def read_layout(archive: Path) -> Layout:
    """Read an archive; fails where a blob's name is not its digest, or the layout's version is another."""
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.isreg()}
        content = {name: file.read() for name, file in files.items() if file is not None}
    assert json.loads(content.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(content.pop("index.json"))
    for name, blob in content.items():
        assert name == f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"
    return Layout(index, {name.removeprefix("blobs/").replace("/", ":"): blob for name, blob in content.items()})


@pytest.fixture(scope="module")
def built() -> dict[str, Path]:
    """The archives by image name; skips where they were not built."""
    built = find()
    if isinstance(built, str):
        pytest.skip(built)
    return archives(built)


def test_our_image_says_what_the_dockerfile_says(built: dict[str, Path]) -> None:
    """F134, PSS-02."""
    layout = read_layout(built[our_image()])

    config = layout.image["config"]
    assert config.pop("Env") == [
        "PATH=/opt/gpu-usher/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONUNBUFFERED=1",
        "PYTHONDONTWRITEBYTECODE=1",
    ]
    assert config == {
        "User": "65532:65532",
        "ExposedPorts": {"8443/tcp": {}, "8080/tcp": {}},
        "Entrypoint": ["gpu-usher"],
        "Cmd": ["serve", "--demo", "--certs", "/tmp/certs"],
        "WorkingDir": "/",
    }
    assert len(layout.manifest["layers"]) == 2


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An image's root file system and its configuration."""

    root: Path
    config: dict[str, Any]

    def command(self, *words: str) -> list[str]:
        """Give the words that run a command in it, by the image's own user and environment."""
        environment = ("env", "-i", *self.config.get("Env", ()))
        user = self.config.get("User") or "0:0"
        return ["unshare", "--mount", "sh", "-euc", CONTAINER, "sh", str(self.root), user, *environment, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it to its end."""
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=RUN_SECONDS, check=False)


def unpack(archive: Path, folder: Path) -> Unpacked:
    """Unpack an image's layers over one another, as a container runtime does."""
    if lack := missing():
        pytest.skip(lack)
    folder.chmod(0o755)
    layout = read_layout(archive)
    for layer in layout.manifest["layers"]:
        command = ["tar", "-x", "--numeric-owner", "--keep-directory-symlink", "-C", str(folder)]
        subprocess.run(command, input=layout.blobs[layer["digest"]], timeout=RUN_SECONDS, check=True)
    return Unpacked(folder, layout.image["config"])


@pytest.fixture(scope="module")
def ours(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unpacked]:
    """Our image, unpacked; some 200 MB, which are removed again."""
    folder = tmp_path_factory.mktemp("ours")
    yield unpack(built[our_image()], folder)
    shutil.rmtree(folder)


def test_our_image_tells_its_version_on_a_read_only_root_as_its_user(ours: Unpacked) -> None:
    """F134, PSS-02."""
    done = ours.run("gpu-usher", "--version")
    attempts = ours.run("sh", "-c", "id -u; id -g; touch /written || echo refused")

    assert (done.stdout, done.stderr) == ("0.2.0\n", "")
    assert attempts.stdout.split() == ["65532", "65532", "refused"]


def test_our_image_serves_the_demo_fleet_by_its_own_command(ours: Unpacked, tmp_path: Path) -> None:
    """F134, PSS-02: its entrypoint and its command, with only the ports changed."""
    ops = free_port()
    ports = ["--port", str(free_port()), "--ops-port", str(ops), "--ui-address", "off"]
    command = ours.command(*ours.config["Entrypoint"], *ours.config["Cmd"], *ports)
    process = Process("image", command, tmp_path / "log")
    try:
        wait_until("the image is ready", lambda: _ready(ops), READY_SECONDS, process)
    finally:
        code = process.stop()

    assert code == 0, process.tail()


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError as error:
        raise ConnectionError(str(error)) from error


def test_our_image_holds_nothing_of_the_machine_that_built_it(ours: Unpacked) -> None:
    """The builder's network, certificates, pip settings and sources stay outside, and pip stays behind."""
    left = [*(ours.root / "run").rglob("host"), *(ours.root / "opt").glob("build"), *ours.root.glob("src/*")]

    assert left == []
    assert not (ours.root / "etc" / "pip.conf").exists()
    assert [(ours.root / "etc" / name).stat().st_size for name in ("hosts", "hostname", "resolv.conf")] == [0, 0, 0]
    assert [*(ours.root / "opt" / "gpu-usher" / "bin").glob("pip*")] == []
