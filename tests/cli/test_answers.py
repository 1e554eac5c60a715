# SPDX-License-Identifier: Apache-2.0
"""The published JSON Schemas: every answer has one, and the real answers of commands and routes conform to it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli import made_texts
from app.cli.verbs import app as usher_app
from app.cluster.files import shipped_policies
from app.demo.notation import fleet_names
from app.demo.sample_fleets import demo_fleet
from app.server.service import Service
from app.values.errors import BadInput
from app.web.api import create_web_app
from tests.api.conftest import Ask, ask, service
from tests.api.test_decision_recorder import posted, questions, shared_gpu_service
from tests.builders import gpus, pod, policy
from tests.cli.answers import ANSWERS, PUBLISHED, answer_schema, answer_text
from tests.cli.commands import output_of, verbs

__all__ = ["ask", "service"]
ROUTES = {"dry-run"}
"""Answers of the web UI listener alone."""
RUN = CliRunner()
NOWHERE = pod(gpus(1), annotations={"products": "H100"}, nodeSelector={"pool": "gold"})


def validators() -> Any:
    """Return the class of validators; imported here, as the import takes 3 s of each process that collects tests."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator


def complaints(name: str, answer: Any) -> list[str]:
    """Validate an answer against its schema, with every field that the schema does not name as an error."""
    validator = validators()(closed(answer_schema(name)))
    return [f"{error.json_path}: {error.message}"[:300] for error in validator.iter_errors(answer)]


