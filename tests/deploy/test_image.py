# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile without a container engine: its rules are read from the text, its steps run in a folder as the root.

Every RUN and COPY of the first stage runs as written, with this machine's Python in place of the image's. The result
serves the demo fleet from the path of the second stage, without the sources and without writing outside /tmp. The base
image itself, its user, a read-only root and the other architecture are not tried.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.api.tracing import REMEDY
from tests.controlplane.processes import Process, free_port, wait_until
from tests.deploy.tools import find_tool

ROOT = Path(__file__).parent.parent.parent
PLACES = ("/opt/", "/dist", "/src")
"""Paths that the image has at its root, and the test in its folder."""
INSTALL_SECONDS = 900
"""Seconds for the build; two environments from a package index take one or two minutes."""
READY_SECONDS = 60
PAGES = ("/", "/pending", "/policies", "/decisions", "/static/page.css", "/static/page.js", "/static/icon.svg")
SHIPPED = ("linux/amd64", "linux/arm64")


def instructions(text: str) -> list[tuple[str, str]]:
    """Read the instructions, without comments and with continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def stages() -> list[list[tuple[str, str]]]:
    """Split the Dockerfile at FROM; instructions before the first FROM belong to no stage."""
    build_stages: list[list[tuple[str, str]]] = []
    for instruction in instructions((ROOT / "Dockerfile").read_text("utf-8")):
        if instruction[0] == "FROM":
            build_stages.append([])
        if build_stages:
            build_stages[-1].append(instruction)
    return build_stages


def test_last_stage_is_a_numbered_user_without_build_tools() -> None:
    """F134, PSS-02: runAsNonRoot cannot check a user name; and the shipped stage runs nothing."""
    words = dict(stages()[-1])

    assert words["USER"] == "65532:65532"
    assert "RUN" not in words
    assert words["ENTRYPOINT"] == '["gpu-usher"]'


def test_every_installation_is_by_hash_or_offline_and_names_no_index() -> None:
    """SUP-01."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    installs = [
        command
        for stage in stages()
        for word, rest in stage
        if word == "RUN"
        for command in rest.split("&&")
        if " install " in command
    ]

    assert installs
    assert all("--require-hashes" in command or "--no-index" in command for command in installs)
    assert not re.search(r"index-url|find-links https?:|trusted-host|https?://", text)


def test_nothing_of_the_sources_but_what_is_named_gets_in() -> None:
    """A COPY of the whole folder would ship a key that was left in it."""
    copied = [rest for stage in stages() for word, rest in stage if word in ("COPY", "ADD")]

    assert all(not arguments.startswith(". ") for arguments in copied)
    assert {"certs", "**/__pycache__"} <= set((ROOT / ".dockerignore").read_text("utf-8").split())


def test_buildkit_reads_the_dockerfile_and_finds_nothing_to_say() -> None:
    """F134: BuildKit's own parser and linter, without the rules that need the base image."""
    tool = find_tool("dockerfile")
    if isinstance(tool, str):
        pytest.skip(tool)

    assert _lint(tool, (ROOT / "Dockerfile").read_text("utf-8")) == ""
    assert "StageNameCasing" in _lint(tool, "FROM base AS Build\n")


def _lint(tool: Path, text: str) -> str:
    return subprocess.run([tool], input=text, capture_output=True, text=True, timeout=60, check=True).stdout


def pins(lock: str) -> set[str]:
    """List what a lock installs, as `name==version`."""
    return set(re.findall(r"^[a-z0-9.-]+==\S+", (ROOT / lock).read_text("utf-8"), re.MULTILINE))


