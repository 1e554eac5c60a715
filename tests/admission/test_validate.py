# SPDX-License-Identifier: Apache-2.0
"""Validators: why a GPU pod is refused, with messages that name the container and the alternative (F8, F9, F26)."""

from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate, validate
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.values.reasons import ADMISSION_MESSAGE_LIMIT, Code
from tests.admission.mutated import rules
from tests.builders import container, fleet, gpus, node, pod, policies, policy, setting

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"


def judge(document: dict[str, Any], policy_set: PolicySet | None = None) -> ReviewResult:
    """Validate a Pod of team-a, by the shipped policies by default."""
    return validate(document, "team-a", {}, setting(policy_set))


def codes(document: dict[str, Any], policy_set: PolicySet | None = None) -> list[Code]:
    """List the reason codes of the refusals."""
    return [reason.code for reason in judge(document, policy_set).reasons]


def resources(words: str) -> PolicySet:
    """Make a policy about extended resources."""
    return rules(f"extendedResources: {{{words}}}")


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        pytest.param("500m", [Code.QuantityFractional], id="milli"),
        pytest.param("0.5", [Code.QuantityFractional], id="decimal"),
        pytest.param("1.5", [Code.QuantityFractional], id="one and a half"),
        pytest.param("1n", [Code.QuantityFractional], id="the smallest fraction"),
        pytest.param("-1", [Code.QuantityNegative], id="negative"),
        pytest.param("-500m", [Code.QuantityNegative], id="negative fraction"),
        pytest.param("1", [], id="one"),
        pytest.param("1000m", [], id="one, in milli"),
        pytest.param("1.0", [], id="one, as a decimal"),
        pytest.param("1k", [], id="a thousand"),
    ],
)
@pytest.mark.parametrize("resource", [GPU, SLICE, "amd.com/gpu"])
def test_gpus_come_in_whole_positive_numbers(resource: str, amount: str, expected: list[Code]) -> None:
    """Fault 36."""
    assert expected == codes(pod(gpus(amount, resource)))


@pytest.mark.parametrize("list_name", ["containers", "initContainers"])
def test_refusal_of_a_fraction_names_container_resource_and_alternatives(list_name: str) -> None:
    document = pod(gpus(1)) if list_name == "initContainers" else pod()
    document["spec"][list_name] = [gpus("500m") | {"name": "worker"}]

    (refusal,) = judge(document).reasons

    assert all(word in refusal.message for word in ("worker", GPU, "whole number"))
    assert all(word in refusal.remedy for word in ("MIG profile", "nvidia.com/gpu.shared"))
    assert len(refusal.message) < ADMISSION_MESSAGE_LIMIT


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(gpus(0)), id="zero in both"),
        pytest.param(pod(container({GPU: "0"})), id="zero limits"),
        pytest.param(pod(container(None, {GPU: "0"})), id="zero requests"),
        pytest.param(pod(gpus("0m")), id="zero in milli"),
        pytest.param(pod(container({"cpu": "500m"})), id="no GPU at all"),
        pytest.param(pod(container({"example.com/fpga": "500m"})), id="another extended resource"),
        pytest.param(pod(gpus(0), annotations={"cuda": "new"}), id="zero, with a bad annotation"),
    ],
)
def test_zero_is_no_gpu_pod(document: dict[str, Any]) -> None:
    for review in (mutate, validate):
        verdict = review(document, "team-a", {}, setting())

        assert not verdict.concerned
        assert verdict.allowed
        assert not verdict.operations


def test_pod_whose_limits_are_zero_becomes_a_cpu_pod_and_gets_nothing_else() -> None:
    document = pod(container({GPU: "0"}, {GPU: "1"}))

    after = apply(document, mutate(document, "team-a", {}, setting()).operations)

    assert set(document["spec"]) == set(after["spec"])


@pytest.mark.parametrize(
    ("words", "document", "expected"),
    [
        pytest.param("requestsOnly: Deny", pod(container(None, {GPU: "1"})), [Code.RequestsOnly], id="requests only"),
        pytest.param("requestsOnly: Deny", pod(), [], id="limits too"),
        pytest.param("requestsOnly: Deny", pod(container({GPU: "1"})), [], id="limits only"),
        pytest.param("requestsOnly: Leave", pod(container(None, {GPU: "1"})), [], id="requests only, left"),
        pytest.param(
            "mismatch: Deny", pod(container({GPU: "2"}, {GPU: "1"})), [Code.RequestLimitMismatch], id="they differ"
        ),
        pytest.param("mismatch: Deny", pod(container({GPU: "1"}, {GPU: "1000m"})), [], id="the same amount"),
        pytest.param("mismatch: Leave", pod(container({GPU: "2"}, {GPU: "1"})), [], id="they differ, left"),
        pytest.param("fractional: Deny", pod(gpus("500m")), [Code.QuantityFractional], id="fraction"),
        pytest.param("fractional: Leave", pod(gpus("500m")), [], id="fraction, left"),
    ],
)
def test_amounts_are_refused_where_the_policy_says_so(
    words: str, document: dict[str, Any], expected: list[Code]
) -> None:
    assert expected == codes(document, resources(words))


