# SPDX-License-Identifier: Apache-2.0
"""The image of a release as an OCI layout, without a container engine, root or the machine of its architecture.

The application is one layer: the wheels that the lock pins by hash, unpacked by pip for the platform of the image, and
our own. Nothing of theirs is run. It has the paths, user, environment and command of the Dockerfile's last stage. The
base comes as an OCI layout (`skopeo copy docker://python@sha256:… oci-archive:base.tar`); each platform of it is built.
Without a base there is a layout for both architectures that has only this layer, to be put on one.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.realnodes.dockerfile import Config, read_stages
from tests.release.archives import Entry, entries_below, gzipped, json_bytes, read_tar, sha256, tar_of

MEDIA = "application/vnd.oci.image"
"""How the media types of the OCI image specification begin (image-spec v1.1, media-types.md)."""
MACHINES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}
"""Go's name of an architecture, which OCI uses → that of Python's platform tags."""
GLIBC = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
"""Versions of manylinux tags that Debian 12 can load (PEP 600; its glibc is 2.36)."""
PLACE = "opt/gpu-usher"
PROGRAM = """#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
exec python3 -m app.cli.main "$@"
"""
Object = dict[str, Any]


@dataclass
class Layout:
    """An OCI image layout in memory: blobs by digest, and the manifests of its index."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: list[Object] = field(default_factory=list)

    def add(self, media_type: str, content: bytes) -> Object:
        """Add a blob, and return its descriptor."""
        digest = f"sha256:{sha256(content)}"
        self.blobs[digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def packed(self) -> bytes:
        """Write the layout as a tar archive."""
        index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": self.manifests}
        blobs = (Entry(f"blobs/{digest.replace(':', '/')}", content) for digest, content in self.blobs.items())
        return tar_of([
            Entry("oci-layout", json_bytes({"imageLayoutVersion": "1.0.0"})),
            Entry("index.json", json_bytes(index)),
            *blobs,
        ])  # fmt: skip


@dataclass(frozen=True)
class Base:
    """One platform of the base image: its config, and its layers with their descriptors."""

    architecture: str
    config: Object
    layers: tuple[Object, ...]
    blobs: Mapping[str, bytes]


def read_base(archive: Path | None) -> tuple[Base, ...]:
    """Read the platforms of a base that we build for; without an archive both, with nothing in them.

    Raises SystemExit for an archive that is no OCI layout, or has no such platform.
    """
    if archive is None:
        return tuple(Base(architecture, {}, (), {}) for architecture in MACHINES)
    files = read_tar(archive.read_bytes())
    if "index.json" not in files:
        raise SystemExit(f"release: BASE={archive}: wants an OCI layout as a tar archive, with index.json")
    blob = {
        f"sha256:{name.rpartition('/')[2]}": content for name, content in files.items() if name.startswith("blobs/")
    }
    bases = []
    pending = list(json.loads(files["index.json"])["manifests"])
    while pending:
        document = json.loads(blob[pending.pop(0)["digest"]])
        if "manifests" in document:
            pending += document["manifests"]
            continue
        config = json.loads(blob[document["config"]["digest"]])
        if config.get("architecture") in MACHINES and config.get("os") == "linux":
            layers = {layer["digest"]: blob[layer["digest"]] for layer in document["layers"]}
            bases.append(Base(config["architecture"], config, tuple(document["layers"]), layers))
    if not bases:
        raise SystemExit(f"release: BASE={archive}: has no image for linux on {' or '.join(MACHINES)}")
    return tuple(sorted(bases, key=lambda base: base.architecture))


def python_of(root: Path) -> str:
    """Read the minor version of Python of the Dockerfile's base."""
    match = re.search(r"^ARG PYTHON=python:(3\.\d+)", (root / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert match, "the Dockerfile begins with a version of Python"
    return match[1]


def python_in(base: Base, otherwise: str) -> str:
    """Return the minor version of Python of a base, which the images of docker.io/library/python have in their
    environment; of one that says nothing `otherwise`.
    """
    variables = dict(entry.partition("=")[::2] for entry in (base.config.get("config") or {}).get("Env") or ())
    match = re.match(r"3\.\d+", variables.get("PYTHON_VERSION", ""))
    return match[0] if match else otherwise


def site_packages(architecture: str, python: str, lock: Path, wheel: Path) -> Iterator[Entry]:
    """Yield the files of what the lock pins, and of our wheel, for a platform.

    Raises SystemExit with pip's words.
    """
    machine = MACHINES[architecture]
    tags = [f"manylinux_{version}_{machine}" for version in GLIBC]
    tags += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    platform = [word for tag in tags for word in ("--platform", tag)]
    chosen = ["--implementation", "cp", "--python-version", python, "--only-binary", ":all:", *platform]
    with tempfile.TemporaryDirectory() as temporary:
        target = ["--target", temporary, "--no-compile", "--quiet", "--disable-pip-version-check", *chosen]
        if re.search(r"^[a-z]", lock.read_text("utf-8"), re.MULTILINE):
            _pip("install", *target, "--no-deps", "--require-hashes", "-r", str(lock))
        _pip("install", *target, "--no-deps", "--no-index", "--upgrade", str(wheel))
        for entry in entries_below(Path(temporary), f"{PLACE}/lib/"):
            if not _names_this_build(entry.name):
                yield entry


def _names_this_build(name: str) -> bool:
    """Tell whether pip wrote a file about its own run: where a wheel was, and programs for this machine's Python."""
    return name.endswith(("/direct_url.json", "/REQUESTED", "/INSTALLER", "/RECORD")) or name.startswith(
        f"{PLACE}/lib/bin/"
    )


def _pip(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"release: pip {words[0]}: {done.stderr.strip()[-800:]}")


def last_stage(root: Path) -> Config:
    """Read user, environment, ports and command of the Dockerfile's last stage."""
    return read_stages((root / "Dockerfile").read_text("utf-8"), {"PATH": ""})[-1].config


def build_image(root: Path, version: str, lock: Path, wheel: Path, base: Path | None, python: str) -> bytes:
    """Build the image for every platform of the base, and return its OCI layout as a tar archive.

    `python` is the version that a base has which names none.
    """
    layout, stage = Layout(), last_stage(root)
    for platform in read_base(base):
        program = Entry(f"{PLACE}/bin/gpu-usher", PROGRAM.encode(), executable=True)
        version_there = python_in(platform, python)
        layer = tar_of([program, *site_packages(platform.architecture, version_there, lock, wheel)])
        layout.blobs |= platform.blobs
        descriptor = layout.add(f"{MEDIA}.layer.v1.tar+gzip", gzipped(layer))
        config = layout.add(f"{MEDIA}.config.v1+json", json_bytes(_config(platform, stage, version, sha256(layer))))
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.manifest.v1+json",
            "config": config,
            "layers": [*platform.layers, descriptor],
        }
        layout.manifests.append(
            layout.add(f"{MEDIA}.manifest.v1+json", json_bytes(manifest))
            | {
                "platform": {"architecture": platform.architecture, "os": "linux"},
                "annotations": {
                    "io.containerd.image.name": f"docker.io/library/gpu-usher:{version}",
                    "org.opencontainers.image.ref.name": version,
                },
            }
        )
    return layout.packed()


def _config(base: Base, stage: Config, version: str, layer: str) -> Object:
    inherited = base.config.get("config") or {}
    environment = dict(entry.partition("=")[::2] for entry in inherited.get("Env") or ())
    path = environment.get("PATH") or "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
    environment |= {key: value for key, value in stage.environment.items() if key != "PATH"}
    environment |= {"PATH": f"/{PLACE}/bin:{path}", "PYTHONPATH": f"/{PLACE}/lib"}
    fields: Sequence[tuple[str, object]] = (
        ("User", stage.user),
        ("ExposedPorts", {port: {} for port in stage.ports}),
        ("Env", [f"{key}={value}" for key, value in environment.items()]),
        ("Entrypoint", list(stage.entrypoint)),
        ("Cmd", list(stage.command)),
        ("Labels", {"org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"}),
    )
    below = (base.config.get("rootfs") or {}).get("diff_ids") or []
    return {
        "architecture": base.architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {name: value for name, value in fields if value},
        "rootfs": {"type": "layers", "diff_ids": [*below, f"sha256:{layer}"]},
    }
