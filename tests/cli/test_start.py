# SPDX-License-Identifier: Apache-2.0
"""A verb imports what it uses; this is counted in packages, which a busy machine does not change."""

import subprocess
import sys
from pathlib import Path

import pytest

WATCHED = frozenset(
    ["aiohttp", "cryptography", "fastapi", "httpx", "jinja2", "kubernetes", "opentelemetry", "prometheus_client",
     "pydantic", "re2", "requests", "rich", "starlette", "uvicorn", "uvloop", "watchfiles", "yaml"]
)  # fmt: skip
"""Packages that take from 20 to 500 ms of CPU to import."""
FILES = frozenset({"pydantic", "rich", "yaml"})
"""For policies, tables and files of Kubernetes."""
COMMANDS = {
    "--version": frozenset[str](),
    "--help": frozenset[str](),
    "plan --help": frozenset({"pydantic"}),  # Typer imports it to read the word
    "policy lint --help": FILES,
    "policy lint": FILES,
    "explain --help": FILES | {"re2"},
    "doctor --help": FILES | {"re2"},
    "explain --demo -f {pod}": FILES | {"re2"},
    "inventory --demo": FILES | {"re2"},
    "mutate --demo -f {pod}": FILES | {"re2"},
    "doctor --demo": FILES | {"re2"},
}
"""Command lines, and those of the watched packages that each may import."""
POD = "{kind: Pod, apiVersion: v1, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}"
PROGRAM = """
import atexit, sys
from app.cli.main import main
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
"""


def imported_by(words: str) -> set[str]:
    command = [sys.executable, "-c", PROGRAM, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", COMMANDS)
def test_command_imports_no_other_packages(words: str, tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(POD)

    imported = {name.partition(".")[0] for name in imported_by(words.format(pod=pod))}

    assert imported & WATCHED <= COMMANDS[words]


def test_help_of_all_verbs_imports_none_of_them() -> None:
    ours = {name for name in imported_by("--help") if name.startswith("app.cli.")}

    assert ours == {"app.cli.main", "app.cli.verbs"}


def test_help_of_policy_lint_imports_no_model_of_policies() -> None:
    assert not any(name.startswith("app.policy") for name in imported_by("policy lint --help"))
