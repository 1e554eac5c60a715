# SPDX-License-Identifier: Apache-2.0
"""Conditions of nodes: policy node selectors, form factors, withdrawn devices, unhealthy GPUs and stale labels."""

from dataclasses import replace
from typing import Any

import pytest

from app.nodes.model import Node
from app.placement.engine import judge, total
from app.policy.compiled import PolicySet
from tests.builders import demand, gpus, node, pod, policies, policy, ruling

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
POOL = "placement: {nodeSelector: {matchLabels: {pool: train}}}"
NOT_SPOT = "placement: {nodeSelector: {matchExpressions: [{key: spot, operator: DoesNotExist}]}}"
NO_HEALTH = policies(policy("p", "placement: {unknownFacts: Accept}"))


def refusal_code(made: Node, policy_set: PolicySet | None = None, document: dict[str, Any] | None = None) -> str | None:
    """Return the reason code of the refusal, or None if the node is accepted."""
    refusal = judge(demand(document or pod(), policy_set or NO_HEALTH), made, recount=True)
    return refusal.code.name if refusal else None


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        ({"pool": "train"}, None),
        ({"pool": "serve"}, "NodeExcluded"),
        ({}, "NodeExcluded"),
        ({"pool": "train", "spot": "true"}, "NodeExcluded"),
    ],
)
def test_node_must_suit_the_node_selectors_of_all_policies(labels: dict[str, str], refused: str | None) -> None:
    """F38: a further policy can only narrow the set of nodes."""
    chosen = policies(policy("pool", f"priority: 1, {POOL}"), policy("spot", f"priority: 2, {NOT_SPOT}"))

    assert refusal_code(node(labels=labels), chosen) == refused


def test_selectors_that_no_node_can_fulfil_together_are_a_conflict() -> None:
    """F38: admission refuses the pod and names both policies, instead of leaving the pod pending for ever."""
    other = "placement: {nodeSelector: {matchLabels: {pool: serve}}}"

    merged = ruling(pod(), policies(policy("a", f"priority: 1, {POOL}"), policy("b", f"priority: 2, {other}")))

    assert [conflict.message for conflict in merged.conflicts] == ["policy b and policy a select different nodes"]


@pytest.mark.parametrize(
    ("spec", "product", "refused"),
    [
        ("formFactor: [SXM]", "NVIDIA-H100-80GB-HBM3", None),
        ("formFactor: [SXM]", "Tesla-V100-SXM2-32GB", None),
        ("formFactor: [SXM]", "NVIDIA-H100-PCIe", "FormFactorNotAllowed"),
        ("formFactor: [PCIe]", "NVIDIA-H100-PCIe", None),
        ("formFactor: [PCIe]", "NVIDIA-GB200", "FormFactorNotAllowed"),
        ("formFactor: [SXM, superchip]", "NVIDIA-GB200", None),
        ("formFactor: [SXM]", "NVIDIA-XYZ-9000", None),
        ("formFactor: [SXM], unknownFacts: Refuse", "NVIDIA-XYZ-9000", "GPUFactsMissing"),
    ],
)
def test_form_factor_must_be_one_that_the_policy_allows(spec: str, product: str, refused: str | None) -> None:
    """F54: SXM2 to SXM6 count as SXM; an unknown product is accepted unless the policy refuses unknown facts."""
    assert refusal_code(node(product=product), policies(policy("p", f"placement: {{{spec}}}"))) == refused


