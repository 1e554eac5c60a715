# SPDX-License-Identifier: Apache-2.0
"""The recipes for clouds: what a row names exists, be it an overlay, a flag, a variable, a port, a label or a taint.

How far that goes: no recipe was tried on its cloud; what is claimed of a cloud itself is from its documentation.
"""

import re
from typing import Any

import pytest
import typer
import yaml

from app.cli.main import app
from app.settings import Settings
from tests.builders import knowledge
from tests.deploy.rendering import DEPLOY, OVERLAYS
from tests.deploy.test_hardening import deployment

README = (DEPLOY / "README.md").read_text("utf-8")
RECIPES = README.partition("\n## Recipes\n")[2].partition("\n## ")[0]
CLUSTERS = ("GKE", "EKS", "AKS", "kubeadm", "k3s")
COMMANDS = typer.main.get_command(app)


def rows() -> dict[str, tuple[str, str]]:
    """Give each cluster's overlay and note."""
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in RECIPES.splitlines() if line.startswith("| **")
    ]
    return {name.strip("*"): (overlay, note) for name, overlay, note in cells}


def code(text: str) -> list[str]:
    """List what stands in backquotes."""
    return re.findall(r"`([^`]+)`", text)


def parameters(verb: str) -> list[Any]:
    found: list[Any] = COMMANDS.commands[verb].params  # type: ignore[attr-defined]
    return found


def test_every_named_cluster_has_a_recipe() -> None:
    """P28, F118."""
    assert tuple(rows()) == CLUSTERS


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_overlay_and_components_of_a_recipe_exist(cluster: str) -> None:
    """F118."""
    overlay, _ = rows()[cluster]
    words = re.findall(r"[a-z][a-z/-]+", overlay)
    components = [each for each in words if each.startswith("components/")]

    named = [each for each in words if each in OVERLAYS]
    assert named
    assert set(words) <= {*named, *components, "or", "with"}
    assert all((DEPLOY / "overlays" / each / "kustomization.yaml").is_file() for each in named)
    assert all((DEPLOY / each / "kustomization.yaml").is_file() for each in components)


@pytest.mark.parametrize("command", [each for each in code(RECIPES) if each.startswith("gpu-usher ")])
def test_command_of_a_recipe_has_this_verb_and_these_flags(command: str) -> None:
    """F118."""
    _, verb, *words = command.partition(" > ")[0].split()
    flags = {flag for each in parameters(verb) for flag in each.opts}

    assert {each for each in words if each.startswith("--")} <= flags


def test_there_is_a_command_to_look_at() -> None:
    """F118: else the test above would be empty."""
    assert "gpu-usher scheduler-config --for default" in RECIPES


def test_variables_of_recipes_are_those_of_serve() -> None:
    """F118."""
    variables = {each.envvar for each in parameters("serve")}

    named = set(re.findall(r"GPU_USHER_[A-Z_]+", README))
    assert "GPU_USHER_PORT" in named
    assert named <= variables


def test_ports_of_recipes_are_ours_or_the_kubelets() -> None:
    """F118, NET-02: GKE's control plane reaches nodes on 443 and 10250, so 8443 wants a rule."""
    ports = {int(each) for each in re.findall(r"(?<![\d.:])\d{3,5}(?=[ ;,])", rows()["GKE"][1])}

    assert ports - {443, 10250} == {Settings().port}


def test_labels_of_recipes_are_those_that_facts_and_affinity_know() -> None:
    """F118, S9: in short, as the rows have them: `-suffix` of the label before, `*` for a family."""
    known = {label for dialect in knowledge().clouds.dialects for label in dialect.gpu_label_keys()}
    gke = [each for each in code(rows()["GKE"][1]) if "gke-" in each or each.startswith("-gpu")]
    stem = gke[0].removesuffix("-accelerator")
    (karpenter,) = [each for each in code(rows()["EKS"][1]) if each.startswith("karpenter")]

    assert {f"{stem}{each}" if each.startswith("-") else each for each in gke} <= known
    assert {label for label in known if label.startswith(karpenter.removesuffix("*"))}


@pytest.mark.parametrize(
    ("cluster", "tolerated"),
    [("GKE", ["nvidia.com/gpu"]), ("EKS", ["nvidia.com/gpu"]), ("AKS", ["sku"])],
)
def test_taint_of_a_cloud_is_one_that_we_tolerate(cluster: str, tolerated: list[str]) -> None:
    """F118, F3, S9: and the one that the row says we do not is not."""
    keys = {key for family in knowledge().families.all for key in family.taint_keys}
    note = rows()[cluster][1]
    taints = {each.partition("=")[0] for each in code(note) if re.search(r"=\w+(:NoSchedule)?$", each)}

    assert [each for each in taints if each in keys] == tolerated
    assert "kubernetes.azure.com/scalesetpriority" not in keys


def test_quota_of_gke_names_our_class_and_namespace() -> None:
    """F118."""
    (text,) = re.findall(r"```yaml\n(.*?)```", RECIPES, re.DOTALL)
    quota = yaml.safe_load(text)
    base = deployment("base")

    assert quota["metadata"]["namespace"] == base["metadata"]["namespace"]
    (wanted,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert wanted["values"] == [base["spec"]["template"]["spec"]["priorityClassName"]]
