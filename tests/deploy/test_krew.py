# SPDX-License-Identifier: Apache-2.0
"""The krew plugin: its manifest is complete, its archive has the files that it names, and it starts our program."""

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
URI = "https://downloads.example.com/v1.2.3/gpu-usher-krew.tar.gz"
WHEEL = "gpu_usher-1.2.3-py3-none-any.whl"
SECONDS = 60


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `make krew` on a copy of what it reads."""
    for name in ("Makefile", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "deploy/krew", folder / "deploy/krew", dirs_exist_ok=True)
    (folder / "dist").mkdir()
    (folder / "dist" / WHEEL).write_bytes(b"wheel")
    command = ["make", "--no-print-directory", "krew", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_manifest_names_the_archive_by_address_checksum_and_files(tmp_path: Path) -> None:
    """F83."""
    made = make(tmp_path, "VERSION=v1.2.3", f"URI={URI}")

    assert made.returncode == 0, made.stderr
    archive = tmp_path / "build/gpu-usher-krew.tar.gz"
    manifest: dict[str, Any] = yaml.safe_load((tmp_path / "build/gpu-usher.yaml").read_text("utf-8"))
    (platform,) = manifest["spec"]["platforms"]
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("gpu-usher", "v1.2.3")
    assert platform["uri"] == URI
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert f"pipx install ~/.krew/store/gpu-usher/v1.2.3/{WHEEL}" in manifest["spec"]["caveats"]
    with tarfile.open(archive) as files:
        assert WHEEL in files.getnames()
        assert set(files.getnames()) == {file["from"] for file in platform["files"]}
        assert files.getmember(platform["bin"]).mode & 0o111


def test_manifest_is_not_written_without_a_version(tmp_path: Path) -> None:
    made = make(tmp_path)

    assert made.returncode == 2
    assert "wants VERSION=v1.2.3 and URI=" in made.stdout


def start(path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": str(path), "KREW_ROOT": str(path)}
    command = ["/bin/sh", str(ROOT / "deploy/krew/kubectl-gpu_usher"), "explain", "pod", "a b/c"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_plugin_hands_its_words_to_the_program(tmp_path: Path) -> None:
    (tmp_path / "gpu-usher").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 3\n', "ascii")
    (tmp_path / "gpu-usher").chmod(0o755)

    started = start(tmp_path)

    assert (started.returncode, started.stdout.splitlines()) == (3, ["explain", "pod", "a b/c"])


def test_plugin_says_what_to_install_where_the_program_is_missing(tmp_path: Path) -> None:
    started = start(tmp_path)

    assert started.returncode == 127
    assert "found no program gpu-usher on PATH, run: pipx install gpu_usher-VERSION" in started.stderr


def test_plugin_names_the_wheel_that_krew_unpacked(tmp_path: Path) -> None:
    """F83: the command that is printed can be pasted."""
    wheel = tmp_path / "store" / "gpu-usher" / "v1.2.3" / WHEEL
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"")

    assert f"run: pipx install {wheel}\n" in start(tmp_path).stderr