@pytest.mark.parametrize(
    ("offers", "capacity", "document", "refused"),
    [
        pytest.param({GPU: 7}, {GPU: 8}, pod(gpus(7)), None, id="the healthy ones serve"),
        pytest.param({GPU: 7}, {GPU: 8}, pod(gpus(8)), "GPUUnhealthy", id="one short"),
        pytest.param({GPU: 7}, {GPU: 8}, pod(gpus(9)), "RequestExceedsNode", id="more than there ever were"),
        pytest.param({GPU: 0}, {GPU: 8}, pod(), "GPUUnhealthy", id="all withdrawn is no ghost"),
        pytest.param({GPU: 0}, {GPU: 0}, pod(), "GhostGPUs", id="a ghost has none in capacity either"),
        pytest.param({SLICE: 0}, {SLICE: 7}, pod(gpus(1, SLICE)), "GPUUnhealthy", id="a slice is not absent"),
    ],
)
def test_devices_that_the_plugin_withdrew_are_said_to_be_unhealthy(
    offers: dict[str, int], capacity: dict[str, int], document: dict[str, Any], refused: str | None
) -> None:
    """P41, F70: the node's capacity counts unhealthy devices, and its allocatable does not."""
    assert refusal_code(node(offers=offers, capacity=capacity), document=document) == refused


def node_with_sick_gpus(ill: int = 0, ailing: int = 0, **made: Any) -> Node:
    """Make a node for which DCGM reports unhealthy GPUs."""
    healthy = node(**made)
    return replace(healthy, node_class=replace(healthy.node_class, ill=ill, ailing=ailing))


MISSING, FLAPPING = {"GPUMissing": "True"}, {"IBLinkFlapping": "True"}
ONE_WITHDRAWN: dict[str, Any] = {"offers": {GPU: 7}, "capacity": {GPU: 8}}


@pytest.mark.parametrize(
    ("health", "made", "refused"),
    [
        pytest.param("{}", node_with_sick_gpus(ill=1), "GPUUnhealthy", id="ill, by default"),
        pytest.param("{ill: ScoreDown}", node_with_sick_gpus(ill=1), None, id="ill, scored down"),
        pytest.param("{}", node_with_sick_gpus(ill=1, **ONE_WITHDRAWN), None, id="the ill one is withdrawn already"),
        pytest.param("{}", node_with_sick_gpus(ill=2, **ONE_WITHDRAWN), "GPUUnhealthy", id="one of two is withdrawn"),
        pytest.param("{}", node_with_sick_gpus(ailing=1), None, id="ailing, by default"),
        pytest.param("{ailing: Refuse}", node_with_sick_gpus(ailing=1), "GPUUnhealthy", id="ailing, refused"),
        pytest.param("{unhealthyDevices: Refuse}", node(**ONE_WITHDRAWN), "GPUUnhealthy", id="withdrawn, refused"),
        pytest.param("{unhealthyDevices: Refuse}", node(), None, id="all healthy"),
        pytest.param("{}", node(conditions=MISSING), None, id="condition, by default"),
        pytest.param("{conditions: Refuse}", node(conditions=MISSING), "GPUUnhealthy", id="condition, refused"),
        pytest.param("{conditions: Refuse}", node(conditions=FLAPPING), None, id="condition of the network"),
        pytest.param("{conditions: Refuse}", node(conditions={"GPUMissing": "False"}), None, id="condition, good"),
    ],
)
def test_sick_gpus_are_refused_as_the_policy_says(health: str, made: Node, refused: str | None) -> None:
    """P41, F72, F70."""
    assert refusal_code(made, policies(policy("p", f"placement: {{health: {health}}}"))) == refused


def test_strictest_word_on_health_holds() -> None:
    """F72 (docs/reference/policy.md#merge)."""
    lax, strict = (f"placement: {{health: {{ailing: {word}}}}}" for word in ("Ignore", "Refuse"))

    both = policies(policy("lax", f"priority: 2, {lax}"), policy("strict", f"priority: 1, {strict}"))

    assert refusal_code(node_with_sick_gpus(ailing=1), both) == "GPUUnhealthy"


