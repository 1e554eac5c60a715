# SPDX-License-Identifier: Apache-2.0
"""Node groups at zero: an autoscaler judges them by a template without labels of GPU Feature Discovery (F10).

cluster-autoscaler runs NodeAffinity on the template (kubernetes/autoscaler issues 8341 and 4218). An expression that
requires such a label keeps the group at zero for ever, and one that only excludes values does not.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from app.admission.review import ReviewResult
from app.nodes.model import Node
from tests.admission.affinity import admit, terms, wishing
from tests.builders import gpus, node, pod
from tests.oracles.node_affinity import eligible

GFD = "nvidia.com/"
EKS = {"eks.amazonaws.com/nodegroup": "cpu", "node.kubernetes.io/instance-type": "m7i.large"}
GPU_LABELS = {f"{GFD}gpu.memory": "15360", f"{GFD}gpu.compute.major": "7", f"{GFD}gpu.compute.minor": "5"}
CPU_NODE = node("cpu", product=None, driver=None, offers={}, labels=EKS)
T4: dict[str, Any] = {"product": "Tesla-T4", "labels": {**EKS, **GPU_LABELS}}
TEMPLATES: Mapping[str, Mapping[str, str]] = {
    "EKS": {"eks.amazonaws.com/nodegroup": "gpu", "node.kubernetes.io/instance-type": "p5.48xlarge"},
    "AKS": {"kubernetes.azure.com/agentpool": "gpu", "kubernetes.azure.com/accelerator": "nvidia"},
    "OKE": {"oci.oraclecloud.com/fault-domain": "FD-1", "node.kubernetes.io/instance-type": "BM.GPU.H100.8"},
    "GKE": {"cloud.google.com/gke-nodepool": "gpu", "cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
    "nobody": {"kubernetes.io/os": "linux"},
}
IMAGE = gpus(1, image="nvcr.io/nvidia/pytorch:24.06-py3")


def admitted(document: dict[str, Any], *nodes: Node) -> tuple[dict[str, Any], ReviewResult]:
    affinity, verdict = admit(document, *nodes)
    return {"spec": {**document["spec"], "affinity": {"nodeAffinity": affinity}}}, verdict


@pytest.mark.parametrize("labels", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([CPU_NODE], id="no GPU node"),
        pytest.param([], id="nodes unknown"),
        pytest.param([CPU_NODE, node("t4", driver="550.54.15", **T4)], id="one labelled pool up"),
        pytest.param([CPU_NODE, node("t4", driver="470.57.02", **T4)], id="one labelled pool up, its driver too old"),
        pytest.param([node("h100")], id="no cloud"),
    ],
)
def test_need_inferred_from_an_image_leaves_every_template_eligible(
    nodes: list[Node], labels: Mapping[str, str]
) -> None:
    """The user did not state the need, so would not look for it as the cause."""
    document, verdict = admitted(pod(IMAGE), *nodes)

    assert eligible(document, labels, "template")
    assert not [warning for warning in verdict.warnings if "affinity" in warning or "template" in warning]


def test_need_inferred_from_an_image_excludes_the_drivers_that_nodes_have_and_it_cannot_use() -> None:
    nodes = [node(f"d{driver[:3]}", driver=driver, **T4) for driver in ("450.80.02", "470.57.02", "550.54.15")]

    assert terms(pod(IMAGE), CPU_NODE, *nodes) == [[f"{GFD}cuda.driver-version.major NotIn 450,470"]]


def test_deprecated_driver_label_is_excluded_where_a_node_has_no_other() -> None:
    old = {**GPU_LABELS, f"{GFD}cuda.driver.major": "470", f"{GFD}cuda.driver.minor": "57"}
    nodes = [node("old", driver=None, labels=old), node("new", driver="550.54.15", labels=GPU_LABELS)]

    assert terms(pod(IMAGE), *nodes) == [[f"{GFD}cuda.driver.major NotIn 470"]]


@pytest.mark.parametrize(
    ("document", "excluded"),
    [
        pytest.param(wishing(products="NVIDIA-H100-80GB-HBM3"), [[f"{GFD}gpu.product NotIn Tesla-T4"]], id="product"),
        pytest.param(
            wishing(gpu_memory="80Gi"),
            [[f"{GFD}gpu.product NotIn Tesla-T4", f"{GFD}gpu.memory NotIn 15360"]],
            id="memory",
        ),
        pytest.param(wishing(cuda="13.0"), [[f"{GFD}cuda.driver-version.major NotIn 550"]], id="CUDA"),
    ],
)
def test_declared_need_that_no_node_meets_excludes_them_and_asks_nothing_of_groups_to_come(
    document: dict[str, Any], excluded: list[list[str]]
) -> None:
    """A group of the wanted kind may be at zero beside a labelled one; a warning says that the rest is preferred."""
    nodes = [CPU_NODE, node("t4", driver="550.54.15", **T4)]

    after, verdict = admitted(document, *nodes)

    assert terms(document, *nodes) == excluded
    assert all(eligible(after, labels, "template") for labels in TEMPLATES.values())
    assert not eligible(after, nodes[1].labels, "t4")
    assert any("node affinity only prefers" in warning for warning in verdict.warnings)


def test_declared_need_that_a_node_meets_is_required_and_told_where_groups_may_be_at_zero() -> None:
    """The user stated the need; a warning says which label may keep a group at zero."""
    document = wishing(gpu_memory="10Gi")

    _, verdict = admitted(document, CPU_NODE, node("t4", driver="550.54.15", **T4))

    assert terms(document, CPU_NODE, node("t4", driver="550.54.15", **T4)) == [[f"{GFD}gpu.memory Gt 9522"]]
    assert f"a node group at zero nodes grows only if its node template has: {GFD}gpu.memory" in verdict.warnings


@pytest.mark.parametrize(("nodes", "warned"), [([node("h100")], False), ([], True)], ids=["a rack", "no node is known"])
def test_declared_need_is_required_and_warned_of_where_no_node_shows_that_there_are_no_groups(
    nodes: list[Node], warned: bool
) -> None:
    """A rack has no groups at zero: new nodes get their labels from the same labeller as the present ones.

    Where no node is known, a warning says which label a template would need.
    """
    document = wishing(products="NVIDIA-H200")

    _, verdict = admitted(document, *nodes)

    assert [[expression.split()[:2] for expression in term] for term in terms(document, *nodes)] == [
        [[f"{GFD}gpu.product", "In"]]
    ]
    told = f"a node group at zero nodes grows only if its node template has: {GFD}gpu.product"
    assert [one for one in verdict.warnings if "template" in one or "preferred" in one] == [told] * warned


def test_needs_that_only_exclude_stand_in_one_term_whatever_the_dialects() -> None:
    """Expressions of the dialects beside them would exclude groups that have neither."""
    gke = node("gke", product=None, driver=None, labels={"cloud.google.com/gke-accelerator": "nvidia-l4"})

    (term,) = terms(wishing(sharing="Exclusive"), gke, node("h100"))

    assert {expression.split()[1] for expression in term} == {"NotIn", "DoesNotExist"}


STATES = {"mig.config.state": "success", "gpu-driver-upgrade-state": "upgrade-done", "gpu.deploy.device-plugin": "true"}


@pytest.mark.parametrize("key", STATES)
def test_states_in_which_a_node_is_being_changed_are_excluded_where_an_operator_writes_them(key: str) -> None:
    """An edit of the label activates a pod that NodeAffinity refused; a pod that only an extender refused may wait
    long."""
    (term,) = terms(pod(), node("h100", labels={GFD + key: STATES[key]}))

    keys = [f"{GFD}{label}" for label in STATES]
    assert [expression.split()[:2] for expression in term] == [[key, "NotIn"] for key in keys]
    assert not [expression for expression in term if STATES[key] in expression.split()[2].split(",")]


def test_states_stand_in_every_term_and_let_every_template_in() -> None:
    operated = node("h100", labels={f"{GFD}mig.config.state": "success", f"{GFD}gpu.memory": "81559"})
    gke = node("gke", product=None, driver=None, labels={"cloud.google.com/gke-accelerator": "nvidia-l4"})

    written_terms = terms(wishing(products="L4,H100"), operated, gke)
    plain, _ = admitted(pod(), operated)

    assert len(written_terms) == 2
    assert all(
        any(expression.startswith(f"{GFD}mig.config.state NotIn") for expression in term) for term in written_terms
    )
    assert all(eligible(plain, labels, "template") for labels in TEMPLATES.values())
    assert eligible(plain, operated.labels, "h100")
    assert not eligible(plain, {**operated.labels, f"{GFD}mig.config.state": "pending"}, "h100")


COREWEAVE = {"compute.coreweave.com/node-pool": "h200", "node.kubernetes.io/instance-type": "gd-8xh200ib-i128"}


@pytest.mark.parametrize("gfd", [True, False], ids=["labelled by GFD", "labelled by the cloud alone"])
@pytest.mark.parametrize("wish", [{"products": "H200"}, {"gpu_memory": "120Gi"}], ids=["product", "memory"])
def test_labels_that_the_clouds_autoscaler_does_not_know_before_a_node_exists_are_not_required(
    wish: dict[str, str], gfd: bool
) -> None:
    """F10: a pool of H200 at zero beside one of H100 that is up; gpu.nvidia.com/class is on running nodes alone."""
    labels = {**COREWEAVE, "compute.coreweave.com/node-pool": "h100", "gpu.nvidia.com/class": "H100_NVLINK_80GB"}
    h100 = node("h100", labels={**labels, f"{GFD}gpu.memory": "81559"})
    by_cloud = node("h100", product=None, driver=None, labels=labels)

    document, verdict = admitted(wishing(**wish), h100 if gfd else by_cloud)

    assert eligible(document, COREWEAVE, "template")
    assert not eligible(document, (h100 if gfd else by_cloud).labels, "h100")
    assert any("node affinity only prefers" in warning for warning in verdict.warnings)
