# SPDX-License-Identifier: Apache-2.0
"""Questions of an ML engineer, each asked by one command; `python -m tests.explain.questions` writes their page."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from app.cli.verbs import app
from app.demo.sample_fleets import demo_fleet

QUESTIONS = Path(__file__).with_name("questions.yaml")
PAGE = Path(__file__).parent.parent / "results" / "questions.md"
GPU = "nvidia.com/gpu"
COLUMNS = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
"""The environment of a command: wide, so that no line is broken."""
CREATED = "2026-11-25T21:03:11Z"


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One row of questions.yaml, as its head explains them; `limits` are those of the container."""

    ask: str
    command: str
    answer: tuple[str, ...]
    limits: Mapping[str, Any] | None = field(default_factory=lambda: {GPU: 1})
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    image: str = "train:1"
    kind: str = "Pod"
    policy: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, str] = field(default_factory=dict)
    name: str = "mine"
    real: bool = False

    @property
    def is_about_a_pod(self) -> bool:
        """Whether there is something to create: `limits` is null where there is not."""
        return self.limits is not None

    def manifest(self) -> dict[str, Any]:
        """Write the Pod or the Deployment that the command reads."""
        container = {
            "name": "main",
            "image": self.image,
            "resources": {"limits": dict(self.limits or {})},
            **self.container,
        }
        metadata = {
            "name": self.name,
            "namespace": "team",
            "annotations": dict(self.annotations),
            "labels": dict(self.labels),
        }
        spec = {"containers": [container], **self.spec}
        if self.kind == "Pod":
            return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        template = {"metadata": {"labels": {"app": "mine"}}, "spec": spec}
        return {"apiVersion": "apps/v1", "kind": self.kind, "metadata": metadata, "spec": {"template": template}}

    def objects(self) -> Iterator[Mapping[str, Any]]:
        """Write the cluster: the sample fleet, and the pod of `cluster`."""
        yield from demo_fleet("weekday")
        if self.cluster:
            pod = self.manifest()
            pod["metadata"] |= {"name": self.cluster["name"], "uid": self.cluster["name"], "creationTimestamp": CREATED}
            pod["spec"] |= {"schedulerName": self.cluster.get("scheduler", "default-scheduler")}
            pod["spec"] |= {"nodeName": self.cluster["node"]} if "node" in self.cluster else {}
            phase = "Running" if "node" in self.cluster else "Pending"
            yield {**pod, "status": {"phase": phase, "qosClass": "BestEffort"}}


@cache
def questions() -> list[Question]:
    """Read the questions to the sample fleet."""
    return read_questions(QUESTIONS)


def read_questions(file: Path) -> list[Question]:
    """Read the questions of a file."""
    rows = yaml.safe_load(file.read_text("utf-8"))
    return [Question(**{**row, "answer": tuple(row["answer"])}) for row in rows]


@cache
def printed(question: Question) -> str:
    """Run the command of a question, and return what it prints."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot = folder / "cluster.json"
        snapshot.write_text(json.dumps({"kind": "List", "items": list(question.objects())}), "utf-8")
        words = [*question.command.split(), "--snapshot", str(snapshot)]
        if "-f" in words:
            words[words.index("-f") + 1] = str(folder / "manifest.yaml")
            (folder / "manifest.yaml").write_text(yaml.safe_dump(question.manifest()), "utf-8")
        if question.policy:
            head = {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy"}
            document = {**head, "metadata": {"name": question.policy["name"]}, "spec": question.policy["spec"]}
            (folder / "policies").mkdir()
            (folder / "policies" / "policy.yaml").write_text(yaml.safe_dump(document), "utf-8")
            words += ["--policies", str(folder / "policies")]
        return CliRunner(env=COLUMNS).invoke(app, words).output


def answer_lines(question: Question, output: str) -> list[str]:
    """Return the lines of an output that have the answer, each once."""
    lines = [line.strip() for line in output.splitlines()]
    return list(dict.fromkeys(next((line for line in lines if text in line), "") for text in question.answer))


def page() -> str:
    """Write the page of all questions."""
    head = """\
# Questions of an ML engineer

`python -m tests.explain.questions` wrote this; `tests/explain/questions.yaml` has the questions, which were written
before their answers, and `tests/explain/test_questions.py` compares. They are asked of the sample fleet `weekday`, as a
snapshot of a cluster, and of a pod that asks for one `nvidia.com/gpu` but for what the question says. At apply, the API
server shows what `mutate` calls a warning or a denial.
"""
    return "\n".join([head, *map(_section, questions())])


def _section(question: Question) -> str:
    lines = "\n".join(answer_lines(question, printed(question)))
    return f"## {question.ask}\n\n```console\n$ gpu-usher {question.command}\n…\n{lines}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