DOUBTFUL = {
    "ailing GPUs": node_with_sick_gpus(ailing=1),
    "withdrawn devices": node(**ONE_WITHDRAWN),
    "stale labels": node(offers={GPU: 4}, capacity={GPU: 4}),
    "a condition of the network": node(conditions=FLAPPING),
    "a driver upgrade to come": node(labels={"nvidia.com/gpu-driver-upgrade-state": "upgrade-required"}),
    "an upgrade state of tomorrow": node(labels={"nvidia.com/gpu-driver-upgrade-state": "a-state-of-tomorrow"}),
}
QUIET = policies(
    policy("p", "placement: {scores: [{name: DriverHeadroom}], health: {ailing: Ignore, conditions: Ignore}}")
)


@pytest.mark.parametrize("made", DOUBTFUL.values(), ids=list(DOUBTFUL))
def test_node_in_doubt_scores_half_of_one_that_is_not(made: Node) -> None:
    """F70, F72, F73, F44."""
    pod_demand = demand(pod(), policies(policy("p", "placement: {scores: [{name: DriverHeadroom}]}")))

    assert total(pod_demand, made) == total(pod_demand, node()) / 2


def test_node_of_a_faulty_condition_scores_less_than_one_that_serves_badly() -> None:
    """F72: a sixteenth, so that a node that is full and has an old driver still comes before it."""
    pod_demand = demand(pod(), policies(policy("p", "placement: {scores: [{name: DriverHeadroom}]}")))

    assert total(pod_demand, node(conditions=MISSING)) == total(pod_demand, node()) / 16


def test_health_that_the_policy_ignores_lowers_no_score() -> None:
    """F72."""
    pod_demand = demand(pod(), QUIET)

    assert total(pod_demand, node_with_sick_gpus(ailing=1)) == total(pod_demand, node())
    assert total(pod_demand, node(conditions=MISSING)) == total(pod_demand, node())


def test_one_gpu_of_a_shared_node_is_no_doubt_and_two_replicas_are() -> None:
    """F68: more replicas are not more GPU, so the score prefers whole GPUs for a pod that asks for two."""
    shared = node(product="NVIDIA-A10-SHARED", offers={GPU: 8})
    one, two = (demand(pod(gpus(amount)), QUIET) for amount in (1, 2))

    assert total(one, shared) == 1.0
    assert total(two, shared) == 0.5


@pytest.mark.parametrize(
    ("made", "stale"),
    [
        pytest.param({"capacity": {GPU: 8}}, False, id="as labelled"),
        pytest.param({"capacity": {GPU: 4}, "offers": {GPU: 4}}, True, id="half of them gone"),
        pytest.param({"capacity": {GPU: 0}, "offers": {GPU: 0}}, False, id="none at all is a ghost"),
        pytest.param({"capacity": {SLICE: 7}, "offers": {SLICE: 7}}, True, id="slices under labels of whole GPUs"),
        pytest.param(
            {"capacity": {GPU: 0, SLICE: 7}, "labels": {"nvidia.com/mig.strategy": "mixed"}}, False, id="mixed"
        ),
        pytest.param({"capacity": {GPU: 32}, "labels": {"nvidia.com/gpu.replicas": "4"}}, False, id="four replicas"),
        pytest.param({"capacity": {GPU: 8}, "labels": {"nvidia.com/gpu.replicas": "4"}}, True, id="replicas gone"),
        pytest.param({}, False, id="capacity not told"),
    ],
)
def test_labels_that_contradict_the_capacity_are_stale(made: dict[str, Any], stale: bool) -> None:
    """F73."""
    assert node(**made).node_class.stale is stale


@pytest.mark.parametrize(
    ("value", "refused"),
    [("paused-for-mig-change", "MIGReconfiguring"), ("paused-for-driver-upgrade", "DriverUpgrading"), ("true", None)],
)
def test_paused_device_plugin_tells_of_the_change_before_its_own_label_does(value: str, refused: str | None) -> None:
    """P15, F44, F45: MIG Manager and the driver manager pause the device plugin before they write a state label.

    Source: NVIDIA/gpu-operator controllers/state_manager.go.
    """
    assert refusal_code(node(labels={"nvidia.com/gpu.deploy.device-plugin": value})) == refused
