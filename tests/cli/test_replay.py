# SPDX-License-Identifier: Apache-2.0
"""`replay` decides a recorded log the same way on its own fleet and policies, and shows differences on others."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli.verbs import app
from app.demo.sample_fleets import demo_fleet
from app.values.errors import BadInput
from tests.api.test_decision_recorder import posted, questions, shared_gpu_nodes, shared_gpu_service
from tests.builders import make_service, policy

RUN = CliRunner()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record 200 questions. The folder has `log`, and `fleet.json`, the fleet that they were asked about."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "fleet.json").write_text(json.dumps({"kind": "List", "items": shared_gpu_nodes()}), "utf-8")
    posted(list(questions(200)), shared_gpu_service(folder), str(folder / "log"))
    return folder


def run(folder: Path, *more: Any) -> Result:
    log, fleet = str(folder / "log"), str(folder / "fleet.json")
    words = ["policy", "replay", log, "--snapshot", fleet, "--recount", "--filter-answer", "all"]
    return RUN.invoke(app, [*words, *map(str, more)])


def test_log_on_its_own_fleet_decides_the_same(recorded: Path) -> None:
    """F94."""
    result = run(recorded)

    assert result.exit_code == 0, result.output
    assert "200 decisions: none different now" in result.output


def test_other_policies_are_told_line_by_line(recorded: Path, tmp_path: Path) -> None:
    """F94, F78."""
    (tmp_path / "p.yaml").write_text(policy("p", "action: Enforce, admission: {maxGPUsPerPod: 1}"), "utf-8")

    text, plain = (run(recorded, "--policies", tmp_path, "-o", kind) for kind in ("text", "json"))

    answer = json.loads(plain.stdout)
    now_denied = [line for line in answer["differing"] if line["now"]["reasons"].get("TooManyGPUs")]
    assert (text.exit_code, plain.exit_code) == (1, 1)
    assert now_denied
    assert answer["other_policies"] == answer["lines"] == 200
    assert "TooManyGPUs 1" in text.output


def test_pods_with_claims_are_decided_again_by_the_claims_of_the_snapshot(tmp_path: Path) -> None:
    """F94, F135: a line has the pod, which names its claims; their requests and the devices are the fleet's."""
    fleet = demo_fleet("gpucluster")
    nodes = [document["metadata"]["name"] for document in fleet if document["kind"] == "Node"]
    waiting = [document for document in fleet if document["kind"] == "Pod" and "nodeName" not in document["spec"]]
    bodies = [("/scheduler/filter", json.dumps({"Pod": made, "NodeNames": nodes}).encode()) for made in waiting]
    posted(bodies, make_service(tmp_path, fleet), str(tmp_path / "log"))
    (tmp_path / "fleet.json").write_text(json.dumps({"kind": "List", "items": fleet}), "utf-8")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "p.yaml").write_text(policy("p", "placement: {products: {deny: [H100]}}"), "utf-8")

    same, other = run(tmp_path, "-o", "json"), run(tmp_path, "--policies", tmp_path / "policies", "-o", "json")

    assert json.loads(same.stdout)["differing"] == []
    assert len(json.loads(other.stdout)["differing"]) == len(waiting)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "log:1: not JSON"),
        ("{}", "log:1: no line of version 1"),
        ('{"v": 1, "verb": "bind"}', "verb 'bind'"),
        ('{"v": 1, "verb": "filter", "pod": {}}', "no nodes"),
        ('{"v": 1, "verb": "mutate", "namespace": "a", "form": "Pod"}', "no pod"),
    ],
)
def test_line_that_is_none_of_ours_is_bad_input(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "log").write_text(line + "\n", "utf-8")

    result = RUN.invoke(app, ["policy", "replay", str(tmp_path / "log"), "--demo-fleet", "mixed"])

    assert isinstance(result.exception, BadInput)
    assert words in str(result.exception)


def test_log_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["policy", "replay", str(tmp_path / "none"), "--demo-fleet", "mixed"])

    assert isinstance(result.exception, BadInput)