def closed(schema: Any) -> Any:
    """Return a schema that forbids further members in every object whose fields are named."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed_schema = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema:
        closed_schema["additionalProperties"] = False
    return closed_schema


@pytest.mark.parametrize("name", ANSWERS)
def test_published_schema_is_what_the_command_prints(name: str) -> None:
    """F75, F82: the schema is made from the dataclasses that are encoded."""
    printed = RUN.invoke(usher_app, ["schema", "--answer", name]).stdout

    published = (PUBLISHED / f"{name}.json").read_text("utf-8")

    validators().check_schema(json.loads(published))
    assert published == printed == answer_text(name)


def test_nothing_else_is_published() -> None:
    """F82."""
    assert {path.stem for path in PUBLISHED.iterdir()} == set(ANSWERS)


def test_every_verb_that_answers_json_has_a_schema_and_every_schema_a_verb() -> None:
    """F82: a new verb with -o json and without a schema fails this test."""
    answering = {name for name, command in verbs().items() if "json" in (output_of(command) or "")}

    assert answering | ROUTES == set(ANSWERS)


def test_unknown_answer_is_refused_with_the_names_that_there_are() -> None:
    """F75."""
    with pytest.raises(BadInput, match="got 'x', wants one of certs-issue, "):
        made_texts.answer_text("x")


Make = Callable[[Path], list[list[str]]]
"""A function that writes files into a folder and returns command lines, without -o json."""


def _pod_file(folder: Path) -> str:
    (folder / "pod.yaml").write_text(yaml.safe_dump(NOWHERE), "utf-8")
    (folder / "one.yaml").write_text(yaml.safe_dump(pod()), "utf-8")
    return str(folder / "pod.yaml")


def _explain(folder: Path) -> list[list[str]]:
    file, one = _pod_file(folder), str(folder / "one.yaml")
    (folder / "fleet.json").write_text(json.dumps({"kind": "List", "items": [*demo_fleet(), NOWHERE]}), "utf-8")
    fleets = [["explain", "-f", one, "--demo", "--demo-fleet", name] for name in fleet_names()]
    snapshot = ["explain", "pod", "team-a/p", "--snapshot", str(folder / "fleet.json"), "--nodes"]
    return [*fleets, ["explain", "-f", file, "--demo", "--nodes"], snapshot]


def _mutate(folder: Path) -> list[list[str]]:
    file = _pod_file(folder)
    (folder / "bad.yaml").write_text(yaml.safe_dump(pod(gpus("0.5"))), "utf-8")
    return [["mutate", "-f", path, "--demo"] for path in (file, str(folder / "one.yaml"), str(folder / "bad.yaml"))]


def _edited(folder: Path) -> str:
    edited = folder / "edited"
    if not edited.exists():
        shutil.copytree(shipped_policies(), edited)
        (edited / "one.yaml").write_text(policy("one", "admission: {maxGPUsPerPod: 1}, priority: 3"), "utf-8")
    return str(edited)


def _diff(folder: Path) -> list[list[str]]:
    """Return a diff of every pod of the fleets, one of an edit that hurts, and one that changes nothing."""
    old = str(shipped_policies())
    fleets = [["policy", "diff", old, _edited(folder), "--demo-fleet", name] for name in fleet_names()]
    return [*fleets, ["policy", "diff", old, old, "--demo-fleet", "mixed"]]


def _replay(folder: Path) -> list[list[str]]:
    (folder / "fleet.json").write_text(json.dumps({"kind": "List", "items": demo_fleet()}), "utf-8")
    posted(list(questions(40)), shared_gpu_service(folder), str(folder / "log"))
    words = ["policy", "replay", str(folder / "log"), "--snapshot", str(folder / "fleet.json"), "--recount"]
    return [words, [*words, "--policies", _edited(folder)]]


def _scheduler(folder: Path) -> list[list[str]]:
    RUN.invoke(usher_app, ["certs", "issue", "--certs", str(folder)])
    written = ["scheduler-config", "--demo", "--ca", str(folder / "ca.crt")]
    text = RUN.invoke(usher_app, written).stdout
    (folder / "broken.yaml").write_text(text.replace("preemptVerb: preempt", "bindVerb: bind"), "utf-8")
    return [written, ["scheduler-config", "--verify", str(folder / "broken.yaml")]]


def _each_fleet(*words: str) -> Make:
    return lambda _: [[*words, "--demo-fleet", name] for name in fleet_names()]


COMMANDS: dict[str, Make] = {
    "explain": _explain,
    "doctor": _each_fleet("doctor"),
    "inventory": _each_fleet("inventory"),
    "mutate": _mutate,
    "policy-diff": _diff,
    "policy-replay": _replay,
    "policy-lint": lambda folder: [["policy", "lint"], ["policy", "lint", _edited(folder)]],
    "policy-test": lambda folder: [["policy", "test"], ["policy", "test", _edited(folder)]],
    "scheduler-config": _scheduler,
    "plan-driver": _each_fleet("plan", "driver", "--to", "535.104.05"),
    "plan-claims": _each_fleet("plan", "claims"),
    "plan-relayout": lambda _: [["plan", "relayout", "--layout", layout, "--demo-fleet", "mixed"] for layout in ("all-1g.10gb", "all-disabled")],  # noqa: E501
    "plan-node-template": lambda folder: [["plan", "node-template", "-f", _pod_file(folder)]],
    "plan-mig": _each_fleet("plan", "mig"),
    "plan-repack": _each_fleet("plan", "repack", "--free", "places"),
    "plan-right-size": _each_fleet("plan", "right-size"),
    "usage": _each_fleet("usage", "--by", "owner"),
    "certs-issue": lambda folder: [["certs", "issue", "--certs", str(folder)]],
    "certs-show": lambda folder: [
        ["certs", "issue", "--certs", str(folder)],
        ["certs", "show", "--certs", str(folder)],
        ["certs", "show", "--certs", str(folder), "--ca", str(folder / "tls.crt")],
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in ANSWERS if name not in {*ROUTES, "image"}])
def test_real_answers_of_every_verb_hold_their_schema(name: str, tmp_path: Path) -> None:
    """F82: on every sample fleet where the verb takes one, also where the verb exits with 1."""
    problems: list[str] = []
    answers = 0

    for words in COMMANDS[name](tmp_path):
        done = RUN.invoke(usher_app, [*words, "-o", "json"])
        if isinstance(done.exception, BadInput):
            continue  # a fleet without GPU nodes is such bad input for `plan mig`
        answers += 1
        problems += [f"{' '.join(words)}: {complaint}" for complaint in complaints(name, json.loads(done.stdout))]

    assert answers
    assert problems == []


def test_answers_of_the_web_listener_hold_the_same_schemas(service: Service, ask: Ask) -> None:
    """F82, F85: the answers of POST /explain and /dry-run conform too."""
    web = create_web_app(service)
    questions = [("/explain", "explain", NOWHERE), ("/explain?nodes=true", "explain", pod())]
    questions += [
        ("/dry-run", "dry-run", document)
        for document in (NOWHERE, pod(gpus("0.5")), pod(gpus(1, "nvidia.com/mig-1g.5gb")))
    ]

    answers = [(path, complaints(name, ask(web, "POST", path, json=body).json())) for path, name, body in questions]

    assert [path_complaints for path_complaints in answers if path_complaints[1]] == []


def test_an_answer_that_says_more_or_less_than_its_schema_is_seen() -> None:
    """F82: the tests above fail for a field that was added without a schema, or lost."""
    whole = {
        "what": "Pod a/b",
        "allowed": True,
        "message": "",
        "warnings": [],
        "actions": [],
        "patch": [],
        "object": {},
        "undone": [],
        "pods": [],
    }

    more, less = {**whole, "new": 1}, {key: value for key, value in whole.items() if key != "patch"}

    assert [len(complaints("mutate", {"objects": [document]})) for document in (whole, more, less)] == [0, 1, 1]
