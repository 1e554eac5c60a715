# SPDX-License-Identifier: Apache-2.0
"""Container defaults: CPU, memory, /dev/shm and driver capabilities that a GPU container does not state (F9, F12,
F129)."""

from typing import Any

import pytest

from app.admission.json_patch import apply
from app.policy.compiled import PolicySet
from app.values.errors import BadInput
from tests.admission.mutated import admit, rules, spec_of
from tests.builders import container, gpus, pod, policies, policy

GPU = "nvidia.com/gpu"
SHM = {"name": "gpu-usher-shm", "mountPath": "/dev/shm"}
VOLUME = {"name": "gpu-usher-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
OTHER = {"name": "HOME", "value": "/root"}


def defaults(words: str, more: str = "", action: str = "Enforce") -> PolicySet:
    """Make a policy with container defaults alone."""
    return rules(f"defaults: {{{words}}}{more}", action)


CPU = defaults("cpuPerGPU: '4', memoryPerGPU: 16Gi")
SHARED = defaults("sharedMemory: 8Gi")
DRIVER = defaults("driverCapabilities: 'compute,utility'")
OVERRIDE = ", override: true"


def amounts(given: dict[str, Any], policy_set: PolicySet = CPU) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the requests and limits of the one container after admission, without GPUs."""
    (after,) = spec_of(pod(given), policy_set)["containers"]
    sides = (after["resources"].get(side) or {} for side in ("requests", "limits"))
    requests, limits = ({key: value for key, value in side.items() if key != GPU} for side in sides)
    return requests, limits


FULL = {"cpu": "4", "memory": "16Gi"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(gpus(1), (FULL, {}), id="nothing said"),
        pytest.param(gpus(3), ({"cpu": "12", "memory": "48Gi"}, {}), id="for each GPU"),
        pytest.param(container({GPU: "1"}), (FULL, {}), id="limits only"),
        pytest.param(
            container({GPU: "1"}, {GPU: "1", "cpu": "1"}), ({"cpu": "1", "memory": "16Gi"}, {}), id="CPU said"
        ),
        pytest.param(container({GPU: "1", "cpu": "1"}), ({"memory": "16Gi"}, {"cpu": "1"}), id="CPU limited"),
        pytest.param(gpus(2, "nvidia.com/mig-1g.10gb"), None, id="slices count as GPUs"),
        pytest.param(gpus(0), ({}, {}), id="zero GPUs"),
        pytest.param(container({"memory": "1Gi"}), ({}, {"memory": "1Gi"}), id="no GPU"),
    ],
)
def test_cpu_and_memory_are_requested_for_each_gpu_unless_said(given: dict[str, Any], expected: Any) -> None:
    requests, limits = amounts(given)

    if expected is None:
        assert (requests["cpu"], requests["memory"]) == ("8", "32Gi")
    else:
        assert expected == (requests, limits)


def test_only_containers_that_ask_for_gpus_get_cpu_and_memory() -> None:
    document = pod(gpus(1), container(), initContainers=[gpus(2), gpus(1, restartPolicy="Always"), container()])

    spec = spec_of(document, CPU)

    requests = [
        container["resources"].get("requests", {}).get("cpu")
        for container in spec["initContainers"] + spec["containers"]
    ]
    assert requests == ["8", "4", None, "4", None]


@pytest.mark.parametrize(
    ("pod_level", "expected"),
    [
        pytest.param({"requests": {"cpu": "8"}}, {"memory": "16Gi"}, id="CPU for the pod as a whole"),
        pytest.param({"limits": {"cpu": "8", "memory": "1Gi"}}, {}, id="both limited"),
        pytest.param({"requests": None}, FULL, id="null requests"),
        pytest.param({}, FULL, id="empty"),
        pytest.param(None, FULL, id="null"),
    ],
)
def test_what_the_pod_asks_as_a_whole_is_not_asked_again(pod_level: Any, expected: dict[str, str]) -> None:
    """F16, KEP-2837."""
    (after,) = spec_of(pod(gpus(1), resources=pod_level), CPU)["containers"]

    assert expected == {key: value for key, value in after["resources"]["requests"].items() if key != GPU}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"cpu": "1", "memory": "1Gi"}, (FULL, {}), id="requests replaced"),
        pytest.param({"cpu": "4000m", "memory": "16384Mi"}, ({"cpu": "4000m", "memory": "16384Mi"}, {}), id="equal"),
        pytest.param({"cpu": "64", "memory": "1Ti"}, (FULL, {}), id="more is replaced too"),
    ],
)
def test_override_replaces_what_the_container_requests(given: dict[str, str], expected: Any) -> None:
    changed_amounts = amounts(
        container({GPU: "1"}, {GPU: "1", **given}), defaults("cpuPerGPU: '4', memoryPerGPU: 16Gi", OVERRIDE)
    )

    assert expected == changed_amounts


@pytest.mark.parametrize(("limit", "expected"), [("1", "4"), ("8", "8"), ("4", "4")], ids=["less", "more", "equal"])
def test_limit_below_the_request_is_raised_to_it(limit: str, expected: str) -> None:
    given = container({GPU: "1", "cpu": limit}, {GPU: "1", "cpu": "1"})

    assert ({"cpu": "4"}, {"cpu": expected}) == amounts(given, defaults("cpuPerGPU: '4'", OVERRIDE))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500m", "1500m"), ("1.5", "4.5"), ("0.5", "1.5"), (".5", "1.5"), ("1e1", "3e1"), ("2k", "6k")],
)
def test_amounts_for_several_gpus_keep_their_suffix(text: str, expected: str) -> None:
    requests, _ = amounts(gpus(3), defaults(f"cpuPerGPU: '{text}'"))

    assert requests == {"cpu": expected}


@pytest.mark.parametrize("text", ["0", "-1", "lots", ""])
def test_amount_that_is_none_is_refused_with_the_policy(text: str) -> None:
    with pytest.raises(BadInput, match="cpuPerGPU"):
        defaults(f"cpuPerGPU: '{text}'")


def test_pods_of_two_gpus_get_shared_memory_in_every_gpu_container() -> None:
    """F129."""
    cache = {"name": "cache", "mountPath": "/cache"}
    document = pod(gpus(1), gpus(1, volumeMounts=[cache]), container(), volumes=[{"name": "cache"}])

    spec = spec_of(document, SHARED)

    assert spec["volumes"] == [{"name": "cache"}, VOLUME]
    assert [container.get("volumeMounts") for container in spec["containers"]] == [[SHM], [cache, SHM], None]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(gpus(1)), id="one GPU"),
        pytest.param(pod(gpus(1), initContainers=[gpus(1)]), id="one after the other"),
        pytest.param(pod(container()), id="none"),
        pytest.param(pod(gpus(2, volumeMounts=[{"name": "mine", "mountPath": "/dev/shm"}])), id="mounted by the user"),
        pytest.param(pod(gpus(2, volumeMounts=[{"name": "mine", "mountPath": "/dev/shm/"}])), id="with a slash"),
    ],
)
def test_shared_memory_is_not_given_where_nobody_needs_it_or_somebody_has_it(document: dict[str, Any]) -> None:
    assert document["spec"] == spec_of(document, SHARED)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(gpus(1), [{"name": CAPABILITIES, "value": "compute,utility"}], id="nothing said"),
        pytest.param(gpus(1, env=[OTHER]), [OTHER, {"name": CAPABILITIES, "value": "compute,utility"}], id="others"),
        pytest.param(
            gpus(1, env=[{"name": CAPABILITIES, "value": ""}]), [{"name": CAPABILITIES, "value": ""}], id="set"
        ),
        pytest.param(
            gpus(1, env=[{"name": CAPABILITIES, "valueFrom": {"fieldRef": {}}}]),
            [{"name": CAPABILITIES, "valueFrom": {"fieldRef": {}}}],
            id="from elsewhere",
        ),
        pytest.param(container(), None, id="no GPU"),
    ],
)
def test_driver_capabilities_are_said_where_the_container_does_not(given: dict[str, Any], expected: Any) -> None:
    """F12."""
    (after,) = spec_of(pod(given), DRIVER)["containers"]

    assert expected == after.get("env")


def test_each_default_is_that_of_the_highest_priority_that_sets_it() -> None:
    two = policies(
        policy("low", "admission: {defaults: {cpuPerGPU: '1', memoryPerGPU: 1Gi}}"),
        policy("high", "priority: 1, admission: {defaults: {cpuPerGPU: '2'}}"),
    )

    assert amounts(gpus(1), two) == ({"cpu": "2", "memory": "1Gi"}, {})


@pytest.mark.parametrize(("action", "spoken"), [("Warn", True), ("Audit", False), ("'Off'", False)])
def test_defaults_that_are_not_enforced_change_nothing(action: str, spoken: bool) -> None:
    """F20."""
    words = "cpuPerGPU: '4', sharedMemory: 8Gi, driverCapabilities: compute"

    verdict = admit(pod(gpus(2)), defaults(words, action=action))

    assert pod(gpus(2))["spec"] == apply(pod(gpus(2)), verdict.operations)["spec"]
    assert spoken is bool(verdict.warnings)


def test_override_of_one_policy_never_arms_the_default_of_another() -> None:
    two = policies(
        policy("high", "priority: 1, admission: {override: true, defaults: {cpuPerGPU: '4'}}"),
        policy("low", "admission: {defaults: {memoryPerGPU: 8Gi}}"),
    )
    mine = container({GPU: "1"}, {GPU: "1", "memory": "64Gi"})

    assert amounts(mine, two) == ({"cpu": "4", "memory": "64Gi"}, {})


def test_override_replaces_driver_capabilities() -> None:
    mine = gpus(1, env=[{"name": CAPABILITIES, "value": "all"}])

    (after,) = spec_of(pod(mine), defaults("driverCapabilities: compute", OVERRIDE))["containers"]

    assert after["env"] == [{"name": CAPABILITIES, "value": "compute"}]


def test_shared_memory_of_the_host_is_not_covered() -> None:
    document = pod(gpus(2), hostIPC=True)

    assert document["spec"] == spec_of(document, SHARED)


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [gpus(2)], "resources": {"requests": 5}},
        {"containers": [gpus(2, volumeMounts=5)]},
        {"containers": [gpus(2, volumeMounts="x")]},
        {"containers": [gpus(2, volumeMounts={"x": "y"})]},
    ],
    ids=["pod-level requests", "mounts number", "mounts text", "mounts object"],
)
def test_shape_that_kubernetes_would_refuse_is_bad_input(spec: dict[str, Any]) -> None:
    every = defaults("cpuPerGPU: '4', sharedMemory: 8Gi")

    with pytest.raises(BadInput):
        admit(pod() | {"spec": spec}, every)
