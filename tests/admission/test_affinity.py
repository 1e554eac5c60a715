# SPDX-License-Identifier: Apache-2.0
"""Needs as node affinity: the expressions for each need in each dialect, and when they are only preferred (F10)."""

from typing import Any

import pytest

from app.nodes.model import Node
from tests.admission.affinity import GFD, H100, L4_BY_GKE, LABELS, admit, terms, wishing
from tests.builders import gpus, node, pod, policies, policy

KARPENTER = {"karpenter.k8s.aws/instance-gpu-name": "l4", "karpenter.k8s.aws/instance-gpu-memory": "22888"}
L4_BY_KARPENTER = node(product=None, driver=None, labels=KARPENTER)
UNLABELLED = node(product=None, driver=None)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(wishing(gpu_memory="80Gi"), [[f"{GFD}gpu.memory Gt 76184"]], id="memory, less its tolerance"),
        pytest.param(wishing(compute_capability="9.0"), [[f"{GFD}gpu.compute.major Gt 8"]], id="compute capability"),
        pytest.param(wishing(cuda="12.4"), [[f"{GFD}cuda.driver-version.major Gt 524"]], id="CUDA, by minor version"),
        pytest.param(pod(gpus(1, image="nvcr.io/nvidia/pytorch:24.06-py3")), [], id="CUDA of an image"),
        pytest.param(
            pod(gpus(1, image="nvcr.io/nvidia/pytorch:25.10-py3")), [], id="CUDA of an image, by forward compatibility"
        ),
        pytest.param(
            wishing(sharing="Exclusive"), [[f"{GFD}gpu.sharing-strategy NotIn mps,time-slicing"]], id="a whole GPU"
        ),
        pytest.param(pod(gpus(1, "nvidia.com/mig-1g.10gb"), annotations={"gpu-memory": "10Gi"}), [], id="a slice"),
        pytest.param(pod(), [], id="nothing asked"),
    ],
)
def test_need_is_written_in_gfds_words(document: dict[str, Any], expected: list[list[str]]) -> None:
    """F10: memory, driver, compute capability and sharing, with numeric operators."""
    assert expected == terms(document, H100, node(offers={"nvidia.com/mig-1g.10gb": 7}, labels=LABELS))


def test_needs_of_one_pod_stand_in_one_term_in_the_order_people_ask() -> None:
    document = wishing(products="H200", gpu_memory="80Gi", cuda="12.4", compute_capability="9.0", sharing="Exclusive")

    (term,) = terms(document, H100)

    keys = [
        "gpu.product",
        "gpu.product",
        "gpu.memory",
        "gpu.compute.major",
        "cuda.driver-version.major",
        "gpu.sharing-strategy",
    ]
    assert [f"{GFD}{key}" for key in keys] == [expression.split()[0] for expression in term]


def test_family_excludes_other_products_and_no_variant_of_its_own() -> None:
    """F10: a node to come may have a variant that no table has; clouds' other products are no reason to scale up."""
    (term,) = terms(wishing(products="A100"), H100)

    exists, refused = term[0], term[1].split()[2].split(",")
    assert exists == f"{GFD}gpu.product Exists"
    assert {"NVIDIA-H100-80GB-HBM3", "NVIDIA-L4", "Tesla-T4"} <= set(refused)
    assert not [label for label in refused if "A100" in label]


def test_closed_list_of_products_leaves_out_what_other_needs_refuse() -> None:
    """An A100 of 40 GB does not serve a pod for 80 GB, and a shared one does not serve a pod that wants a whole GPU."""
    named_products = "NVIDIA-A100-SXM4-40GB, NVIDIA-A100-SXM4-80GB"
    (term,) = terms(wishing(products=named_products, gpu_memory="80Gi", sharing="Exclusive"), H100)

    named = term[0].split()[2].split(",")
    assert "NVIDIA-A100-SXM4-80GB" in named
    assert not [label for label in named if "40GB" in label or "SHARED" in label or "MIG" in label]


def test_branch_that_an_image_refuses_whatever_its_minor_number_is_left_out() -> None:
    """The image of cuda 12.4 requires certain branches: 535 and 525 run it by minor version, and 545 does not."""
    nodes = [node(driver=f"{branch}.99.99", labels=LABELS) for branch in (535, 545, 550)]

    (term,) = terms(pod(gpus(1, image="nvidia/cuda:12.4.1-base-ubuntu22.04")), *nodes)

    assert f"{GFD}cuda.driver-version.major NotIn 545" in term


