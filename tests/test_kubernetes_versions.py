# SPDX-License-Identifier: Apache-2.0
"""The versions of Kubernetes that are built, documented, and known to doctor are the same."""

import re

import pytest
import yaml

from app.doctor.cluster_checks import NEWEST_TESTED, OLDEST_MINOR, OLDEST_TESTED
from tests.controlplane.module_files import (
    CHOICE,
    chosen_minor,
    default_minor,
    kubernetes_version,
    minors,
    module_file,
)
from tests.docstrings import ROOT

PAGE = ROOT / "docs" / "reference" / "kubernetes-versions.md"
_ROW = re.compile(r"^\| (1\.\d+) \| (v1\.\d+\.\d+) \|", re.MULTILINE)


def test_table_of_versions_names_what_is_built() -> None:
    assert dict(_ROW.findall(PAGE.read_text("utf-8"))) == {minor: kubernetes_version(minor) for minor in minors()}


def test_doctor_knows_the_versions_that_are_built() -> None:
    assert minors() == tuple(f"1.{number}" for number in range(OLDEST_TESTED, NEWEST_TESTED + 1))


def test_every_module_file_has_its_hashes() -> None:
    """Without them `go build` would ask a checksum database, or refuse."""
    for minor in minors():
        module, hashes = module_file(minor), module_file(minor).with_suffix(".sum").read_text("utf-8")
        assert f"k8s.io/kubernetes {kubernetes_version(minor)} h1:" in hashes, module.name


def test_default_version_is_that_of_the_manifests_and_of_the_pages() -> None:
    image = f"registry.k8s.io/kube-scheduler:{kubernetes_version(default_minor())}"
    manifest = ROOT / "deploy" / "components" / "second-scheduler" / "deployment.yaml"
    values = yaml.safe_load((ROOT / "deploy" / "chart" / "values.yaml").read_text("utf-8"))

    assert f"image: {image}\n" in manifest.read_text("utf-8")
    assert values["secondScheduler"]["image"] == image
    assert f"The default is {default_minor()}" in PAGE.read_text("utf-8")


def test_readme_and_chart_name_the_same_range() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text("utf-8"))

    assert chart["kubeVersion"] == f">=1.{OLDEST_MINOR}.0-0"
    for page in ("README.md", "docs/reference/requirements.md"):
        assert f"{minors()[0]} to {minors()[-1]}" in (ROOT / page).read_text("utf-8"), page


@pytest.mark.parametrize("chosen", ["", "1.34"])
def test_variable_chooses_the_version_and_nothing_else_changes(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """make exports the variable also where nobody set it."""
    monkeypatch.setenv(CHOICE, chosen)

    assert chosen_minor() == (chosen or default_minor())


def test_version_that_is_not_pinned_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "1.20")

    with pytest.raises(SystemExit, match=r"KUBERNETES=1\.20: wants one of 1\.33, 1\.34"):
        chosen_minor()
