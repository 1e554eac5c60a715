# SPDX-License-Identifier: Apache-2.0
"""What reviewers look for is there, is in the form that their tools read, and is as new as what it is made from."""

import json
import re
from typing import Any

import pytest
import yaml

from app import __version__
from app.kube.api_kinds import API_KINDS
from tests.deploy import chart_page
from tests.docstrings import ROOT
from tests.markdown_links import LINK, broken_links
from tests.nvidia_versions import PAGE, page, parts, pinned
from tests.realnodes.nvidia import MODULE, PLUGIN

QUESTION = re.compile(r"^\| (\d+) \| ([^|]+\?) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
CHART: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text("utf-8"))
INSIGHTS: dict[str, Any] = yaml.safe_load((ROOT / "SECURITY-INSIGHTS.yml").read_text("utf-8"))
OURS = "https://gpu-usher.example"
"""The address in place of the project's (MAINTAINERS.md#addresses)."""
PREDICATE = "https://slsa.dev/provenance/v1"
"""The type of an attestation, which is no address of ours."""


def test_thirty_questions_have_an_answer_and_a_place_that_exists() -> None:
    text = (ROOT / "REVIEW.md").read_text("utf-8")
    rows = QUESTION.findall(text)

    assert [int(number) for number, *_ in rows] == list(range(1, 31))
    assert [number for number, _, _, where in rows if not LINK.search(where)] == []
    assert broken_links(ROOT / "REVIEW.md", text) == []


def test_table_of_nvidias_parts_is_made_from_what_is_pinned_and_recorded() -> None:
    """After a change of a pinned version, run `make generated`."""
    assert PAGE.read_text("utf-8") == page()


def test_versions_that_run_are_those_of_the_go_modules() -> None:
    version = pinned(PLUGIN, PLUGIN)

    assert f"{PLUGIN} {version} " in (MODULE / "go.mod").read_text("utf-8")
    assert [part.run for part in parts()][:2] == [(version,), (version,)]


def test_module_that_is_not_pinned_has_no_version() -> None:
    with pytest.raises(ValueError, match=r"pins no example\.com/gpu"):
        pinned("example.com/gpu", PLUGIN)


def test_page_of_the_chart_is_made_from_its_schema() -> None:
    """F113: after a change of the schema or of a default, run `make generated`."""
    assert chart_page.PAGE.read_text("utf-8") == chart_page.page()


def test_chart_says_what_catalogues_ask() -> None:
    """F113: https://artifacthub.io/docs/topics/annotations/helm."""
    values = yaml.safe_load((ROOT / "deploy" / "chart" / "values.yaml").read_text("utf-8"))
    annotations = {name.partition("/")[2]: text for name, text in CHART["annotations"].items()}
    images = [row["image"] for row in yaml.safe_load(annotations["images"])]
    definitions, kind = yaml.safe_load(annotations["crds"]), API_KINDS["GPUPolicy"]
    (example,) = yaml.safe_load(annotations["crdsExamples"])

    assert {"home", "sources", "icon", "keywords", "maintainers"} <= CHART.keys()
    assert CHART["appVersion"] == CHART["version"] == values["image"]["tag"] == __version__
    assert images == [f"gpu-usher:{__version__}", values["secondScheduler"]["image"]]
    assert {row["name"] for row in definitions} == {f"{kind.plural}.{kind.group}"}
    assert {row["version"] for row in definitions} == set(kind.versions)
    assert example["apiVersion"] in [f"{kind.group}/{version}" for version in kind.versions]


def addresses(value: Any) -> list[str]:
    """List all addresses in a document."""
    return re.findall(r"https?://[^\s\"',}\]]+", json.dumps(value))


def test_addresses_of_the_project_are_the_reserved_one_and_their_files_exist() -> None:
    """No address is invented: RFC 2606 reserves .example."""
    found = addresses([CHART, INSIGHTS])
    files = [address.partition("/main/")[2] for address in found if "/main/" in address]

    assert [address for address in found if not address.startswith((OURS, PREDICATE))] == []
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_security_insights_have_the_members_that_their_schema_requires() -> None:
    """Security Insights 2.x: spec/schema.cue of github.com/ossf/security-insights."""
    header, project, repository = (INSIGHTS[name] for name in ("header", "project", "repository"))

    assert INSIGHTS.keys() == {"header", "project", "repository"}
    assert {"last-reviewed", "last-updated", "schema-version", "url"} <= header.keys()
    assert re.fullmatch(r"2\.\d+\.\d+", header["schema-version"])
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", header[name]) for name in ("last-reviewed", "last-updated"))
    assert {"name", "administrators", "repositories", "vulnerability-reporting"} <= project.keys()
    assert {"reports-accepted", "bug-bounty-available"} <= project["vulnerability-reporting"].keys()
    assert all({"name", "comment", "url"} <= row.keys() for row in project["repositories"])
    assert [row["primary"] for row in (*project["administrators"], *repository["core-team"])] == [True, True]
    required = {"status", "url", "accepts-change-request", "accepts-automated-change-request", "core-team"}
    assert required | {"license", "security"} <= repository.keys()
    assert repository["license"]["expression"] in (ROOT / "pyproject.toml").read_text("utf-8")
    assert {"automated-pipeline", "distribution-points"} <= repository["release"].keys()
    assert all({"uri", "comment"} <= row.keys() for row in repository["release"]["distribution-points"])
    assert [row["predicate-uri"] for row in repository["release"]["attestations"]] == [PREDICATE]
    assert repository["security"]["assessments"]["self"]["comment"]
    for tool in repository["security"]["tools"]:
        assert {"name", "type", "rulesets", "integration", "results"} <= tool.keys()
        assert tool["type"] in ("fuzzing", "container", "secret", "SCA", "SAST", "other")
        assert tool["integration"].keys() == {"adhoc", "ci", "release"}


WORDS = {
    **dict.fromkeys(("CODE_OF_CONDUCT", "DEPENDENCIES", "GOVERNANCE", "MAINTAINERS", "ROADMAP"), 300),
    "REVIEW": 900,
    "SECURITY": 2_000,
}
"""Page → the most words; the tables of SECURITY.md are generated."""


@pytest.mark.parametrize("name", WORDS)
def test_page_for_reviewers_is_short_and_its_links_lead_somewhere(name: str) -> None:
    path = ROOT / f"{name}.md"
    text = path.read_text("utf-8")

    assert broken_links(path, text) == []
    assert len(text.split()) <= WORDS[name]
