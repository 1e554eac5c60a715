# SPDX-License-Identifier: Apache-2.0
"""A terminal shows what a long command is doing; a pipe gets nothing of it (F82)."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from app.cluster.files import shipped_policies
from app.demo.sample_fleets import demo_fleet
from tests.builders import gpus, pod
from tests.cli.commands import verbs

SCRIPT = str(Path(sys.executable).with_name("gpu-usher"))
WAIT_SECONDS = 120
READ = 65536
OLD = str(shipped_policies())
LINES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "explain": (["explain", "-f", "pod.yaml"], ("reading now.json", "objects", "explaining on 23 nodes")),
    "doctor": (["doctor"], ("reading now.json", "examining 23 nodes")),
    "policy-diff": (["policy", "diff", OLD, OLD], ("reading now.json", "trying pods under both")),
    "plan-driver": (["plan", "driver", "--to", "580.65.06"], ("reading what pods need", "with both drivers")),
    "plan-relayout": (
        ["plan", "relayout", "--layout", "all-disabled"],
        ("reading what pods need", "in the new layout"),
    ),
    "plan-claims": (["plan", "claims"], ("reading now.json", "objects")),
    "plan-mig": (["plan", "mig"], ("reading now.json", "waiting pods")),
    "plan-repack": (["plan", "repack"], ("reading now.json", "objects")),
    "inventory": (["inventory"], ("reading now.json", "objects")),
    "mutate": (["mutate", "-f", "pod.yaml"], ("reading now.json", "objects")),
}
"""The arguments without the snapshot and -o json, and the lines that the terminal shows meanwhile."""


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "pod.yaml").write_text(yaml.safe_dump(pod(gpus(1))), "utf-8")
    (folder / "now.json").write_text(json.dumps({"kind": "List", "items": demo_fleet()}), "utf-8")
    return folder


def run(words: list[str], routes: Path, terminal: bool) -> tuple[str, str]:
    """Run a command with stdout in a pipe and stderr on a terminal or in a pipe; return the text of both."""
    main, side = pty.openpty() if terminal else os.pipe()
    line = [SCRIPT, *words, "--snapshot", "now.json", "-o", "json"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(line, cwd=routes, env=environment, stdout=subprocess.PIPE, stderr=side, text=True) as process:
        os.close(side)
        shown = bytearray()
        while piece := _read(main):
            shown += piece
        out, _ = process.communicate(timeout=WAIT_SECONDS)
    os.close(main)
    return out, shown.decode()


def _read(main: int) -> bytes:
    try:
        return os.read(main, READ)
    except OSError:  # EIO means that the other end of the terminal is closed
        return b""


@pytest.mark.parametrize(("words", "progress_lines"), LINES.values(), ids=LINES)
def test_terminal_is_told_what_is_done_and_stdout_has_the_answer_alone(
    words: list[str], progress_lines: tuple[str, ...], routes: Path
) -> None:
    """F82."""
    out, shown = run(words, routes, terminal=True)

    json.loads(out)
    assert [line for line in progress_lines if line not in shown] == []


@pytest.mark.parametrize("words", [LINES[verb][0] for verb in ("explain", "policy-diff")], ids=["explain", "diff"])
def test_pipe_gets_no_progress_lines(words: list[str], routes: Path) -> None:
    """F82: CI logs get neither progress lines nor terminal escapes."""
    out, shown = run(words, routes, terminal=False)

    json.loads(out)
    assert shown == ""


def test_every_verb_that_reads_a_fleet_is_in_the_table() -> None:
    """F82: all with --snapshot are there, but those that serve, need another source too, or write YAML."""
    reading = {
        name for name, command in verbs().items() if any("--snapshot" in option.opts for option in command.params)
    }

    others = {"serve", "policy-replay", "scheduler-config", "plan-node-template", "plan-claim-templates"}
    others |= {"usage", "plan-right-size", "image"}  # they need a Prometheus or a registry too
    assert reading - set(LINES) == others


def test_terminal_has_its_cursor_back_when_the_input_was_bad(routes: Path) -> None:
    """F82: the cursor is shown again even if reading the pods fails half-way."""
    broken = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": 1}}
    (routes / "broken.json").write_text(json.dumps({"kind": "List", "items": [*demo_fleet(), broken]}), "utf-8")

    _, shown = run(["plan", "driver", "--to", "580.65.06", "--snapshot", "broken.json"], routes, terminal=True)

    assert "error:" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
    assert shown.rfind("error:") > shown.rfind("\x1b[?25l")
