# SPDX-License-Identifier: Apache-2.0
"""Access to a node's GPUs without requesting them, by privileged containers or by hostPath (F12, F14)."""

from typing import Any

import pytest

from app.admission.review import validate
from app.values.reasons import Code
from tests.builders import container, gpus, pod, policies, policy, setting, shipped

PRIVILEGED: dict[str, Any] = {"securityContext": {"privileged": True}}


def mounting(path: str) -> dict[str, Any]:
    """Make a pod with a hostPath volume."""
    return pod(container(), volumes=[{"name": "v", "hostPath": {"path": path}}])


def codes(document: dict[str, Any], spec: str = "admission: {visibleDevices: Deny, privileged: Deny}") -> list[Code]:
    """List the reason codes for which a pod is refused."""
    verdict = validate(document, "team-a", {}, setting(policies(policy("p", spec))))
    return [reason.code for reason in verdict.reasons]


@pytest.mark.parametrize(
    "path", ["/dev/nvidia0", "/dev/nvidiactl", "//dev/./nvidia-uvm", "/var/run/nvidia-container-devices/all"]
)
def test_volume_of_a_gpus_device_file_is_refused(path: str) -> None:
    assert codes(mounting(path)) == [Code.VisibleDevicesForbidden]


@pytest.mark.parametrize("path", ["/", "//", "/.", "/dev", "/dev/", "/./dev/."])
def test_volume_of_all_devices_is_refused_as_privileged_is(path: str) -> None:
    assert codes(mounting(path)) == [Code.NodeDevicesReached]
    assert codes(mounting(path), "admission: {visibleDevices: Deny}") == []


@pytest.mark.parametrize(
    "path", ["/dev/shm", "/dev/infiniband", "/data/dev/nvidia0", "/var/log", "/device", "/dev/null"]
)
def test_other_volumes_of_the_node_are_let_be(path: str) -> None:
    assert codes(mounting(path)) == []


def test_privileged_pod_without_a_gpu_is_refused_and_one_with_a_gpu_once() -> None:
    assert codes(pod(container(**PRIVILEGED))) == [Code.NodeDevicesReached]
    assert codes(pod(gpus(1, **PRIVILEGED))) == [Code.PrivilegedGPUPod]


@pytest.mark.parametrize("document", [pod(container(**PRIVILEGED)), mounting("/dev/nvidia0"), mounting("/dev")])
def test_shipped_policies_warn_and_let_in(document: dict[str, Any]) -> None:
    """The shipped policies refuse no pod that ran before."""
    verdict = validate(document, "team-a", {}, setting(shipped()))

    assert verdict.allowed
    assert len(verdict.warnings) == 1
