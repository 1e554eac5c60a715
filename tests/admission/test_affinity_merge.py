# SPDX-License-Identifier: Apache-2.0
"""Node affinity together with the user's own, and with preferences and node selectors of policies (F10, F136)."""

from typing import Any

from app.admission.node_affinity import MOST_TERMS
from tests.admission.affinity import GFD, H100, L4_BY_GKE, admit, terms, wishing, written
from tests.builders import gpus, node, pod, policies, policy


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


def test_every_dialect_is_anded_into_every_term_of_the_user() -> None:
    rack = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    document = wishing(products="NVIDIA-L4")
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
    document = wishing(products="NVIDIA-L4")
    document["spec"]["affinity"] = required(*[ZONE] * (MOST_TERMS // 2 + 1))

    affinity, verdict = admit(document, H100, L4_BY_GKE)

    assert len(affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]) == MOST_TERMS // 2 + 1
    assert any("node affinity not added" in warning for warning in verdict.warnings)


def test_preferred_products_become_preferred_affinity_best_first() -> None:
    """F136: clusters with the webhook alone get the order of products without an extender."""
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
    """F136, F53: a better driver than needed is a preference."""
    affinity, _ = admit(pod(gpus(1, image="nvcr.io/nvidia/pytorch:24.05-py3")), H100)

    preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [
        (preference["weight"], *map(written, preference["preference"]["matchExpressions"])) for preference in preferred
    ] == [(100, f"{GFD}cuda.driver-version.major Gt 469"), (5, f"{GFD}cuda.driver-version.major Gt 549")]


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
    """F38, F10: in every dialect, with needs beside it or alone."""
    selector = ["pool In train", "spot DoesNotExist", "zone NotIn b,c"]

    alone = terms(pod(), node(labels={"pool": "train"}), policy_set=POOL)
    beside = terms(wishing(gpu_memory="40Gi"), node(labels={"nvidia.com/gpu.memory": "81559"}), policy_set=POOL)

    assert [sorted(selector)] == [sorted(term) for term in alone]
    assert all(set(selector) < set(term) for term in beside)
