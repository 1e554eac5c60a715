# SPDX-License-Identifier: Apache-2.0
"""`make demo` shows what a server decides about recorded requests."""

from pathlib import Path

import typer
from typer.testing import CliRunner

from tests.demo.__main__ import demo

RUN = CliRunner()


def test_demo_without_a_server_runs_one_and_shows_what_it_did(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(demo)
    result = RUN.invoke(app, ["--url", "https://127.0.0.1:1", "--ca", str(tmp_path / "none")], env={"COLUMNS": "240"})

    assert result.exit_code == 0, result.output
    for words in ("limits set to 2", "a fraction of nvidia.com/gpu", "CUDA driver too old: wants >= 525.60.13"):
        assert words in result.output
    assert "GPU product not allowed: wants A10" in result.output
    assert "allows only h100-0, h100-1" in result.output
