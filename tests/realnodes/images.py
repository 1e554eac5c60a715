# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.realnodes.images`: make the container images of real nodes, without a registry.

Each is an OCI archive for `ctr --namespace k8s.io images import`, and the same layers always give the same bytes. They
are kept in `.controlplane`, under a digest of all that they are made from. Where there is no root or no apt, the tests
that want them skip, and say so.

Our image is made by the Dockerfile's own steps, but on Debian's Python 3.11 instead of docker.io/library/python. It
shows that the steps and the configuration work, and says nothing about the published base.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from tests.controlplane.binaries import BUILT
from tests.debian import fetching
from tests.realnodes.dockerfile import Config, Copy, Stage, context_files, read_ignored, read_stages
from tests.realnodes.layers import NAMESPACE, digest, follow, remove_others
from tests.realnodes.rootfs import ENVIRONMENT, busybox_layer, debian_layer

ROOT = Path(__file__).parent.parent.parent
PAUSE = "gpu-usher.test/pause:1"
"""Sleeps for as long as the pod's sandbox exists; containerd's setting sandbox_image names it."""
SHELL = "gpu-usher.test/shell:1"
"""busybox, run as root."""
PAUSE_CONFIG = Config({}, user="65535:65535", entrypoint=("/bin/sleep", "infinity"))
"""The user is that of upstream's pause image (k8s.io/kubernetes build/pause/Dockerfile)."""
SHELL_CONFIG = Config({"PATH": "/bin:/usr/bin"}, command=("/bin/sh",))
BASE = "python:"
"""What the Dockerfile's FROM must begin with, as we replace it by Debian's Python."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's name → Go's, which the OCI specifications use."""
PROGRAMS = ("apt-get", "dpkg-deb", "tar", "setpriv", "unshare", "mount", "mknod", "chroot")
REMEDY = "Run `python -m tests.realnodes.images` (needs root, apt-get and a package index for pip)."
SOURCES = ("dockerfile.py", "images.py", "layers.py", "rootfs.py")
IMAGE = "application/vnd.oci.image"
"""How the media types of the OCI image specification begin (image-spec v1.1, media-types.md)."""


def our_image() -> str:
    """Give the name that deploy/ has for our image."""
    deployment = yaml.safe_load((ROOT / "deploy" / "base" / "deployment.yaml").read_text("utf-8"))
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def archives(folder: Path) -> dict[str, Path]:
    """Map each image's name, as a pod has it, to its OCI archive in the folder that build() or find() gave."""
    return {PAUSE: folder / "pause.tar", SHELL: folder / "shell.tar", our_image(): folder / "gpu-usher.tar"}


def find() -> Path | str:
    """Find the folder of the archives; a string says why there is none, and what to do."""
    folder = _target()
    return folder if folder.is_dir() else missing() or f"The images are not built. {REMEDY}"


def missing() -> str:
    """Say what this machine lacks for a build; empty if nothing."""
    if os.geteuid() != 0:
        return "Images are built and run in a chroot, which needs root. Run the tests as root."
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"Images are built with {', '.join(lacking)}, which this machine lacks. Install them."
    done = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, timeout=30, check=False)
    return (
        f"This machine allows no namespaces ({done.stderr.strip()[-200:]}). Allow root to make them."
        if done.returncode
        else ""
    )


def build() -> Path:
    """Build the archives, unless these very ones were built already; give their folder.

    Raises SystemExit with the words of what failed.
    """
    try:
        with one_at_a_time():
            target = _target()
            if not target.is_dir():
                if lack := missing():
                    raise SystemExit(f"images: {lack}")
                _build(target)
            return target
    except ValueError as error:
        raise SystemExit(f"images: {error}") from error


def _build(target: Path) -> None:
    """Write all archives and then give their folder its name; remove what earlier builds left."""
    stages, ignored = _read()
    busybox = busybox_layer()
    layers = follow(stages, debian_layer(), ROOT, ignored)
    with tempfile.TemporaryDirectory(dir=BUILT) as temporary:
        folder = Path(temporary) / "images"
        folder.mkdir()
        files = archives(folder)
        write_archive(files[PAUSE], PAUSE, (busybox,), PAUSE_CONFIG)
        write_archive(files[SHELL], SHELL, (busybox,), SHELL_CONFIG)
        write_archive(files[our_image()], our_image(), layers[stages[-1].name], stages[-1].config)
        for earlier in BUILT.glob("images-*"):
            shutil.rmtree(earlier)
        folder.rename(target)
    remove_others({busybox, *(layer for stage in layers.values() for layer in stage)})


