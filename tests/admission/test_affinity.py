# SPDX-License-Identifier: Apache-2.0
"""Needs as node affinity: which words for which need, in whose dialect, and when only as a preference (F10, F136)."""

from collections.abc import Mapping
from typing import Any

import pytest

from app.admission.affinity.mutator import MOST_TERMS
from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from tests.builders import fleet, gpus, node, pod, policies, policy, setting

GFD = "nvidia.com/"
LABELS = {f"{GFD}gpu.memory": "81559", f"{GFD}gpu.compute.major": "9", f"{GFD}gpu.compute.minor": "0"}
H100 = node(labels=LABELS)
GKE = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
KARPENTER = {"karpenter.k8s.aws/instance-gpu-name": "l4", "karpenter.k8s.aws/instance-gpu-memory": "22888"}
L4_BY_GKE = node(product=None, driver=None, labels=GKE)
L4_BY_KARPENTER = node(product=None, driver=None, labels=KARPENTER)
UNLABELLED = node(product=None, driver=None)


def admit(
    document: dict[str, Any], *nodes: Node, policy_set: PolicySet | None = None
) -> tuple[dict[str, Any], ReviewResult]:
    """Admit a pod: (its node affinity afterwards, the verdict)."""
    verdict = mutate(document, "team-a", {}, setting(policy_set, fleet(*nodes, classes=["nvidia"])))
    admitted: Any = apply(document, verdict.operations)
    return admitted["spec"].get("affinity", {}).get("nodeAffinity", {}), verdict


def terms(document: dict[str, Any], *nodes: Node, policy_set: PolicySet | None = None) -> list[list[str]]:
    """List the required terms, each expression as `key operator values`."""
    affinity, _ = admit(document, *nodes, policy_set=policy_set)
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return [[written(expression) for expression in term["matchExpressions"]] for term in required]


def written(expression: Mapping[str, Any]) -> str:
    words = [expression["key"], expression["operator"], ",".join(expression.get("values", []))]
    return " ".join(filter(None, words))


def wishing(**annotations: str) -> dict[str, Any]:
    """Make a pod of one GPU with annotations; `_` for `-`."""
    return pod(annotations={key.replace("_", "-"): value for key, value in annotations.items()})


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
    slices = node(offers={"nvidia.com/mig-1g.10gb": 7}, labels=LABELS)

    assert expected == terms(document, H100, slices)


def test_needs_of_one_pod_stand_in_one_term_in_the_order_people_ask() -> None:
    document = wishing(products="H200", gpu_memory="80Gi", cuda="12.4", compute_capability="9.0", sharing="Exclusive")

    (term,) = terms(document, H100)

    keys = ["gpu.product", "gpu.memory", "gpu.compute.major", "cuda.driver-version.major", "gpu.sharing-strategy"]
    assert [f"{GFD}{key}" for key in keys] == [expression.split()[0] for expression in term]


def test_closed_list_of_products_leaves_out_what_other_needs_refuse() -> None:
    """A 40 GB A100 is no A100 for 80 GB; a shared one none for a pod that wants it whole."""
    (term,) = terms(wishing(products="A100", gpu_memory="80Gi", sharing="Exclusive"), H100)

    named = term[0].split()[2].split(",")
    assert "NVIDIA-A100-SXM4-80GB" in named
    assert not [label for label in named if "40GB" in label or "SHARED" in label or "MIG" in label]


def test_branch_that_an_image_refuses_whatever_its_minor_number_is_left_out() -> None:
    """cuda 12.4 carries its requirement inside: 535 and 525 by minor version, 545 not."""
    nodes = [node(driver=f"{branch}.99.99", labels=LABELS) for branch in (535, 545, 550)]

    (term,) = terms(pod(gpus(1, image="nvidia/cuda:12.4.1-base-ubuntu22.04")), *nodes)

    assert f"{GFD}cuda.driver-version.major NotIn 545" in term


