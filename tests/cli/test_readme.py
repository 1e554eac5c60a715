# SPDX-License-Identifier: Apache-2.0
"""The console blocks of README and docs/: commands that need no cluster print what the blocks show."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from app.cli.verbs import app
from app.cluster.files import shipped_policies
from tests.demo.__main__ import demo
from tests.markdown_links import broken_links

ROOT = Path(__file__).parents[2]
TEXT = "\n".join(path.read_text("utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))
README_BYTES = 9_000
DEMO = typer.Typer()
DEMO.command()(demo)
EDIT = re.compile(r"sed -i 's/(.*)/(.*)/' (\S+)$")


def shown() -> Iterator[tuple[str, list[str], list[str]]]:
    """List the commands on sample fleets, each with the commands before it in its block and the lines that it shows."""
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL):
        before: list[str] = []
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip().split("\n")
            if command.startswith(("gpu-usher ", "make demo")) and "demo" in command and " serve " not in command:
                yield command, list(before), lines
            before.append(command)


def words(line: str) -> list[str]:
    """Split a line into words, because the width of columns depends on the terminal."""
    return re.sub("─+", "─", line).split()


SHOWN = list(shown())


@pytest.mark.parametrize(("command", "before", "lines"), SHOWN, ids=[command for command, *_ in SHOWN])
def test_readme_shows_what_is_printed(
    command: str, before: list[str], lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F82: the lines come in this order; `…` stands for lines that are left out."""
    monkeypatch.chdir(tmp_path)
    for name, manifest in re.findall(r"```yaml\n# (\w+\.yaml)\n(.*?)```", TEXT, re.DOTALL):
        Path(name).write_text(manifest, "utf-8")
    shutil.copytree(shipped_policies(), "policies")
    for earlier in before:
        if (edit := EDIT.search(earlier)) is not None:
            shutil.copytree("policies", "edited")
            file = Path(edit[3])
            file.write_text(re.sub(edit[1], edit[2], file.read_text("utf-8")), "utf-8")

    program, *arguments = shlex.split(command)
    called = (app, arguments) if program == "gpu-usher" else (DEMO, [])
    printed = CliRunner().invoke(*called, env={"COLUMNS": "120"}).output.splitlines()

    rest = iter(printed)
    for line in lines:
        expected_words = words(line.removesuffix("…"))
        assert not expected_words or any(
            words(printed_line)[: len(expected_words)] == expected_words for printed_line in rest
        ), line


def test_pages_show_the_commands_of_the_tour() -> None:
    assert len(SHOWN) >= 8


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_to_files_and_headings_that_are_there(page: str) -> None:
    assert broken_links(ROOT / page, (ROOT / page).read_text("utf-8")) == []