def _read() -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    stages = read_stages((ROOT / "Dockerfile").read_text("utf-8"), ENVIRONMENT)
    for stage in stages:
        if not stage.base.startswith(BASE):
            raise ValueError(f"Dockerfile: FROM {stage.base}: wanted a base that begins with {BASE}")
    return stages, read_ignored((ROOT / ".dockerignore").read_text("utf-8"))


def _target() -> Path:
    """Name the folder by all that the images are made from, except for the versions of packages."""
    parts: list[object] = [platform.machine(), our_image(), ROOT / "Dockerfile", ROOT / ".dockerignore"]
    parts += [Path(__file__).with_name(name) for name in SOURCES]
    stages, ignored = _read()
    copies = [step for stage in stages for step in stage.steps if isinstance(step, Copy) and step.stage is None]
    for source in (source for step in copies for source in step.sources):
        for file in context_files(ROOT, source, ignored):
            parts += [file.relative_to(ROOT).as_posix(), file.lstat().st_mode, file]
    return BUILT / f"images-{digest(*parts)}"


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait until no other process builds; a lock ends with the process that holds it.

    The umask lets everyone read the files that are made meanwhile, since they become files of an image.
    """
    BUILT.mkdir(exist_ok=True)
    umask = os.umask(0o022)
    try:
        with (BUILT / "images.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    finally:
        os.umask(umask)


def write_archive(target: Path, name: str, layers: Sequence[Path], config: Config) -> None:
    """Write an OCI image layout as one tar file; each layer is a directory of what it adds.

    Raises SystemExit where a layer holds what only a container engine's own formats can say.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        blobs = Path(temporary)
        descriptors = [_layer_blob(blobs, layer) for layer in layers]
        image = {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": _runtime_config(config),
            "rootfs": {"type": "layers", "diff_ids": [descriptor["digest"] for descriptor in descriptors]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{IMAGE}.manifest.v1+json",
            "config": _json_blob(blobs, f"{IMAGE}.config.v1+json", image),
            "layers": descriptors,
        }
        descriptor = _json_blob(blobs, f"{IMAGE}.manifest.v1+json", manifest) | {
            "platform": {"architecture": image["architecture"], "os": "linux"},
            "annotations": {
                "io.containerd.image.name": full_name(name),
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }
        index = {"schemaVersion": 2, "mediaType": f"{IMAGE}.index.v1+json", "manifests": [descriptor]}
        (blobs / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
        (blobs / "index.json").write_bytes(_json(index))
        _write_tar(blobs, target)


def full_name(name: str) -> str:
    """Give the name under which containerd looks for a pod's image (distribution/reference, normalize.go)."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def _runtime_config(config: Config) -> dict[str, object]:
    """Write a config as image-spec's config.md has it; a field without a value is left out."""
    fields: dict[str, object] = {
        "User": config.user,
        "ExposedPorts": {port: {} for port in config.ports},
        "Env": [f"{name}={value}" for name, value in config.environment.items()],
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "WorkingDir": config.directory,
    }
    return {name: value for name, value in fields.items() if value}


def _layer_blob(blobs: Path, layer: Path) -> dict[str, object]:
    packed = blobs / "packed"
    _write_tar(layer, packed)
    with packed.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return _blob(blobs, f"{IMAGE}.layer.v1.tar", packed, sha256)


def _json_blob(blobs: Path, media_type: str, value: object) -> dict[str, object]:
    packed = blobs / "packed"
    packed.write_bytes(_json(value))
    return _blob(blobs, media_type, packed, hashlib.sha256(_json(value)).hexdigest())


def _blob(blobs: Path, media_type: str, packed: Path, sha256: str) -> dict[str, object]:
    folder = blobs / "blobs" / "sha256"
    folder.mkdir(parents=True, exist_ok=True)
    size = packed.stat().st_size
    packed.rename(folder / sha256)
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": size}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _write_tar(folder: Path, target: Path) -> None:
    """Pack a directory, sorted by name and without times or names of users, so that equal content gives equal bytes.

    Raises SystemExit for devices and sockets. An overlay marks a removed file of a lower layer by a device.
    """
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            member = tar.gettarinfo(path, path.relative_to(folder).as_posix())
            if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                raise SystemExit(f"images: {member.name}: a layer may not remove files, or hold devices and sockets")
            member.mtime, member.uname, member.gname = 0, "", ""
            if member.isreg():
                with path.open("rb") as file:
                    tar.addfile(member, file)
            else:
                tar.addfile(member)


if __name__ == "__main__":
    sys.exit(fetching("images", build, sys.argv[1:]))