def test_provisioners_dialect_comes_last_and_no_term_mixes_two() -> None:
    """P16: Karpenter refuses terms with keys that it does not know, and keeps the last one longest.

    It drops all others before it drops the first preference, which may be in words that it does not know.
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
    """P16: scale from zero: the first GPU node is still to be made."""
    cpu = node(product=None, driver=None, offers={}, labels={"karpenter.k8s.aws/instance-family": "m7i"})

    written_terms = terms(wishing(products="L4"), cpu)

    assert "karpenter.k8s.aws/instance-gpu-name In l4" in written_terms[-1]


def test_dialect_that_has_no_such_product_has_no_term() -> None:
    """A term without the need would let every node of the dialect in."""
    written_terms = terms(wishing(products="A10", cuda="12.4"), node(product="NVIDIA-A10", labels=LABELS), L4_BY_GKE)

    assert [[expression.split()[0] for expression in term] for term in written_terms] == [
        [f"{GFD}gpu.product", f"{GFD}cuda.driver-version.major"]
    ]


def test_policy_chooses_the_dialects() -> None:
    only = policies(policy("p", "admission: {affinity: {mode: Required, keys: [GKE]}}"))

    written_terms = terms(wishing(products="L4"), H100, policy_set=only)

    assert written_terms == [["cloud.google.com/gke-accelerator In nvidia-l4"]]


def test_nodes_with_deprecated_driver_labels_only_have_a_term_of_their_own() -> None:
    """P37, S3: GFD before the rename."""
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
    """A node without any dialect that filter would accept must not be excluded.

    See docs/reference/admission.md#affinity.
    """
    affinity, verdict = admit(wishing(gpu_memory="20Gi"), H100, UNLABELLED)

    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert any("only preferred by node affinity" in warning for warning in verdict.warnings)


def test_one_need_that_a_node_cannot_tell_leaves_the_others_required() -> None:
    """A node without the driver label: the product stays required."""
    silent = node(driver=None, labels=LABELS)

    affinity, _ = admit(wishing(products="H100", cuda="12.4"), H100, silent)

    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[f"{GFD}gpu.product"]] == [
        [expression["key"] for expression in term["matchExpressions"]] for term in required
    ]
    (soft, *_) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [f"{GFD}cuda.driver-version.major"] == [
        expression["key"] for expression in soft["preference"]["matchExpressions"]
    ]


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


def test_every_dialect_is_anded_into_every_term_of_the_user() -> None:
    rack = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    document = wishing(products="L4")
    document["spec"]["affinity"] = required(ZONE, rack, {})

    affinity, _ = admit(document, H100, L4_BY_GKE)

    made = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {} in made
    named = [(sorted(term), [expression["key"] for expression in term["matchExpressions"]]) for term in made if term]
    gke, gfd = "cloud.google.com/gke-accelerator", f"{GFD}gpu.product"
    assert named == [
        (["matchExpressions"], ["zone", gfd]),
        (["matchExpressions", "matchFields"], [gfd]),
        (["matchExpressions"], ["zone", gke]),
        (["matchExpressions", "matchFields"], [gke]),
    ]


def test_more_terms_than_a_person_would_read_are_left_to_the_extender() -> None:
    document = wishing(products="L4")
    document["spec"]["affinity"] = required(*[ZONE] * (MOST_TERMS // 2 + 1))

    affinity, verdict = admit(document, H100, L4_BY_GKE)

    assert len(affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]) == MOST_TERMS // 2 + 1
    assert any("node affinity left out" in warning for warning in verdict.warnings)


def test_preferred_products_become_preferred_affinity_best_first() -> None:
    """F136: webhook-only clusters get the order without an extender."""
    wish = "placement: {products: {prefer: [H200, H100, L4]}}, admission: {affinity: {mode: Required}}"

    affinity, _ = admit(pod(), H100, L4_BY_GKE, policy_set=policies(policy("p", wish)))

    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    by_gfd = [
        (preference["weight"], preference["preference"]["matchExpressions"][0]["values"][0])
        for preference in affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        if preference["preference"]["matchExpressions"][0]["key"] == f"{GFD}gpu.product"
    ]
    assert by_gfd == [(50, "NVIDIA-H200"), (30, "NVIDIA-H100"), (10, "NVIDIA-L4")]


def test_driver_that_runs_an_image_natively_is_preferred() -> None:
    """F136, F53: better than needed is a preference."""
    affinity, _ = admit(pod(gpus(1, image="nvcr.io/nvidia/pytorch:24.05-py3")), H100)

    preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [
        (preference["weight"], *map(written, preference["preference"]["matchExpressions"])) for preference in preferred
    ] == [
        (100, f"{GFD}cuda.driver-version.major Gt 469"),
        (5, f"{GFD}cuda.driver-version.major Gt 549"),
    ]


def test_need_of_a_policy_that_only_warns_is_told_and_not_written() -> None:
    """F20."""
    warn = policies(
        policy("d", "admission: {affinity: {mode: Required}}"),
        policy("w", "action: Warn, placement: {products: {allow: [H200]}}"),
    )

    affinity, verdict = admit(pod(), H100, policy_set=warn)

    assert affinity == {}
    assert any(
        warning.startswith("not done, policy only warns: required node affinity") for warning in verdict.warnings
    )


POOL = policies(
    policy(
        "p",
        "admission: {affinity: {mode: Required}}, placement: {nodeSelector: {matchLabels: {pool: train}, "
        "matchExpressions: [{key: spot, operator: DoesNotExist}, {key: zone, operator: NotIn, values: [c, b]}]}}",
    )
)


def test_node_selector_of_a_policy_stands_in_every_term_in_the_operators_own_words() -> None:
    """F38, F10: whatever the dialect, beside the needs or alone."""
    selector = ["pool In train", "spot DoesNotExist", "zone NotIn b,c"]

    alone = terms(pod(), node(labels={"pool": "train"}), policy_set=POOL)
    beside = terms(wishing(gpu_memory="40Gi"), node(labels={"nvidia.com/gpu.memory": "81559"}), policy_set=POOL)

    assert [sorted(selector)] == [sorted(term) for term in alone]
    assert all(set(selector) < set(term) for term in beside)


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
    """F10, F68: the kubelet would reject the pod, and a plain scheduler cannot know."""
    assert terms(document, *nodes) == expected
