# SPDX-License-Identifier: Apache-2.0
"""A verb imports what it uses; this is counted in modules, which a busy machine does not change."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.verbs import VERBS

WATCHED = frozenset(
    ["aiohttp", "cryptography", "fastapi", "httpx", "jinja2", "kubernetes", "opentelemetry", "prometheus_client",
     "pydantic", "re2", "requests", "rich", "starlette", "uvicorn", "uvloop", "watchfiles", "yaml"]
)  # fmt: skip
"""Packages that take from 20 to 500 ms of CPU to import."""
FILES = frozenset({"pydantic", "rich", "yaml"})
"""For policies, tables and files of Kubernetes."""
COMMANDS = {
    "--version": (frozenset[str](), 3),
    "--help": (frozenset[str](), 12),
    **{f"{verb} --help": (frozenset({"pydantic"}), 12) for verb in VERBS},  # Typer imports it to read the word
    "policy lint": (FILES, 69),
    "explain --demo -f {pod}": (FILES | {"re2"}, 197),
    "inventory --demo": (FILES | {"re2"}, 129),
    "mutate --demo -f {pod}": (FILES | {"re2"}, 168),
    "doctor --demo": (FILES | {"re2"}, 166),
}
"""Command lines, those of the watched packages that each may import, and the most modules of ours."""
POD = "kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}"
PROGRAM = """
import atexit, sys
from app.cli.main import main
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
"""


@pytest.mark.parametrize("words", COMMANDS)
def test_command_imports_what_it_uses(words: str, tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(POD)
    packages, most = COMMANDS[words]
    command = [sys.executable, "-c", PROGRAM, *words.format(pod=pod).split()]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    imported = done.stderr.splitlines()[-1].split()
    assert "Traceback" not in done.stderr
    assert "error:" not in done.stderr
    assert {name.partition(".")[0] for name in imported} & WATCHED <= packages
    assert sum(name.partition(".")[0] == "app" for name in imported) <= most
