# SPDX-License-Identifier: Apache-2.0
"""The warning at apply that no node of the fleet can run a template."""

from dataclasses import replace
from typing import Any

import pytest

from app.admission.review import mutate
from app.admission.reviewed_pod import PodForm
from app.world.fleet_facts import FleetFacts
from tests.builders import fleet, gpus, node, pod, setting

NEW_IMAGE = "nvcr.io/nvidia/cuda:13.0.0-base-ubuntu24.04"
OLD = [node(f"old-{index}", driver="470.82.01") for index in range(3)]
SMALL = node("small", product="Tesla-T4", offers={"nvidia.com/gpu": 1}, driver="470.82.01")


OWNED = {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}]}


def warnings(facts: FleetFacts, form: PodForm = PodForm.Template, **metadata: Any) -> list[str]:
    context = replace(setting(fleet=facts), form=form)
    document = pod(gpus(2, image=NEW_IMAGE))
    document["metadata"] |= metadata
    result = mutate(document, "team-a", {}, context)
    return [warning for warning in result.warnings if "GPU nodes" in warning]


def test_template_that_no_node_can_run_is_told_at_apply() -> None:
    """F139, F19: the reason of the nearest nodes, with their number, as explain words it."""
    assert warnings(fleet(*OLD, SMALL)) == [
        "fits on none of 4 GPU nodes: CUDA driver too old: wants >= 580 (DriverTooOld, 3 nodes);"
        " upgrade the node's driver,"
        " or use an image built for an older CUDA"
    ]


def test_cause_is_that_of_the_nodes_with_an_allowed_product() -> None:
    """F139: and not that most nodes have another product, which the pod has not asked for."""
    old, *others = node("l4", product="NVIDIA-L4", driver="470.82.01"), *(node(f"h{index}") for index in range(3))

    warned = warnings(fleet(old, *others), annotations={"gpu-usher.io/products": "L4"})

    assert [warning.partition(";")[0] for warning in warned] == [
        "fits on none of 4 GPU nodes: CUDA driver too old: wants >= 580 (DriverTooOld, 1 node)"
    ]


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(fleet(*OLD, node("new", driver="580.65.06")), id="one node can"),
        pytest.param(
            fleet(*OLD, node("new", driver="580.65.06", labels={"nvidia.com/mig.config.state": "pending"})),
            id="one node can soon",
        ),
        pytest.param(
            fleet(*OLD, node("cloud", labels={"karpenter.sh/nodepool": "a"})), id="an autoscaler may bring one"
        ),
        pytest.param(FleetFacts(), id="no GPU node is known"),
    ],
)
def test_template_that_may_run_is_told_nothing(facts: FleetFacts) -> None:
    """F139."""
    assert warnings(facts) == []


def test_bare_pod_is_told_as_a_template_is() -> None:
    """F139: whoever creates it sees the answer."""
    assert warnings(fleet(*OLD), PodForm.Pod) == warnings(fleet(*OLD))


@pytest.mark.parametrize("form", [PodForm.Pod, PodForm.Ephemeral])
def test_pod_of_a_controller_is_told_by_its_events(form: PodForm) -> None:
    """F139: nobody sees the warnings about the pods that a controller creates, and ephemeral containers have none."""
    assert warnings(fleet(*OLD), form, **OWNED) == []
