# SPDX-License-Identifier: Apache-2.0
"""How the Dockerfile and the build context are read for a build without a container engine."""

from pathlib import Path

import pytest

from tests.realnodes.dockerfile import Copy, Run, context_files, read_ignored, read_stages
from tests.realnodes.images import ROOT
from tests.realnodes.layers import pip_settings


def test_our_dockerfile_is_read_to_its_end() -> None:
    """F134: all instructions are understood; the second stage only copies what the first built."""
    build, ours = read_stages((ROOT / "Dockerfile").read_text("utf-8"), {"PATH": "/usr/bin"})

    commands = [step.command for step in build.steps if isinstance(step, Run)]
    assert (build.name, build.base, ours.base) == ("build", "python:3.12-slim-bookworm", "python:3.12-slim-bookworm")
    assert [command.split()[0] for command in commands] == ["python", "/opt/build/bin/pip", "/opt/build/bin/pip"]
    assert ours.steps == (Copy(("/opt/gpu-usher",), "/opt/gpu-usher", "build"),)


def test_steps_see_the_variables_and_the_directory_that_stand_before_them() -> None:
    """ARG and ENV are in a step's environment, a global ARG only where the stage names it; lines are joined."""
    text = """
    ARG PYTHON=base:1
    ARG LOCK=global
    FROM ${PYTHON} AS first
    ARG LOCK
    ENV A=1 PATH=/a:$PATH
    WORKDIR /src
    WORKDIR below
    # a comment between
    RUN one \\
     && two $LOCK
    COPY a b ./
    """

    (stage,) = read_stages(text, {"PATH": "/bin"})

    environment = (("LOCK", "global"), ("PATH", "/a:/bin"), ("A", "1"))
    run, copy = stage.steps[-2:]
    assert isinstance(run, Run)
    assert (run.command.split(), run.environment, run.directory) == (
        ["one", "&&", "two", "$LOCK"],
        environment,
        "/src/below",
    )
    assert copy == Copy(("a", "b"), "/src/below/", None)
    assert stage.base == "base:1"


@pytest.mark.parametrize(
    "line",
    [
        "ADD a b",
        "VOLUME /data",
        'SHELL ["bash"]',
        "ONBUILD RUN true",
        'RUN ["true"]',
        "RUN --mount=type=cache,target=/x true",
        "RUN <<EOF",
        "COPY --chown=1 a b",
        "COPY *.txt ./",
        "COPY a b c",
        "COPY ../a b",
        "ENV A 1",
        "ENV A=${B:-1}",
        "ENV A=$UNKNOWN",
        "ARG UNKNOWN",
        "HEALTHCHECK CMD true",
        "ENTRYPOINT gpu-usher",
        "CMD gpu-usher",
        "FROM a b",
        "USER 1\nRUN true",
    ],
)
def test_what_is_not_understood_is_refused_and_named(line: str) -> None:
    """No step is left out or done in another way without a word."""
    with pytest.raises(ValueError, match=r"^Dockerfile: ") as refused:
        read_stages(f"FROM base\n{line}\n", {})

    assert line.splitlines()[-1] in str(refused.value)


def test_context_is_what_is_not_ignored(tmp_path: Path) -> None:
    """.dockerignore names paths from the root, or names at any depth."""
    for name in ("a/kept", "a/certs/kept", "a/x/secret", "certs/key", "a/__pycache__/b.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    ignored = read_ignored("# comment\ncerts\n**/secret\n**/__pycache__\n")

    files = [file.relative_to(tmp_path).as_posix() for file in context_files(tmp_path, ".", ignored)]

    assert files == ["a/certs/kept", "a/kept"]
    with pytest.raises(ValueError, match="no such file"):
        context_files(tmp_path, "certs", ignored)
    for pattern in ("*.key", "**/a/b", "!kept"):
        with pytest.raises(ValueError, match="wanted a path"):
            read_ignored(pattern)


def test_pip_gets_its_settings_and_the_files_they_name(tmp_path: Path) -> None:
    """Variables of pip and of proxies alone; files appear below /run, which is part of no layer."""
    certificate = tmp_path / "ca.crt"
    certificate.touch()
    environment = {"PIP_CERT": str(certificate), "PIP_RETRIES": "1", "https_proxy": "http://proxy", "AWS_SECRET": "x"}

    settings, files = pip_settings(environment | {"PIP_CONFIG_FILE": "/not/there"})

    assert files == {certificate: "/run/host/0"}
    assert settings == {
        "PIP_CERT": "/run/host/0",
        "PIP_RETRIES": "1",
        "https_proxy": "http://proxy",
        "PIP_CONFIG_FILE": "/not/there",
    }