def test_lock_with_tracing_only_adds_to_the_one_without() -> None:
    """F97, SUP-01: all other packages have the same versions; the default image has no exporter."""
    plain, tracing = pins("requirements.lock"), pins("requirements-tracing.lock")

    added = {pin.partition("==")[0] for pin in tracing - plain}
    assert plain < tracing
    assert {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"} <= added
    assert tracing <= pins("requirements-dev.lock")


LARGEST_MIB = 128
"""Peak MiB of a service without a cluster, which has 81 here; the Deployment's limit is 512."""
IMPORTED = """
from pathlib import Path
from app.server import listeners as serving
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def test_dependencies_stay_small() -> None:
    """SUP-03: at most 54 packages; the memory is measured after all imports of the service."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=60, check=True)

    assert (
        int(done.stdout) / 1024 <= LARGEST_MIB
    )  # VmHWM is in KiB, proc(5); getrusage would count what the parent had at its fork
    assert len(pins("requirements.lock")) <= 54


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run the first stage below a folder, and return that folder."""
    folder = tmp_path_factory.mktemp("image")
    sources = folder / "src"
    sources.mkdir()
    (folder / "opt").mkdir()
    programs = folder / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    arguments = dict(rest.split("=", 1) for word, rest in stages()[0] if word == "ARG")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **arguments}
    for word, rest in stages()[0]:
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                _copy(ROOT / name, sources / target / (name if target.endswith("/") else "."))
        if word == "RUN":
            done = subprocess.run(
                ["sh", "-euc", _moved(rest, folder)],
                cwd=sources,
                env=environment,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
            assert done.returncode == 0, f"{rest}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    shutil.rmtree(sources)
    shutil.rmtree(folder / "opt" / "build")
    yield folder
    shutil.rmtree(folder)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _moved(command: str, folder: Path) -> str:
    for place in PLACES:
        command = re.sub(rf"(?<=\s){place}", f"{shlex.quote(str(folder))}{place}", f" {command}")
    return command


@pytest.mark.long
def test_steps_of_the_first_stage_give_a_program_that_tells_its_version(built: Path) -> None:
    """F134."""
    program = built / "opt" / "gpu-usher" / "bin" / "gpu-usher"

    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "0.2.0"
    assert not (built / "opt" / "gpu-usher" / "bin" / "pip").exists()


@pytest.mark.long
def test_image_without_tracing_says_how_to_have_it(built: Path, tmp_path: Path) -> None:
    """F97: the build argument LOCK decides."""
    program = built / "opt" / "gpu-usher" / "bin" / "gpu-usher"
    command = [str(program), "serve", "--demo", "--tracing", "--certs", str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, REMEDY in done.stderr.replace("\n", " ")) == (2, True), done.stderr


@pytest.mark.long
def test_what_was_built_serves_the_demo_fleet_as_the_image_would(built: Path, tmp_path: Path) -> None:
    """F134, PSS-02: it runs its default command without sources, in an environment that cannot be written to."""
    home = built / "opt" / "gpu-usher"
    before = sorted(home.rglob("*"))
    ops, people = free_port(), free_port()
    words = ["serve", "--demo", "--certs", str(tmp_path / "certs")]
    ports = ["--port", str(free_port()), "--ops-port", str(ops), "--ui-address", f"127.0.0.1:{people}"]
    process = Process(
        "image",
        [str(home / "bin" / "gpu-usher"), *words, *ports],
        tmp_path / "log",
        {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PATH": f"{home}/bin", "PYTHONPATH": ""},
    )
    try:
        wait_until("the image is ready", lambda: _ready(ops), READY_SECONDS, process)
        pages = [httpx.get(f"http://127.0.0.1:{people}{path}", trust_env=False, timeout=30) for path in PAGES]
    finally:
        code = process.stop()

    assert code == 0
    assert [page.status_code for page in pages] == [200] * len(PAGES)  # templates and static files are in the wheel
    assert sorted(home.rglob("*")) == before


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError as error:
        raise ConnectionError(str(error)) from error


@pytest.mark.long
@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-tracing.lock"])
@pytest.mark.parametrize("platform", SHIPPED)
def test_every_dependency_has_a_wheel_for_the_architecture(platform: str, lock: str, tmp_path: Path) -> None:
    """There is one for amd64 and arm64, for Python 3.12 as in the image; a dry run downloads nothing completely.

    See docs/reference/requirements.md#promises.
    """
    machine = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[platform]
    tags = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (17, 24, 28, 34)]
    tags.append(f"--platform=manylinux2014_{machine}")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [*tags, "--python-version=3.12", f"--target={tmp_path}", "-r", str(ROOT / lock)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
