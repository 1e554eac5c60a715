# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster needs the extender: the answer is what the engine refuses and node affinity does not."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.doctor.extender_need import ExtenderNeed, extender_need, kinds_of_pods, need_record
from app.doctor.fleet_checks import FindingLevel
from app.kube.pods import read_pod
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.values.reasons import Code
from tests.builders import fleet, gpus, knowledge, node, pod, policies, policy, ruling

GPU = "nvidia.com/gpu"
AFFINITY = policy("base", "admission: {affinity: {mode: Required}}")
NO_AFFINITY = policy("base", 'admission: {affinity: {mode: "Off"}}')
SHARED = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.memory": "24000", "nvidia.com/gpu.count": "1"}
SLICED: dict[str, Any] = {"product": "NVIDIA-L4-SHARED", "offers": {GPU: 4}, "labels": SHARED}


def need_of(
    nodes: list[Node], *documents: dict[str, Any], policy_set: PolicySet, health_reported: bool = False
) -> ExtenderNeed:
    pods = [(read_pod(document), ruling(document, policy_set)) for document in documents]
    kinds = kinds_of_pods(pods, policy_set, nodes, fleet(*nodes), knowledge())
    return extender_need(kinds, nodes, health_reported)


def codes(need: ExtenderNeed) -> tuple[set[Code], set[Code]]:
    """Return what only the extender refuses, and what node affinity refuses."""
    return {refused.code for refused in need.by_extender}, {refused.code for refused in need.by_affinity}


def annotated(**annotations: str) -> dict[str, Any]:
    return pod(annotations={name.replace("_", "-"): value for name, value in annotations.items()})


H100, T4 = node("h100"), node("t4", product="Tesla-T4", offers={GPU: 4})


def test_product_is_kept_off_by_affinity_alone() -> None:
    """F87."""
    need = need_of([H100, T4], annotated(products="H100"), policy_set=policies(AFFINITY))

    assert codes(need) == (set(), {Code.ProductNotAllowed})
    [record] = need_record(need)
    assert (record.level, record.nodes, record.objects) == (FindingLevel.Info, (), ())
    assert record.remedy == "gpu-usher scheduler-config --no-extender"


def test_without_affinity_the_same_need_is_the_extenders() -> None:
    """F87: the answer is that of the policies in force."""
    need = need_of([H100, T4], annotated(products="H100"), policy_set=policies(NO_AFFINITY))

    assert codes(need) == ({Code.ProductNotAllowed}, set())
    [record] = need_record(need)
    assert (record.nodes, record.objects) == (("t4",), ("Pod team-a/p",))
    assert record.what == (
        "of 2 kinds of GPU pods the extender alone refuses: ProductNotAllowed on 1 node (Pod team-a/p). "
        "Node affinity alone refuses: nothing"
    )


def test_minor_driver_version_is_told_by_no_label_that_affinity_can_compare() -> None:
    """F87, F35: 525.60.13 is enough for CUDA 12, 525.60.11 is not, and both have the label 525."""
    enough, too_old = node("enough", driver="525.60.13"), node("old", driver="525.60.11")
    need = need_of([enough, too_old], annotated(cuda="12.0"), policy_set=policies(AFFINITY))

    assert codes(need) == ({Code.DriverTooOld}, set())


def test_memory_budget_is_the_extenders_before_any_pod_has_taken_of_it() -> None:
    """F87: no label says what pods have declared."""
    sliced = node("sliced", **SLICED)
    need = need_of([sliced], annotated(gpu_memory="8Gi"), policy_set=policies(AFFINITY))

    [refused] = need.by_extender
    assert (refused.code, refused.when) == (
        Code.GPUMemoryBudgetExceeded,
        "once other pods have declared its memory",
    )


def test_memory_that_no_pod_declares_needs_no_budget() -> None:
    """F87."""
    assert need_of([node("sliced", **SLICED)], pod(), policy_set=policies(AFFINITY)).by_extender == ()


def test_health_is_the_extenders_only_where_an_exporter_reports_it() -> None:
    """F87."""
    with_exporter, without = (
        need_of([H100], pod(), policy_set=policies(AFFINITY), health_reported=reported) for reported in (True, False)
    )

    assert codes(with_exporter) == ({Code.GPUUnhealthy}, set())
    assert codes(without) == (set(), set())


def test_health_that_a_policy_ignores_needs_no_extender() -> None:
    """F87."""
    ignoring = policies(AFFINITY, policy("calm", "placement: {health: {ill: Ignore}}"))
    assert codes(need_of([H100], pod(), policy_set=ignoring, health_reported=True)) == (set(), set())


def test_what_a_node_does_not_offer_and_a_cordoned_node_need_nobody() -> None:
    """F87: kube-scheduler refuses these nodes itself."""
    cordoned = replace(T4, unschedulable=True)
    need = need_of([H100, cordoned], pod(gpus(1, "amd.com/gpu")), policy_set=policies(NO_AFFINITY))

    assert codes(need) == (set(), set())


def test_policy_that_no_pod_has_yet_counts_with_those_for_every_pod() -> None:
    """F87: affinity is set by one policy, the need by another."""
    training = policy(
        "training", "match: {namespaceSelector: {matchLabels: {a: b}}}, placement: {products: {allow: [H100]}}"
    )
    need = need_of([H100, T4], policy_set=policies(AFFINITY, training))

    assert codes(need) == (set(), {Code.ProductNotAllowed})
    [refused] = need.by_affinity
    assert refused.whose == (f"policy training: {GPU}",)


def test_policy_of_a_workload_class_is_asked_with_that_class() -> None:
    """F87."""
    training = policy(
        "training", "priority: 50, match: {workloadClass: [training]}, placement: {products: {allow: [H100]}}"
    )
    need = need_of([H100, T4], policy_set=policies(AFFINITY, training))

    assert [refused.whose for refused in need.by_affinity] == [(f"policy training: {GPU}",)]


def test_fleet_without_gpu_pods_and_policies_has_no_answer() -> None:
    """F87."""
    empty: Mapping[str, Any] = {}
    cpu = node("cpu", product=None, driver=None, offers=dict(empty))

    need = need_of([cpu], policy_set=policies(AFFINITY))

    assert need_record(need) == ()
