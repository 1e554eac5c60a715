# SPDX-License-Identifier: Apache-2.0
"""cluster-autoscaler's own simulation: would the template of a node group at zero be accepted for the pod we admitted?

The templates are those of groups.py; the simulator is upstream's. A group that can serve a pod must be accepted for it,
or the pod waits for ever (kubernetes/autoscaler issues 8341 and 4218).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import mutate
from app.nodes.model import Node
from app.placement.engine import judge
from app.whatif.node_template import node_template
from tests.builders import demand, fleet, gpus, knowledge, pod, setting
from tests.neighbours.groups import CLOUDS, CPU_NODES, GPU, Group
from tests.neighbours.programs import ask, find
from tests.whatif.test_template import node_from_template

NAME = "cluster-autoscaler"
IMAGE = "nvcr.io/nvidia/pytorch:24.06-py3"
CLASSES = ("training", "inference", "notebook", "batch-inference")
"""Those for which a policy is shipped; without one the default policy rules alone."""
WISHES: Mapping[str, Mapping[str, str]] = {
    "nothing": {},
    "products": {"products": "H100, H200"},
    "memory": {"gpu-memory": "60Gi"},
    "cuda": {"cuda": "12.4"},
    "exclusive": {"sharing": "Exclusive"},
    **{name: {"workload-class": name} for name in CLASSES},
}


@pytest.fixture(scope="module")
def program() -> Path:
    """The simulator; the tests skip, with the remedy, where there is none."""
    folder = find(NAME)
    if isinstance(folder, str):
        pytest.skip(folder)
    return folder


def written(wish: str, image: str = IMAGE, units: int = 1) -> dict[str, Any]:
    document = pod(gpus(units, image=image), annotations=WISHES[wish])
    return {**document, "metadata": {**document["metadata"], "name": wish}}


def admitted(document: dict[str, Any], *nodes: Node) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Admit a pod in a cluster with these nodes; return it as it is stored, and the warnings."""
    verdict = mutate(document, "team-a", {}, setting(None, fleet(*nodes, classes=["nvidia"])))
    assert verdict.allowed, verdict
    return apply(document, verdict.operations), verdict.warnings


def refusals(program: Path, pods: list[dict[str, Any]], templates: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Ask the simulator; return its refusal by the names of pod and group, "" where the group would serve the pod."""
    answer: Any = ask(program, NAME, {"pods": pods, "groups": templates})
    return answer  # type: ignore[no-any-return]


def fitting(wish: str, groups: tuple[Group, ...]) -> set[str]:
    """Name the groups whose nodes would serve a pod, by the engine that the extender asks."""
    pod_demand = demand(written(wish))
    return {group.name for group in groups if judge(pod_demand, group.node(), True) is None}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_group_at_zero_that_fits_may_be_scaled_up(program: Path, cloud: str) -> None:
    """S8, F10: no GPU node is there yet; policies, annotations and the image's needs are in the pod's affinity."""
    groups = CLOUDS[cloud]
    pods = [admitted(written(wish), CPU_NODES[cloud])[0] for wish in WISHES]

    said = refusals(program, pods, [group.template() for group in groups])

    refused = {wish: {name: said[wish][name] for name in fitting(wish, groups) if said[wish][name]} for wish in WISHES}
    assert {wish: names for wish, names in refused.items() if names} == {}
    assert all(fitting(wish, groups) for wish in WISHES)


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("up", range(3))
def test_pod_that_no_group_with_nodes_serves_is_served_by_a_group_at_zero(program: Path, cloud: str, up: int) -> None:
    """S8, F10: one group has a node, which GPU Feature Discovery has labelled and which does not serve the pod."""
    running, *zero = (CLOUDS[cloud][up], *CLOUDS[cloud][:up], *CLOUDS[cloud][up + 1 :])
    stuck = [wish for wish in WISHES if running.name not in fitting(wish, (running,))]
    pods = [admitted(written(wish), CPU_NODES[cloud], running.node())[0] for wish in stuck]

    said = refusals(program, pods, [group.template() for group in zero])

    refused = {
        wish: {name: said[wish][name] for name in fitting(wish, tuple(zero)) if said[wish][name]} for wish in stuck
    }
    assert {wish: names for wish, names in refused.items() if names} == {}


def test_group_of_another_product_is_not_scaled_up_where_the_clouds_labels_name_the_product(program: Path) -> None:
    """S8, F10: GKE's accelerator label is on the template."""
    groups = CLOUDS["GKE"]
    pods = [admitted(written(wish), CPU_NODES["GKE"])[0] for wish in ("products", "training")]

    said = refusals(program, pods, [group.template() for group in groups])

    accepted = {wish: {name for name, refusal in by_group.items() if not refusal} for wish, by_group in said.items()}
    assert accepted == {"products": {"gke-h100", "gke-h200"}, "training": {"gke-a100", "gke-h100", "gke-h200"}}
    assert "NodeAffinity" in said["products"]["gke-t4"]


@pytest.mark.parametrize("cloud", [cloud for cloud in CLOUDS if cloud != "GKE"])
def test_where_no_template_names_the_product_any_group_may_be_scaled_up_and_a_warning_says_so(
    program: Path, cloud: str
) -> None:
    """S8, F10, a limit: the autoscaler may bring a node of another product, which the extender then refuses."""
    groups = CLOUDS[cloud]
    document, warnings = admitted(written("products"), CPU_NODES[cloud])

    said = refusals(program, [document], [group.template() for group in groups])

    assert not any(said["products"].values())
    assert any("node affinity only prefers" in warning for warning in warnings)


def test_group_with_too_few_gpus_is_not_scaled_up(program: Path) -> None:
    """S8, F10: eight GPUs in one pod, of which a node of the T4 group has one."""
    groups = CLOUDS["EKS"]
    document, _ = admitted(written("nothing", units=8), CPU_NODES["EKS"])

    said = refusals(program, [document], [group.template() for group in groups])

    assert {name for name, refusal in said["nothing"].items() if not refusal} == {"eks-a100", "eks-h100", "eks-h200"}
    assert f"Insufficient {GPU}" in said["nothing"]["eks-t4"]


def test_group_with_the_advised_tags_is_scaled_up(program: Path) -> None:
    """S8, F124: `plan node-template` names tags; a group whose template has them serves the pod."""
    documents = [written(wish) for wish in WISHES]

    for document in documents:
        template = node_from_template(node_template(demand(document), document, knowledge()))
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", **template["status"]["allocatable"]}
        template["status"] |= {"allocatable": amounts, "capacity": amounts}
        said = refusals(program, [admitted(document, CPU_NODES["EKS"])[0]], [template])
        assert said == {document["metadata"]["name"]: {"new": ""}}
