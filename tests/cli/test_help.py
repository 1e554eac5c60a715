# SPDX-License-Identifier: Apache-2.0
"""The examples of `--help` work, every option says what it is, and shells complete what it names."""

import inspect
import json
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.claims import TURN_SECONDS
from app.cli.fleet_commands import FREED, ROWS
from app.cli.verbs import EXAMPLES as LINES
from app.cli.verbs import VERBS, app
from app.cluster.files import shipped_policies
from app.demo.sample_fleets import demo_fleet
from app.tls.ca_rotation import WAIT_SECONDS
from app.usage.table import By
from app.whatif.repack import MOST_MOVES, Freed
from tests.api.test_decision_recorder import posted, questions, shared_gpu_service
from tests.builders import pod
from tests.cli.commands import every, output_of, root

RUN = CliRunner()
EXAMPLES = [(name, line) for name in VERBS for line in LINES if f"{line} ".startswith(f"gpu-usher {name} ")]
ELSEWHERE = (
    "--kubeconfig",
    "--url",
    "--prometheus",
    "gpu-usher serve",
    "certs controller",
    "explain pod",
    "explain deployment",
    "explain team-a",
)
"""Examples that need a cluster, or another process. The other examples are run as they stand."""
RUNNABLE = [example for _, example in EXAMPLES if not any(words in example for words in ELSEWHERE)]
SCRIPT = Path(sys.executable).with_name("gpu-usher")


def helped(*words: str) -> str:
    """Return the help of a verb, without the ends of its lines."""
    return " ".join(RUN.invoke(app, [*words, "--help"]).stdout.split())


def words_of(example: str) -> list[str]:
    """Return the arguments of `gpu-usher` in an example, up to a pipe or a redirection."""
    lexer = shlex.shlex(example, posix=True, punctuation_chars="|>")
    lexer.whitespace_split = True
    words = list(lexer)
    end = next((index for index, word in enumerate(words) if word in ("|", ">")), len(words))
    assert words[0] == "gpu-usher"
    return words[1:end]


@pytest.mark.parametrize("name", VERBS)
def test_help_of_a_verb_has_examples_and_exit_codes(name: str) -> None:
    """F82."""
    text = helped(*name.split())

    examples = [example for verb, example in EXAMPLES if verb == name]
    assert [example for example in examples if example not in text] == []
    assert 2 <= len(examples) <= 4
    assert bool(VERBS[name].fails) is (" 1: " in text)


@pytest.mark.parametrize("name", VERBS)
def test_work_of_a_verb_takes_its_options(name: str) -> None:
    """Each option of the command line has a parameter of the same name and type."""
    declared, work = VERBS[name].declared, VERBS[name].function()

    assert get_type_hints(work) == get_type_hints(declared)


def test_defaults_and_choices_of_options_are_those_of_the_work() -> None:
    repack, certs, claims = (inspect.signature(VERBS[name].declared).parameters for name in (
        "plan repack", "certs controller", "claims-controller"))  # fmt: skip

    assert (repack["most_moves"].default, certs["wait_seconds"].default) == (MOST_MOVES, WAIT_SECONDS)
    assert claims["turn_seconds"].default == TURN_SECONDS
    assert ([freed.value for freed in Freed], [by.value for by in By]) == ([*FREED], [*ROWS])


def test_every_option_and_argument_says_what_it_is() -> None:
    """F82."""
    silent = [
        (words, param.name) for words, command in every() for param in command.params if not (param.help or "").strip()
    ]

    assert silent == []


@pytest.mark.parametrize(("name", "example"), [row for row in EXAMPLES if row[1] not in RUNNABLE])
def test_example_is_a_command_line_that_parses(name: str, example: str) -> None:
    """F82: the command line's own parser parses the example down to the verb of the page, without running it."""
    words, command, context = words_of(example), root(), None

    while hasattr(command, "commands"):
        context = command.make_context(command.name, words, parent=context)
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    parsed = command.make_context(command.name, words, parent=context)

    assert example.startswith(f"gpu-usher {name}")
    assert parsed.args == []


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files that the examples name."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(shipped_policies(), folder / "policies")
    shutil.copytree(shipped_policies(), folder / "edited")
    for name in ("pod", "train"):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(pod()), "utf-8")
    (folder / "now.json").write_text(json.dumps({"kind": "List", "items": demo_fleet()}), "utf-8")
    posted(list(questions(20)), shared_gpu_service(folder), str(folder / "decisions.log"))
    RUN.invoke(app, ["certs", "issue", "--certs", str(folder / "certs")])
    written = RUN.invoke(app, ["scheduler-config", "--ca", str(folder / "certs" / "ca.crt")]).stdout
    (folder / "scheduler.yaml").write_text(written, "utf-8")
    return folder


@pytest.mark.parametrize("example", RUNNABLE)
def test_example_that_needs_no_cluster_works(example: str, routes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F82: the example runs with the files that it names."""
    monkeypatch.chdir(routes)
    name = next(name for name, line in EXAMPLES if line == example)

    done = RUN.invoke(app, words_of(example))

    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in ((0, 1) if VERBS[name].fails else (0,)), done.output
    assert done.stdout


@cache
def completion() -> str:
    """Return the script that --install-completion installs for bash."""
    variables = {**os.environ, "_GPU_USHER_COMPLETE": "source_bash"}
    return subprocess.run([SCRIPT], capture_output=True, text=True, check=True, timeout=120, env=variables).stdout


def completed(*words: str) -> list[str]:
    """Return what bash offers for the last word, by the installed script."""
    script = completion() + '\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
    script += '_gpu_usher_completion gpu-usher; printf "%s\\n" "${COMPREPLY[@]}"'
    path = f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
    line = ["bash", "-c", script, "bash", "gpu-usher", *words]
    done = subprocess.run(
        line, capture_output=True, text=True, check=True, timeout=120, env={**os.environ, "PATH": path}
    )
    return done.stdout.split()


@pytest.mark.skipif(
    not shutil.which("bash"), reason="There is no bash, which the test asks for completions. Install it."
)
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("plan", "r"), ["relayout", "repack", "right-size"]),
        (("doctor", "--stri"), ["--strict"]),
        (("doctor", "--demo-fleet", "mi"), ["mig", "mixed"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_bash_completes_verbs_options_and_their_values(words: tuple[str, ...], offered: list[str]) -> None:
    """F82: shell completion works in a real bash."""
    assert completed(*words) == offered


def test_completion_offers_what_every_verb_takes_for_its_output() -> None:
    """F82: completion offers exactly the values that the help names."""
    for _, command in every():
        option = next((param for param in command.params if "-o" in param.opts), None)
        offered = [item.value for item in option.shell_complete(None, "")] if option else []
        named = (output_of(command) or "").partition(": ")[2].rstrip(".").replace(" or ", ", ")
        assert ", ".join(offered) == named


def test_completion_can_be_installed() -> None:
    """F82."""
    assert "--install-completion" in helped()
