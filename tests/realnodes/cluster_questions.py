# SPDX-License-Identifier: Apache-2.0
"""Questions of an ML engineer, asked of a running `make cluster`.

`python -m tests.realnodes.cluster_questions` asks them of the cluster that runs, and writes their page.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.controlplane.processes import wait_until
from tests.explain.questions import Question, answer_lines, read_questions
from tests.realnodes.playground import FOLDER

QUESTIONS = Path(__file__).with_name("cluster_questions.yaml")
PAGE = Path(__file__).parent.parent / "results" / "questions-on-a-cluster.md"
ANSWER_SECONDS = 120
"""Bound on all answers: an Event of gpu-usher comes after some 20 s, a scheduler counts as silent after some time."""
NAMES_OF_SHELL = "train:1", "gpu-usher.test/shell:1"
"""The image that a question has if it says none, and the one that the real nodes have."""
REAL = {"gpu-usher.test/kubelet": "real"}
AGE = re.compile(r"  +(<unknown>|[0-9]+[smh][0-9smh]*)( \(x[0-9]+ over [0-9smh]+\))?  +")
"""The column Age of kubectl describe, which differs from run to run."""
Run = Callable[[str, str], str]
"""Runs a command with a text as its input; returns all that it prints."""


def words_of(question: Question) -> str:
    """Write the command of a question."""
    kind = question.kind.lower()
    commands = {
        "describe": f"kubectl describe pod -n team {question.name}",
        "explain": f"kubectl gpu-usher explain -n team {kind}/{question.name}",
        "apply": f"kubectl apply -f {question.name}.yaml",
    }
    return commands.get(question.command, f"kubectl {question.command}")


def manifest(question: Question) -> str:
    """Write the object that a question is about."""
    document = question.manifest()
    spec = document["spec"] if question.kind == "Pod" else document["spec"]["template"]["spec"]
    if question.real:
        spec["nodeSelector"] = REAL
    spec["terminationGracePeriodSeconds"] = 1
    container = spec["containers"][0]
    container |= {"command": ["sh", "-c", "sleep 100000"], "image": container["image"].replace(*NAMES_OF_SHELL)}
    if question.kind != "Pod":
        document["spec"] |= {"replicas": 1, "selector": {"matchLabels": {"app": "mine"}}}
    return yaml.safe_dump(document)


def ask_all(run: Run) -> dict[str, tuple[Question, str]]:
    """Create what the questions are about, and ask until each is answered or the time is up; answers by name."""
    questions = read_questions(QUESTIONS)
    run("kubectl create namespace team", "")
    outputs = {
        question.name: run("kubectl apply -f -", manifest(question))
        for question in questions
        if question.is_about_a_pod
    }

    def answered() -> bool:
        for question in questions:
            if question.command != "apply" and not all(answer_lines(question, outputs.get(question.name, ""))):
                outputs[question.name] = run(words_of(question), "")
        return all(all(answer_lines(question, outputs[question.name])) for question in questions)

    with contextlib.suppress(AssertionError):  # the caller names the questions
        wait_until("all questions are answered", answered, ANSWER_SECONDS)
    return {question.name: (question, outputs[question.name]) for question in questions}


def page(answers: dict[str, tuple[Question, str]]) -> str:
    """Write the page of all questions with the lines that answer them."""
    head = """\
# Questions of an ML engineer on a cluster

`python -m tests.realnodes.cluster_questions` asked them of a running `make cluster`, and wrote this;
`tests/realnodes/cluster_questions.yaml` has the questions, and says how they were chosen;
`tests/realnodes/test_playground.py` compares.
"""
    return "\n".join([head, *(_section(*entry) for entry in answers.values())])


def _section(question: Question, output: str) -> str:
    lines = "\n".join(AGE.sub("  ", line) for line in answer_lines(question, output))
    return f"## {question.ask}\n\n```console\n$ {words_of(question)}\n…\n{lines}\n```\n"


def run_here(words: str, text: str) -> str:
    """Run a command of the running cluster."""
    program, *rest = words.split()
    env = {**os.environ, "PATH": f"{FOLDER}:{os.environ['PATH']}", "COLUMNS": "200"}
    done = subprocess.run(
        [str(FOLDER / program), *rest], input=text, capture_output=True, text=True, timeout=60, check=False, env=env
    )
    return done.stdout + done.stderr


if __name__ == "__main__":
    PAGE.write_text(page(ask_all(run_here)), "utf-8")
