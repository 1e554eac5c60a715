# SPDX-License-Identifier: Apache-2.0
"""Right sizing: a pod for one GPU gets the smallest slice, or the smallest product, that holds its memory (F130).

See docs/reference/sharing-and-memory.md#mig-at-least.
"""

from dataclasses import replace
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import mutate
from app.nodes.model import Node
from tests.admission.mutated import admit, rules
from tests.admission.slices import GPU, LARGE, MIDDLE, SMALL, resources_after, slices, whole
from tests.builders import fleet, gpus, node, pod, setting

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
DEDICATED = [{"key": "dedicated", "value": "team-b", "effect": "NoSchedule"}]


def needs(memory: str = "10Gi", resource: str = GPU, amount: int = 1, **more: Any) -> dict[str, Any]:
    """Make a pod that states how much memory it needs."""
    annotations = {"gpu-memory": memory, **more.pop("annotations", {})}
    return pod(gpus(amount, resource), annotations=annotations, **more)


SIZED = rules("rightSizing: true")
MIXED = fleet(slices(SMALL, MIDDLE, LARGE), whole("NVIDIA-H100-80GB-HBM3"))


@pytest.mark.parametrize(
    ("memory", "expected"),
    [("1Gi", SMALL), ("10Gi", SMALL), ("11Gi", MIDDLE), ("20Gi", MIDDLE), ("40Gi", LARGE), ("44Gi", GPU)],
)
def test_one_gpu_becomes_the_smallest_slice_that_holds_the_memory(memory: str, expected: str) -> None:
    assert {expected} == resources_after(needs(memory), SIZED, MIXED)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(), id="no memory stated"),
        pytest.param(needs(amount=2), id="two GPUs"),
        pytest.param(needs(annotations={"sharing": "Exclusive"}), id="a whole GPU of its own"),
        pytest.param(needs(annotations={"interconnect": "NVLink"}), id="NVLink: slices have none"),
        pytest.param(needs(annotations={"mig-profile": ">=1g.10gb"}), id="says the profile itself"),
        pytest.param(needs(annotations={"products": "H100"}), id="a product that is not sliced"),
        pytest.param(needs(resource="nvidia.com/gpu.shared"), id="a share"),
        pytest.param(pod(gpus(1), gpus(1), annotations={"gpu-memory": "10Gi"}), id="two containers"),
    ],
)
def test_pod_that_needs_more_than_a_slice_keeps_its_gpu(document: dict[str, Any]) -> None:
    verdict = admit(document, SIZED, MIXED)

    assert document["spec"]["containers"] == apply(document, verdict.operations)["spec"]["containers"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param(["NVIDIA-L4", "NVIDIA-H100-80GB-HBM3"], ["NVIDIA-L4"], id="the smaller"),
        pytest.param(["NVIDIA-L4"], None, id="one product: nothing to choose"),
        pytest.param(["Tesla-T4", "NVIDIA-H100-80GB-HBM3"], None, id="the smaller one is too small"),
        pytest.param([], None, id="none"),
    ],
)
def test_smallest_product_is_preferred_where_there_is_no_slice(nodes: list[str], expected: list[str] | None) -> None:
    document = needs("20Gi")

    spec = apply(document, admit(document, SIZED, fleet(*map(whole, nodes))).operations)["spec"]

    preferred = spec.get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, [])
    products = [preference["preference"]["matchExpressions"][0]["values"] for preference in preferred]
    assert ([expected] if expected else []) == products


@pytest.mark.parametrize(("action", "spoken"), [("Warn", True), ("Audit", False), ("'Off'", False)])
def test_sizing_that_is_not_enforced_changes_nothing(action: str, spoken: bool) -> None:
    verdict = admit(needs(), rules("rightSizing: true", action), MIXED)

    assert needs()["spec"] == apply(needs(), verdict.operations)["spec"]
    assert spoken is any(SMALL in warning for warning in verdict.warnings)