@pytest.mark.parametrize(
    ("containers", "most", "expected"),
    [
        pytest.param([gpus(4)], 4, [], id="exactly as many as allowed"),
        pytest.param([gpus(5)], 4, [Code.TooManyGPUs], id="one more"),
        pytest.param([gpus(2), gpus(3)], 4, [Code.TooManyGPUs], id="two containers"),
        pytest.param([gpus(3), gpus(2, SLICE)], 4, [Code.TooManyGPUs], id="GPUs and slices"),
        pytest.param([container(None, {GPU: "5"})], 4, [Code.TooManyGPUs], id="requests only"),
        pytest.param([gpus(1)], 0, [Code.TooManyGPUs], id="none is allowed"),
    ],
)
def test_more_gpus_than_the_policy_allows_are_refused(
    containers: list[dict[str, Any]], most: int, expected: list[Code]
) -> None:
    assert codes(pod(*containers), rules(f"maxGPUsPerPod: {most}")) == expected


def test_init_containers_count_as_kubernetes_counts_them() -> None:
    limited = rules("maxGPUsPerPod: 4")
    one_by_one = pod(gpus(4), initContainers=[gpus(4), gpus(3)])
    beside = pod(gpus(4), initContainers=[gpus(1, restartPolicy="Always")])

    reason_codes = [codes(one_by_one, limited), codes(beside, limited)]

    assert [[], [Code.TooManyGPUs]] == reason_codes


CAP = "admission: {maxGPUsPerPod: %s}"


@pytest.mark.parametrize(("action", "spoken"), [("Warn", True), ("Audit", False), ("'Off'", False)])
def test_stricter_policy_that_is_not_enforced_refuses_nothing(action: str, spoken: bool) -> None:
    trial = policies(policy("a", CAP % 8), policy("b", f"priority: 1, action: {action}, {CAP % 2}"))

    some, many = judge(pod(gpus(4)), trial), judge(pod(gpus(9)), trial)

    assert some.allowed
    assert not many.allowed
    assert spoken is bool(some.warnings)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({"cuda": "new"}, [Code.InvalidAnnotation], id="one"),
        pytest.param({"cuda": "new", "gpu-memory": "lots"}, [Code.InvalidAnnotation] * 2, id="two are both named"),
        pytest.param({"cuda": "12.4", "gpu-memory": "40Gi"}, [], id="none"),
        pytest.param({"products": "QQQQ-7777"}, [], id="an unknown product"),
        pytest.param({"mig-profile": "2g.20gb"}, [Code.InvalidAnnotation], id="another profile than the resource's"),
        pytest.param({"mig-profile": "1g.10gb"}, [], id="the resource's profile"),
        pytest.param({"mig-profile": ">=1g.10gb"}, [], id="at least a profile"),
    ],
)
def test_annotation_that_does_not_parse_is_refused(annotations: dict[str, str], expected: list[Code]) -> None:
    assert expected == codes(pod(gpus(1, SLICE), annotations=annotations))


@pytest.mark.parametrize(
    ("spec", "annotations", "expected"),
    [
        pytest.param("products: {allow: [H100]}", {"products": "L4"}, [Code.NoProductLeft], id="no product left"),
        pytest.param("sharing: Exclusive", {"sharing": "Shared"}, [Code.PolicyConflict], id="sharing contradicts"),
        pytest.param("products: {allow: [H100]}", {"products": "H100"}, [], id="agreed"),
    ],
)
def test_contradiction_is_refused(spec: str, annotations: dict[str, str], expected: list[Code]) -> None:
    assert expected == codes(pod(annotations=annotations), policies(policy("p", f"placement: {{{spec}}}")))


def test_both_webhooks_give_equal_reasons_for_equal_objects() -> None:
    document = pod(gpus("500m"), gpus(-1), annotations={"cuda": "new"})
    limited = rules("extendedResources: {fractional: Deny}, maxGPUsPerPod: 0")

    spoken = mutate(document, "team-a", {}, setting(limited))

    assert spoken.reasons == judge(document, limited).reasons
    assert len(spoken.reasons) >= 3


SHARES = rules("sharedReplicas: Deny")
TIME_SLICED = node("shared", product="NVIDIA-A10-SHARED", offers={GPU: 8})


@pytest.mark.parametrize(
    ("document", "nodes", "refused"),
    [
        pytest.param(pod(gpus(2, f"{GPU}.shared")), [], True, id="two of a shared resource"),
        pytest.param(pod(gpus(1, f"{GPU}.shared")), [], False, id="one of it"),
        pytest.param(pod(gpus(1, f"{GPU}.shared"), gpus(1, f"{GPU}.shared")), [], False, id="one in each container"),
        pytest.param(pod(gpus(2)), [TIME_SLICED], True, id="every GPU that would do is shared"),
        pytest.param(pod(gpus(2)), [TIME_SLICED, node("whole")], False, id="there are whole ones too"),
        pytest.param(pod(gpus(2)), [], False, id="no fleet in view"),
    ],
)
def test_several_replicas_of_shared_gpus_are_not_several_gpus(
    document: dict[str, Any], nodes: list[Node], refused: bool
) -> None:
    """F68: two replicas may belong to one GPU."""
    verdict = validate(document, "team-a", {}, setting(SHARES, fleet(*nodes)))

    assert [reason.code for reason in verdict.reasons] == [Code.SharedReplicasAskedAsGPUs] * refused


def test_shipped_policies_only_warn_of_replicas() -> None:
    """F68: the pod runs on most clusters, though not as its author expects."""
    verdict = judge(pod(gpus(2, f"{GPU}.shared")))

    assert not verdict.reasons
    assert any("2 replicas of shared GPUs" in warning for warning in verdict.warnings)
