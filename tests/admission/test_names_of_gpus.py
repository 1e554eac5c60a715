# SPDX-License-Identifier: Apache-2.0
"""GPUs under other names: DeviceClass, extended resource of a class, or passed through to a VM (S13, F26)."""

from typing import Any

import pytest

from app.admission.review import ReviewResult, mutate, validate
from app.values.reasons import Code
from app.world.state import State
from tests.admission.mutated import rules
from tests.builders import gpus, knowledge, pod, policies, policy, setting

DRIVEN = {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}
NETWORK = {"selectors": [{"cel": {"expression": "device.driver == 'nic.example.com'"}}]}
IMPLICIT = "deviceclass.resource.kubernetes.io/"
PASSED_ON = "nvidia.com/GH100_H100_PCIE"


def state() -> State:
    """Make a cluster with DeviceClasses of its own."""
    made = State(knowledge())
    classes = {
        "gpu.nvidia.com": DRIVEN,
        "big": {**DRIVEN, "extendedResourceName": "example.com/gpu"},
        "nic": {**NETWORK, "extendedResourceName": "example.com/nic"},
    }
    for name, spec in classes.items():
        made.devices.put_device_class({"metadata": {"name": name}, "spec": spec})
    return made


def judged(*containers: dict[str, Any], spec: str = "admission: {maxGPUsPerPod: 4}") -> ReviewResult:
    """Validate a pod on that cluster."""
    context = setting(policies(policy("p", spec)), state=state())
    return validate(pod(*containers), "team-a", {}, context)


@pytest.mark.parametrize(
    "resource",
    [
        pytest.param(f"{IMPLICIT}gpu.nvidia.com", id="class of the driver's chart"),
        pytest.param(f"{IMPLICIT}big", id="class of the cluster's own"),
        pytest.param("example.com/gpu", id="extended resource of a class"),
        pytest.param(PASSED_ON, id="passed on to a virtual machine"),
        pytest.param("nvidia.com/GRID_T4-1Q", id="vGPU of a virtual machine"),
        pytest.param("nvidia.com/2330", id="by its PCI device ID"),
    ],
)
def test_gpus_are_counted_whatever_their_name(resource: str) -> None:
    """F26: the limit is four, so five are refused and four are not."""
    codes = {count: [reason.code for reason in judged(gpus(count, resource)).reasons] for count in (4, 5)}

    assert codes == {4: [], 5: [Code.TooManyGPUs]}


def test_gpus_of_several_names_add_up() -> None:
    """F26."""
    two = judged(gpus(2, "nvidia.com/gpu"), gpus(2, f"{IMPLICIT}big"), gpus(1, PASSED_ON))

    assert [reason.code for reason in two.reasons] == [Code.TooManyGPUs]


@pytest.mark.parametrize(
    "resource",
    [f"{IMPLICIT}nic", "example.com/nic", f"{IMPLICIT}unheard-of", "nvidia.com/hostdev", "nvidia.com/mlnxnics"],
)
def test_network_devices_are_no_gpus(resource: str) -> None:
    assert not judged(gpus(8, resource)).concerned


@pytest.mark.parametrize("resource", [f"{IMPLICIT}big", "example.com/gpu", PASSED_ON])
def test_guards_of_gpu_pods_hold_for_them(resource: str) -> None:
    """F14."""
    one = gpus(1, resource) | {"securityContext": {"privileged": True}}

    assert [reason.code for reason in judged(one, spec="admission: {privileged: Deny}").reasons] == [
        Code.PrivilegedGPUPod
    ]


def test_class_that_goes_is_forgotten() -> None:
    made = state()
    made.devices.drop_device_class("big")
    context = setting(rules("maxGPUsPerPod: 4"), state=made)

    assert not validate(pod(gpus(8, "example.com/gpu")), "team-a", {}, context).concerned


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("nvidia-gpu", "nvidia.com/gpu"),
        ("requests.nvidia.com/gpu", "nvidia.com/gpu"),
        ("NVIDIA.com/gpu", "nvidia.com/gpu"),
        ("amdgpu", "amd.com/gpu"),
        ("pids", "names resource pids, which the API server refuses"),
    ],
)
def test_name_that_the_api_server_refuses_is_refused_with_the_one_that_is_meant(name: str, meant: str) -> None:
    """F8: kubernetes pkg/apis/core/validation/validation.go validateContainerResourceName; each a pod without a GPU."""
    for judge in (mutate, validate):
        reasons = judge(pod(gpus(1, name)), "team-a", {}, setting()).reasons

        assert [reason.code for reason in reasons] == [Code.ResourceNameInvalid]
        assert meant in reasons[0].message


@pytest.mark.parametrize(
    "name", ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "rdma/hca", "nvidia.com/gpu", "nvidia.com/GH100_X",
             "alpha.kubernetes.io/nvidia-gpu", "example.com/a_b.c-d"],
)  # fmt: skip
def test_name_that_the_api_server_takes_is_not_refused(name: str) -> None:
    """F8."""
    assert not validate(pod(gpus(1, name)), "team-a", {}, setting()).reasons


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("nvidia.com/gpus", True),
        ("nvidia/gpu", True),
        ("nvidia.com/GPU", True),
        ("alpha.kubernetes.io/nvidia-gpu", True),
        ("amd.com/gpus", True),
        ("intel.com/gpu", True),
        ("nvidia.com/gpu", False),
        ("nvidia.com/gpumem", False),
        ("volcano.sh/vgpu-number", False),
        ("nvidia.com/pgpu", False),
        (PASSED_ON, False),
        ("rdma/hca", False),
    ],
)
def test_name_that_only_looks_like_a_gpu_is_warned_of_and_changed_by_nothing(name: str, warned: bool) -> None:
    """F8, F22: what a wrong name means is a guess, so that it is told alone."""
    result = mutate(pod(gpus(1, name)), "team-a", {}, setting())

    assert any("did you mean" in warning for warning in result.warnings) is warned
    assert warned <= (not result.operations)
    assert result.allowed