def test_provisioners_dialect_comes_last_and_no_term_mixes_two() -> None:
    """P16: Karpenter refuses terms with unknown keys, and of all terms it keeps the last one longest.

    It drops all other terms before it drops the first preference, which may have keys that it does not know.
    """
    second, first = terms(wishing(products="L4", cuda="12.4"), H100, L4_BY_KARPENTER)

    assert first == ["karpenter.k8s.aws/instance-gpu-name In l4"]
    assert all(expression.startswith(GFD) for expression in second)


def test_every_dialect_of_the_fleet_has_its_term() -> None:
    """F136, S8, S9."""
    written_terms = terms(wishing(gpu_memory="20Gi"), H100, L4_BY_KARPENTER, L4_BY_GKE)

    assert [term[0].split()[0] for term in written_terms] == [
        f"{GFD}gpu.memory",
        "cloud.google.com/gke-accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
    ]


def test_provisioner_without_gpu_nodes_is_known_by_its_cpu_nodes() -> None:
    """P16: in scale from zero, the first GPU node has yet to be created."""
    cpu = node(product=None, driver=None, offers={}, labels={"karpenter.k8s.aws/instance-family": "m7i"})

    assert "karpenter.k8s.aws/instance-gpu-name In l4" in terms(wishing(products="L4"), cpu)[-1]


def test_dialect_that_has_no_such_product_has_no_term() -> None:
    """A term without the need would match every node of the dialect."""
    written_terms = terms(wishing(products="A10", cuda="12.4"), node(product="NVIDIA-A10", labels=LABELS), L4_BY_GKE)

    assert [[expression.split()[0] for expression in term] for term in written_terms] == [
        [f"{GFD}gpu.product", f"{GFD}gpu.product", f"{GFD}cuda.driver-version.major"]
    ]


def test_policy_chooses_the_dialects() -> None:
    only = policies(policy("p", "admission: {affinity: {mode: Required, keys: [GKE]}}"))

    written_terms = terms(wishing(products="L4"), H100, policy_set=only)

    assert written_terms == [["cloud.google.com/gke-accelerator In nvidia-l4"]]


def test_nodes_with_deprecated_driver_labels_only_have_a_term_of_their_own() -> None:
    """P37, S3: GPU Feature Discovery before the rename writes such labels."""
    old = node(
        driver=None,
        labels={
            **LABELS,
            f"{GFD}cuda.driver.major": "550",
            f"{GFD}cuda.driver.minor": "54",
            f"{GFD}cuda.driver.rev": "14",
        },
    )

    written_terms = terms(wishing(cuda="12.4"), H100, old)

    assert [[f"{GFD}cuda.driver.major Gt 524"], [f"{GFD}cuda.driver-version.major Gt 524"]] == written_terms


def test_need_is_only_preferred_where_a_node_that_fits_has_no_label_at_all() -> None:
    """A node without any dialect must not be excluded if filter would accept it.

    See docs/reference/admission.md#affinity.
    """
    affinity, verdict = admit(wishing(gpu_memory="20Gi"), H100, UNLABELLED)

    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert any("node affinity only prefers" in warning for warning in verdict.warnings)


def test_one_need_that_a_node_cannot_tell_leaves_the_others_required() -> None:
    """On a node without the driver label, the product stays required."""
    silent = node(driver=None, labels=LABELS)

    affinity, _ = admit(wishing(products="H100", cuda="12.4"), H100, silent)

    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[f"{GFD}gpu.product"] * 2] == [
        [expression["key"] for expression in term["matchExpressions"]] for term in required
    ]
    (soft, *_) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [f"{GFD}cuda.driver-version.major"] == [
        expression["key"] for expression in soft["preference"]["matchExpressions"]
    ]


MPS_NODE = node("mps", product="Tesla-T4-SHARED", labels={"nvidia.com/gpu.sharing-strategy": "mps"})


@pytest.mark.parametrize(
    ("document", "nodes", "expected"),
    [
        pytest.param(pod(gpus(2)), [MPS_NODE, node()], [["nvidia.com/gpu.sharing-strategy NotIn mps"]], id="two"),
        pytest.param(pod(gpus(1), gpus(1)), [MPS_NODE, node()], [], id="one in each of two containers"),
        pytest.param(pod(gpus(2)), [node()], [], id="a fleet without MPS"),
    ],
)
def test_container_of_several_gpus_keeps_off_mps_shares(
    document: dict[str, Any], nodes: list[Node], expected: list[list[str]]
) -> None:
    """F10, F68: the kubelet would reject the pod on such a node, which kube-scheduler cannot know."""
    assert terms(document, *nodes) == expected
