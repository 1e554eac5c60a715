# SPDX-License-Identifier: Apache-2.0
"""Policies that clusters often have: namespaces without GPUs, memory limits, and CPU and memory per GPU."""

from collections.abc import Mapping
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate
from tests.builders import gpus, pod, policies, policy, setting

Object = dict[str, Any]
LABELS = {"team": "ml"}


def reviewed(spec: str, document: Object, labels: Mapping[str, str] = LABELS) -> ReviewResult:
    return mutate(document, "team-a", labels, setting(policies(policy("default", spec))))


def codes(result: ReviewResult) -> list[str]:
    return [reason.code.name for reason in result.reasons]


def with_memory(request: str | None, limit: str | None, name: str = "main", gpu: int | None = 1, **more: str) -> Object:
    made: Object = {"name": name, "image": "x", "resources": {"requests": dict(more), "limits": {}}}
    for side, amount in (("requests", request), ("limits", limit)):
        made["resources"][side] |= {"memory": amount} if amount else {}
        made["resources"][side] |= {"nvidia.com/gpu": str(gpu)} if gpu else {}
    return made


def memory_of(result: ReviewResult, document: Object) -> list[tuple[str | None, str | None]]:
    changed: Any = apply(document, result.operations)
    sides = [container.get("resources", {}) for container in changed["spec"]["containers"]]
    return [(side.get("requests", {}).get("memory"), side.get("limits", {}).get("memory")) for side in sides]


ONLY_ML = "match: {namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [ml]}]}}"


@pytest.mark.parametrize(
    ("labels", "refused"), [({"team": "ml"}, []), ({"team": "web"}, ["TooManyGPUs"]), ({}, ["TooManyGPUs"])]
)
def test_only_namespaces_with_a_label_may_have_gpus(labels: Mapping[str, str], refused: list[str]) -> None:
    """F163: maxGPUsPerPod: 0 in a policy that selects all other namespaces."""
    result = reviewed(f"{ONLY_ML}, priority: 1, admission: {{maxGPUsPerPod: 0}}", pod(gpus(1)), labels)

    assert codes(result) == refused


def test_refusal_says_that_the_namespace_may_have_none() -> None:
    """F163."""
    (refusal,) = reviewed("admission: {maxGPUsPerPod: 0}", pod(gpus(1))).reasons

    assert refusal.message == "asks for 1 GPUs; none are allowed here (policy default)"


@pytest.mark.parametrize(
    ("request_", "limit", "after"),
    [
        ("8Gi", "16Gi", ("16Gi", "16Gi")),
        ("8Gi", None, ("8Gi", "8Gi")),
        (None, "16Gi", ("16Gi", "16Gi")),
        ("16384Mi", "16Gi", ("16384Mi", "16Gi")),
        (None, None, (None, None)),
    ],
)
def test_memory_requests_are_made_equal_to_limits(request_: str | None, limit: str | None, after: object) -> None:
    """F163: the kubelet kills a container first that uses more than it requests."""
    document = pod(with_memory(request_, limit))

    result = reviewed("admission: {memoryRequests: UseLimits}", document)

    assert memory_of(result, document) == [after]


@pytest.mark.parametrize(
    ("main", "refused"),
    [
        (with_memory("8Gi", "16Gi"), ["MemoryRequestNotLimit"]),
        (with_memory("8Gi", None), ["MemoryRequestNotLimit"]),
        (with_memory(None, None), ["MemoryRequestNotLimit"]),
        (with_memory("16Gi", "16384Mi"), []),
        (with_memory("8Gi", "16Gi", gpu=None), []),
    ],
    ids=["less", "no limit", "neither", "equal", "no GPU"],
)
def test_memory_requests_other_than_limits_are_refused(main: Object, refused: list[str]) -> None:
    """F163."""
    assert codes(reviewed("admission: {memoryRequests: Deny}", pod(main))) == refused


def test_every_container_of_a_gpu_pod_is_looked_at() -> None:
    """F163: what a neighbour uses beyond its request is taken from the node of the GPU container."""
    result = reviewed(
        "admission: {memoryRequests: Deny}", pod(with_memory("1Gi", "1Gi"), with_memory("1Gi", "2Gi", "side", None))
    )

    assert [reason.message for reason in result.reasons] == [
        "container side requests less memory than its limit (policy default)"
    ]


BOUNDS = "admission: {perGPU: {minCPU: '2', maxCPU: '8', minMemory: 8Gi, maxMemory: 64Gi}}"


@pytest.mark.parametrize(
    ("cpu", "memory", "gpu", "refused"),
    [
        ("2", "8Gi", 1, 0),
        ("8", "64Gi", 1, 0),
        ("1900m", "8Gi", 1, 1),
        ("8001m", "8Gi", 1, 1),
        ("16", "16Gi", 2, 0),
        ("3", "16Gi", 2, 1),
        ("16", "200Gi", 2, 1),
        ("64", "1Gi", 4, 2),
    ],
)
def test_cpu_and_memory_are_bounded_for_each_gpu(cpu: str, memory: str, gpu: int, refused: int) -> None:
    """F163."""
    result = reviewed(BOUNDS, pod(with_memory(memory, None, gpu=gpu, cpu=cpu)))

    assert codes(result) == ["AmountPerGPUOutOfBounds"] * refused


def test_amounts_of_all_containers_count_against_the_bounds() -> None:
    """F163: kube-scheduler counts a sidecar's CPU too."""
    main, side = with_memory("8Gi", None, cpu="6"), with_memory("8Gi", None, "side", None, cpu="3")

    (refusal,) = reviewed(BOUNDS, pod(main, side)).reasons

    assert refusal.message == "requests more cpu than 8 for each of 1 GPU (policy default)"


def test_narrowest_bounds_of_all_policies_apply() -> None:
    """F11."""
    both = policies(
        policy("a", "priority: 2, admission: {perGPU: {minCPU: '1', maxCPU: '16'}}"),
        policy("b", "priority: 1, admission: {perGPU: {minCPU: '4', maxCPU: '32'}}"),
    )

    def refused(cpu: str) -> bool:
        document = pod(with_memory(None, None, cpu=cpu))
        return bool(mutate(document, "team-a", {}, setting(both)).reasons)

    assert [refused(cpu) for cpu in ("3", "4", "16", "17")] == [True, False, False, True]


def test_pod_without_gpus_has_no_bounds() -> None:
    """F22."""
    assert codes(reviewed(BOUNDS, pod(with_memory("1Gi", None, gpu=None)))) == []
