# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher scheduler-config` as a person uses it: what it prints, what it refuses, and its exit codes."""

import datetime as dt
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.cli.verbs import app
from app.demo.sample_fleets import demo_fleet
from app.tls.serving_certificates import issue_if_needed
from app.values.errors import BadInput


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    issue_if_needed(tmp_path, dt.datetime.now(dt.UTC))
    return tmp_path / "ca.crt"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["scheduler-config", *map(str, words)])


@pytest.mark.parametrize("answer", ["all", "shortlist"])
@pytest.mark.parametrize("target", ["second", "default"])
def test_every_form_that_is_printed_verifies_clean(ca: Path, target: str, answer: str) -> None:
    """F88."""
    file = ca.parent / "scheduler.yaml"
    file.write_text(run("--demo", "--for", target, "--filter-answer", answer, "--ca", ca).output, "utf-8")

    result = run("--demo", "--verify", file)

    batching, verdict = result.output.splitlines()
    assert (result.exit_code, verdict) == (0, f"{file}: nothing dangerous found")
    assert batching.endswith("an extender costs none")


@pytest.mark.parametrize("target", ["second", "default"])
def test_form_without_an_extender_needs_no_certificate_and_verifies_clean(tmp_path: Path, target: str) -> None:
    """F88."""
    file = tmp_path / "scheduler.yaml"
    file.write_text(run("--demo", "--for", target, "--no-extender").output, "utf-8")

    result = run("--demo", "--verify", file)

    assert result.output.splitlines() == [
        "opportunistic batching: profile gpu-usher-scheduler",
        f"{file}: nothing dangerous found",
    ]


def test_json_is_the_same_configuration_as_the_yaml(ca: Path) -> None:
    """F88."""
    text, plain = run("--demo", "--ca", ca).output, run("--demo", "--ca", ca, "-o", "json").output

    assert json.loads(plain) == yaml.safe_load(text)


def test_snapshot_gives_the_resources_and_the_size_of_the_fleet(ca: Path) -> None:
    """F86, F88."""
    file = ca.parent / "fleet.json"
    file.write_text(json.dumps({"kind": "List", "items": demo_fleet()}), "utf-8")

    assert run("--snapshot", file, "--ca", ca).output == run("--demo", "--ca", ca).output


def test_findings_stand_on_one_line_each_with_file_and_line(ca: Path) -> None:
    """F88: grep and CI tools find the whole place on the line, however long the path is."""
    file = ca.parent / "scheduler.yaml"
    file.write_text(run("--demo", "--ca", ca).output.replace("ignorable: false", "ignorable: true"), "utf-8")
    line = next(n for n, text in enumerate(file.read_text("utf-8").splitlines(), 1) if "ignorable" in text)

    result = run("--demo", "--verify", file)

    *_, finding = result.output.splitlines()
    assert result.exit_code == 1
    assert finding.split()[:3] == ["danger", f"{file}:{line}:3", "ignorable:"]


def test_words_of_the_file_are_shown_as_they_are(ca: Path) -> None:
    """F88: square brackets in the file are not read as markup."""
    file = ca.parent / "scheduler.yaml"
    text = run("--demo", "--ca", ca).output.replace("filterVerb: filter", 'filterVerb: "[/filter]"')
    file.write_text(text, "utf-8")

    assert "filterVerb: got [/filter], a route that is not there" in run("--demo", "--verify", file).output


def test_check_without_a_fleet_says_what_it_did_not_look_at(ca: Path) -> None:
    """F88."""
    file = ca.parent / "scheduler.yaml"
    file.write_text(run("--ca", ca).output, "utf-8")

    result = run("--verify", file)

    assert result.exit_code == 0
    assert "managedResources not compared with a fleet" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--for", "third"), "wants second or default"),
        (("--filter-answer", "some"), "all or shortlist"),
        (("--filter-answer", "best"), "wants all or shortlist, with `serve --shortlist 1` for one node"),
        (("-o", "xml"), "text, json or yaml"),
        (("--for", "default", "--ca", "absent"), "wants the CA of our certificate, in PEM"),
        (("--url", "http://10.0.0.1/scheduler"), "wants https://HOST:PORT/scheduler"),
        (("--no-extender", "--every-pod"), "got --no-extender and --every-pod, wants one of them"),
        (("--no-extender", "--verify", "absent"), "got --verify and --no-extender, wants one of them"),
        (("--verify", "absent"), "wants a KubeSchedulerConfiguration"),
    ],
)
def test_bad_input_says_what_is_wanted(words: tuple[str, ...], message: str) -> None:
    """F88."""
    result = run(*words)

    assert isinstance(result.exception, BadInput)
    assert message in str(result.exception)


def test_empty_file_is_bad_input(tmp_path: Path) -> None:
    """F88."""
    (tmp_path / "empty.yaml").touch()

    result = run("--verify", tmp_path / "empty.yaml")

    assert isinstance(result.exception, BadInput)
    assert "got 0 YAML documents, wants one KubeSchedulerConfiguration" in str(result.exception)
