# SPDX-License-Identifier: Apache-2.0
"""`--help` of every command has examples that work, and shells complete what it names."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.verbs import FAILS, VERBS, app, examples_of
from app.cluster.files import shipped_policies
from app.demo.sample_fleets import demo_fleet
from tests.api.test_decision_recorder import posted, questions, shared_gpu_service
from tests.builders import pod
from tests.cli.commands import every, output_of, root

RUN = CliRunner()
PAGES = [(words, command) for words, command in every() if not hasattr(command, "commands")]
EXAMPLES = [(name, example) for name in VERBS for example in examples_of(name)]
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
SCRIPT = Path(sys.executable).with_name("gpu-usher")


COLUMNS = 80


def helped(*words: str) -> str:
    """Return the help of a verb on a terminal of 80 columns."""
    return RUN.invoke(app, [*words, "--help"], env={"COLUMNS": str(COLUMNS)}).stdout


def words_of(example: str) -> list[str]:
    """Return the arguments of `gpu-usher` in an example, up to a pipe or a redirection."""
    lexer = shlex.shlex(example, posix=True, punctuation_chars="|>")
    lexer.whitespace_split = True
    words = list(lexer)
    end = next((index for index, word in enumerate(words) if word in ("|", ">")), len(words))
    assert words[0] == "gpu-usher"
    return words[1:end]


@pytest.mark.parametrize(("words", "command"), PAGES, ids=[" ".join(words) for words, _ in PAGES])
def test_help_of_a_verb_has_examples_exit_codes_and_variables(words: tuple[str, ...], command: Any) -> None:
    """F82."""
    name, text = " ".join(words), helped(*words)

    examples = examples_of(name)
    variables = [param.envvar for param in command.params if getattr(param, "envvar", None)]
    assert [example for example in examples if f"  {example}\n" not in text] == []
    assert 2 <= len(examples) <= 4
    assert bool(FAILS.get(name)) is (" 1: " in text)
    assert [variable for variable in variables if variable not in text] == []


@pytest.mark.parametrize("words", [words for words, _ in every()], ids=lambda words: " ".join(words) or "gpu-usher")
def test_help_is_readable_on_80_columns(words: tuple[str, ...]) -> None:
    """F82: no line but an example is too long, no name is cut, and no column is narrower than 40."""
    command = next(command for path, command in every() if path == words)
    options = {name for param in command.params for name in param.opts if name.startswith("-")}

    lines = [line for line in helped(*words).splitlines() if not line.startswith("    gpu-usher ")]

    page = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= COLUMNS
    assert [line for line in lines[1:] if "…" in line or line.endswith("...")] == []
    assert [name for name in options if name not in page.replace(",", " ").split()] == []
    assert max(len(line) - len(line.lstrip()) for line in lines) <= COLUMNS - 40


def test_help_of_a_group_does_not_repeat_completion() -> None:
    """F82: --install-completion belongs to the program."""
    assert "completion" not in helped("plan")


def test_every_option_and_argument_says_what_it_is() -> None:
    """F82."""
    silent = [
        (words, param.name) for words, command in every() for param in command.params if not (param.help or "").strip()
    ]

    assert silent == []


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
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


RUNNABLE = [example for _, example in EXAMPLES if not any(words in example for words in ELSEWHERE)]


@pytest.mark.parametrize("example", RUNNABLE)
def test_example_that_needs_no_cluster_works(example: str, routes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F82: the example runs with the files that it names."""
    monkeypatch.chdir(routes)
    name = next(name for name, line in EXAMPLES if line == example)

    done = RUN.invoke(app, words_of(example))

    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in ((0, 1) if name in FAILS else (0,)), done.output
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
        (("inv",), ["inventory"]),
        (("plan", "r"), ["relayout", "repack", "right-size"]),
        (("doctor", "--stri"), ["--strict"]),
        (("explain", "-o", ""), ["text", "wide", "json", "yaml"]),
        (("policy", "test", "-o", "ju"), ["junit"]),
        (("schema", "--answer", "plan-rel"), ["plan-relayout"]),
        (("doctor", "--demo-fleet", "mi"), ["mig", "mixed"]),
        (("serve", "--demo-fleet", "w"), ["weekday"]),
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