def test_pod_is_judged_and_completed_by_the_resource_that_it_was_given() -> None:
    """The toleration is for the slice resource, and the affinity asks for no label of whole GPUs."""
    full = rules("rightSizing: true, tolerations: {fromNodeTaints: true}, affinity: {mode: Required}")

    spec = apply(needs(), admit(needs(), full, MIXED).operations)["spec"]

    assert [toleration["key"] for toleration in spec["tolerations"]] == [GPU, SMALL]
    assert "affinity" not in spec


CHOSEN = {"nvidia.com/gpu.product": "NVIDIA-L4"}
REQUIRED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4"]}]}
            ]
        }
    }
}


@pytest.mark.parametrize("placed", [{"nodeSelector": CHOSEN}, {"affinity": REQUIRED}], ids=["selector", "affinity"])
def test_slice_on_nodes_that_the_pod_excludes_is_not_given(placed: dict[str, Any]) -> None:
    assert {GPU} == resources_after(needs(**placed), SIZED, fleet(slices(SMALL), whole("NVIDIA-L4")))


def test_slice_behind_the_taint_of_another_team_is_not_given() -> None:
    assert {GPU} == resources_after(needs(), SIZED, fleet(slices(SMALL, taints=DEDICATED), whole("NVIDIA-L4")))


def test_slice_that_is_free_only_where_the_pod_may_not_run_is_not_taken_for_free() -> None:
    full = slices(SMALL, used=7, product="NVIDIA-H100-80GB-HBM3")
    elsewhere = replace(slices(SMALL), name="elsewhere")
    large = slices(MIDDLE, product="NVIDIA-H100-80GB-HBM3")
    document = needs(annotations={"products": "H100"})

    assert {MIDDLE} == resources_after(document, SIZED, fleet(full, elsewhere, large))


def test_products_of_the_same_least_memory_are_all_preferred() -> None:
    fleet_facts = fleet(
        whole("NVIDIA-L4", labels={"nvidia.com/gpu.memory": "23034"}),
        whole("NVIDIA-A10", labels={"nvidia.com/gpu.memory": "23034"}),
        whole("NVIDIA-H100-80GB-HBM3"),
    )

    spec = apply(needs("20Gi"), admit(needs("20Gi"), SIZED, fleet_facts).operations)["spec"]

    values = spec["affinity"]["nodeAffinity"][PREFERRED][0]["preference"]["matchExpressions"][0]["values"]
    assert sorted(values) == ["NVIDIA-A10", "NVIDIA-L4"]


@pytest.mark.parametrize("resource", ["amd.com/gpu", "gpu.intel.com/xe"])
@pytest.mark.parametrize("nodes", [[], [whole("NVIDIA-L4")]], ids=["unknown fleet", "none of that vendor yet"])
def test_memory_is_not_required_in_the_labels_of_another_vendor(resource: str, nodes: list[Node]) -> None:
    """F10, S12: for scale from zero; the filter accepts such a node, since its memory is not known."""
    document = needs("40Gi", resource)

    spec = apply(document, admit(document, rules("affinity: {mode: Required}"), fleet(*nodes)).operations)["spec"]

    assert "nvidia.com/" not in str(spec.get("affinity"))


@pytest.mark.parametrize(
    "expression",
    [
        {"operator": "in", "values": ["NVIDIA-A100-SXM4-40GB"]},
        {"values": ["NVIDIA-A100-SXM4-40GB"]},
        {"operator": "Exists", "values": None},
    ],
    ids=str,
)
def test_affinity_that_the_api_server_is_yet_to_refuse_is_no_error_of_ours(expression: dict[str, Any]) -> None:
    """F125: webhooks see a pod before its validation; the fuzz tests found a 500 for a misspelt operator."""
    terms = [{"matchExpressions": [{"key": "nvidia.com/gpu.product", **expression}]}]
    chosen = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    nodes = fleet(node("a", product="NVIDIA-A100-SXM4-40GB"), node("b"))
    document = pod(gpus(1), annotations={"gpu-memory": "10Gi"}, affinity=chosen)

    assert mutate(document, "team-a", {}, setting(fleet=nodes)).allowed
