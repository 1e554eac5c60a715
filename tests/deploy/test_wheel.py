# SPDX-License-Identifier: Apache-2.0
"""The command line installed alone: the wheel in an environment of its own, without this checkout."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 300


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd="/", env=variables)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, install it into a new environment that sees our dependencies, and return its programs."""
    folder = tmp_path_factory.mktemp("alone")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True, timeout=SECONDS)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, timeout=SECONDS)
    python, (wheel,) = folder / "venv/bin/python", (folder / "dist").iterdir()
    install = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--offline", "--no-deps", "--python"]
    variables = {**os.environ, "UV_CACHE_DIR": str(folder / "cache")}
    subprocess.run([*install, str(python), str(wheel)], check=True, capture_output=True, timeout=SECONDS, env=variables)
    packages = next((folder / "venv/lib").glob("python3*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", "utf-8")
    return folder / "venv/bin"


def test_installed_package_is_not_the_checkout(programs: Path) -> None:
    """F82."""
    done = run(str(programs / "python"), "-c", "import app; print(app.__file__)")

    assert done.stdout.startswith(str(programs.parent))


@pytest.mark.parametrize("program", ["gpu-usher", "kubectl-gpu_usher"])
def test_installed_command_explains_a_pod(program: str, programs: Path) -> None:
    """F82, F83: both as a program and as kubectl starts its plugins."""
    done = run(str(programs / program), "explain", "language/distill", "--demo-fleet", "weekday")

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("language/distill fits on none of 23 nodes: not enough free GPUs")
