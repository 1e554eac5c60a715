# SPDX-License-Identifier: Apache-2.0
"""The recipes for clouds: each overlay, flag, variable, port, label or taint that a row names exists.

No recipe was tried on its cloud; claims about a cloud itself are from its documentation.
"""

import re
from typing import Any

import pytest
import typer
import yaml

from app.cli.verbs import app
from app.settings import Settings
from tests.builders import knowledge
from tests.deploy.rendering import DEPLOY, OVERLAYS
from tests.deploy.test_hardening import deployment

README = (DEPLOY / "README.md").read_text("utf-8")
RECIPES = README.partition("\n## Recipes\n")[2].partition("\n## ")[0]
CLUSTERS = ("GKE", "EKS", "AKS", "kubeadm", "k3s")
COMMANDS = typer.main.get_command(app)


def rows() -> dict[str, tuple[str, str]]:
    """Return each cluster's overlay and note."""
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in RECIPES.splitlines() if line.startswith("| **")
    ]
    return {name.strip("*"): (overlay, note) for name, overlay, note in cells}


def code(text: str) -> list[str]:
    """List what stands in backquotes."""
    return re.findall(r"`([^`]+)`", text)


def parameters(verb: str) -> list[Any]:
    options: list[Any] = COMMANDS.commands[verb].params  # type: ignore[attr-defined]
    return options


def test_every_named_cluster_has_a_recipe() -> None:
    """P28, F118."""
    assert tuple(rows()) == CLUSTERS


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_overlay_and_components_of_a_recipe_exist(cluster: str) -> None:
    """F118."""
    overlay, _ = rows()[cluster]
    words = re.findall(r"[a-z][a-z/-]+", overlay)
    components = [word for word in words if word.startswith("components/")]

    named = [word for word in words if word in OVERLAYS]
    assert named
    assert set(words) <= {*named, *components, "or", "with"}
    assert all((DEPLOY / "overlays" / overlay_name / "kustomization.yaml").is_file() for overlay_name in named)
    assert all((DEPLOY / component / "kustomization.yaml").is_file() for component in components)


@pytest.mark.parametrize("command", [text for text in code(RECIPES) if text.startswith("gpu-usher ")])
def test_command_of_a_recipe_has_this_verb_and_these_flags(command: str) -> None:
    """F118."""
    _, verb, *words = command.partition(" > ")[0].split()
    flags = {flag for option in parameters(verb) for flag in option.opts}

    assert {word for word in words if word.startswith("--")} <= flags


def test_there_is_a_command_to_look_at() -> None:
    """F118: without one, the test above would check nothing."""
    assert "gpu-usher scheduler-config --for default" in RECIPES


def test_variables_of_recipes_are_those_of_serve() -> None:
    """F118."""
    variables = {option.envvar for option in parameters("serve")}

    named = set(re.findall(r"GPU_USHER_[A-Z_]+", README))
    assert "GPU_USHER_PORT" in named
    assert named <= variables


def test_ports_of_recipes_are_ours_or_the_kubelets() -> None:
    """F118, NET-02: GKE's control plane reaches nodes on 443 and 10250 only, so 8443 needs a firewall rule."""
    ports = {int(number) for number in re.findall(r"(?<![\d.:])\d{3,5}(?=[ ;,])", rows()["GKE"][1])}

    assert ports - {443, 10250} == {Settings().port}


def test_labels_of_recipes_are_those_that_facts_and_affinity_know() -> None:
    """F118, S9: rows shorten them: `-suffix` of the label before, and `*` for a family."""
    known_labels = {label for dialect in knowledge().clouds.dialects for label in dialect.gpu_label_keys()}
    gke = [text for text in code(rows()["GKE"][1]) if "gke-" in text or text.startswith("-gpu")]
    stem = gke[0].removesuffix("-accelerator")
    (karpenter,) = [text for text in code(rows()["EKS"][1]) if text.startswith("karpenter")]

    assert {f"{stem}{text}" if text.startswith("-") else text for text in gke} <= known_labels
    assert {label for label in known_labels if label.startswith(karpenter.removesuffix("*"))}


@pytest.mark.parametrize(
    ("cluster", "tolerated"),
    [("GKE", ["nvidia.com/gpu"]), ("EKS", ["nvidia.com/gpu"]), ("AKS", ["sku"])],
)
def test_taint_of_a_cloud_is_one_that_we_tolerate(cluster: str, tolerated: list[str]) -> None:
    """F118, F3, S9: the taint that the row says is not tolerated is not."""
    keys = {key for family in knowledge().families.all for key in family.taint_keys}
    note = rows()[cluster][1]
    taints = {text.partition("=")[0] for text in code(note) if re.search(r"=\w+(:NoSchedule)?$", text)}

    assert [key for key in taints if key in keys] == tolerated
    assert "kubernetes.azure.com/scalesetpriority" not in keys


def test_quota_of_gke_names_our_class_and_namespace() -> None:
    """F118."""
    (text,) = re.findall(r"```yaml\n(.*?)```", RECIPES, re.DOTALL)
    quota = yaml.safe_load(text)
    base = deployment("base")

    assert quota["metadata"]["namespace"] == base["metadata"]["namespace"]
    (expression,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert expression["values"] == [base["spec"]["template"]["spec"]["priorityClassName"]]
