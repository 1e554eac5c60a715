# SPDX-License-Identifier: Apache-2.0
"""The published schemas of all answers: complete, in force, and held by what commands and routes really answer."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import app.cli.answers
from app.cli.answers import ANSWERS, answer_schema, answer_text
from app.cli.main import app as usher_app
from app.cluster.files import shipped_policies
from app.demo.notation import fleet_names
from app.demo.sample_fleets import demo_fleet
from app.server.service import Service
from app.values.errors import BadInput
from app.web.api import create_web_app
from tests.api.conftest import Ask, ask, service
from tests.api.test_decision_recorder import posted, questions, rooms
from tests.builders import gpus, pod, policy
from tests.cli.commands import output_of, verbs

__all__ = ["ask", "service"]
PUBLISHED = Path(app.cli.answers.__file__).with_name("schemas")
ROUTES = {"dry-run"}
"""Answers of the web UI listener alone."""
RUN = CliRunner()
NOWHERE = pod(gpus(1), annotations={"products": "H100"}, nodeSelector={"pool": "gold"})


def complaints(name: str, answer: Any) -> list[str]:
    """Hold an answer against its schema, in which a field that is not named is an error."""
    validator = Draft202012Validator(closed(answer_schema(name)))
    return [f"{each.json_path}: {each.message}"[:300] for each in validator.iter_errors(answer)]


def closed(schema: Any) -> Any:
    """Close every object whose fields are named."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema:
        found["additionalProperties"] = False
    return found


@pytest.mark.parametrize("name", ANSWERS)
def test_published_schema_is_what_the_command_prints(name: str) -> None:
    """F75, F82: made from the dataclasses that are encoded."""
    printed = RUN.invoke(usher_app, ["schema", "--answer", name]).stdout

    published = (PUBLISHED / f"{name}.json").read_text("utf-8")

    Draft202012Validator.check_schema(json.loads(published))
    assert published == printed == answer_text(name)


def test_nothing_else_is_published() -> None:
    """F82."""
    assert {each.stem for each in PUBLISHED.iterdir()} == set(ANSWERS)


def test_every_verb_that_answers_json_has_a_schema_and_every_schema_a_verb() -> None:
    """F82: a new verb with -o json and without a schema fails here."""
    answering = {name for name, each in verbs().items() if "json" in (output_of(each) or "")}

    assert answering | ROUTES == set(ANSWERS)


def test_unknown_answer_is_refused_with_the_names_that_there_are() -> None:
    """F75."""
    with pytest.raises(BadInput, match="got 'x', wants one of explain, dry-run"):
        answer_schema("x")


Make = Callable[[Path], list[list[str]]]
"""Writes files into a folder; gives command lines, without -o json."""


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
    return [["mutate", "-f", each, "--demo"] for each in (file, str(folder / "one.yaml"), str(folder / "bad.yaml"))]


def _edited(folder: Path) -> str:
    edited = folder / "edited"
    if not edited.exists():
        shutil.copytree(shipped_policies(), edited)
        (edited / "one.yaml").write_text(policy("one", "admission: {maxGPUsPerPod: 1}, priority: 3"), "utf-8")
    return str(edited)


def _diff(folder: Path) -> list[list[str]]:
    """Every pod of the fleets, a hurting edit, and an edit that changes nothing."""
    old = str(shipped_policies())
    fleets = [["diff", old, _edited(folder), "--demo-fleet", each] for each in fleet_names()]
    return [*fleets, ["diff", old, old, "--demo-fleet", "mixed"]]


def _replay(folder: Path) -> list[list[str]]:
    (folder / "fleet.json").write_text(json.dumps({"kind": "List", "items": demo_fleet()}), "utf-8")
    posted(list(questions(40)), rooms(folder), str(folder / "log"))
    words = ["replay", str(folder / "log"), "--snapshot", str(folder / "fleet.json"), "--recount"]
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
    "diff": _diff,
    "replay": _replay,
    "simulate": lambda _: [["simulate", "--nodes", "20", "--seeds", "1,2", "--policies", "shipped,fgd,random"]],
    "lint": lambda folder: [["lint"], ["lint", _edited(folder)]],
    "test": lambda folder: [["test"], ["test", _edited(folder)]],
    "scheduler-config": _scheduler,
    "whatif-driver": _each_fleet("whatif", "driver", "--to", "535.104.05"),
    "whatif-mig": lambda _: [["whatif", "mig", "--layout", each, "--demo-fleet", "mixed"] for each in ("all-1g.10gb", "all-disabled")],  # noqa: E501
    "whatif-node-template": lambda folder: [["whatif", "node-template", "-f", _pod_file(folder)]],
    "advise-mig": _each_fleet("advise", "mig"),
    "certs-issue": lambda folder: [["certs", "issue", "--certs", str(folder)]],
    "certs-show": lambda folder: [
        ["certs", "issue", "--certs", str(folder)],
        ["certs", "show", "--certs", str(folder)],
        ["certs", "show", "--certs", str(folder), "--ca", str(folder / "tls.crt")],
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", [each for each in ANSWERS if each not in ROUTES])
def test_real_answers_of_every_verb_hold_their_schema(name: str, tmp_path: Path) -> None:
    """F82: on every sample fleet where the verb is about one; also where it exits with 1."""
    found: list[str] = []
    answers = 0

    for words in COMMANDS[name](tmp_path):
        done = RUN.invoke(usher_app, [*words, "-o", "json"])
        if isinstance(done.exception, BadInput):
            continue  # as a fleet without GPU nodes that `advise mig` is for
        answers += 1
        found += [f"{' '.join(words)}: {each}" for each in complaints(name, json.loads(done.stdout))]

    assert answers
    assert found == []


def test_answers_of_the_web_listener_hold_the_same_schemas(service: Service, ask: Ask) -> None:
    """F82, F85: POST /explain and /dry-run."""
    web = create_web_app(service)
    asked = [("/explain", "explain", NOWHERE), ("/explain?nodes=true", "explain", pod())]
    asked += [
        ("/dry-run", "dry-run", each) for each in (NOWHERE, pod(gpus("0.5")), pod(gpus(1, "nvidia.com/mig-1g.5gb")))
    ]

    found = [(path, complaints(name, ask(web, "POST", path, json=body).json())) for path, name, body in asked]

    assert [each for each in found if each[1]] == []


def test_an_answer_that_says_more_or_less_than_its_schema_is_seen() -> None:
    """F82: the twin of the tests above; a field added without a schema, or lost, must not pass."""
    whole = {
        "what": "Pod a/b",
        "allowed": True,
        "message": "",
        "warnings": [],
        "actions": [],
        "patch": [],
        "object": {},
    }

    more, less = {**whole, "new": 1}, {key: value for key, value in whole.items() if key != "patch"}

    assert [len(complaints("mutate", {"objects": [each]})) for each in (whole, more, less)] == [0, 1, 1]
