# SPDX-License-Identifier: Apache-2.0
"""An image that requires more of the driver than a node has: what NVIDIA's container toolkit does, and what we do."""

import pytest

from tests.controlplane.kubectl import Object
from tests.e2e.stage import create_namespace, create_pod, eventually, read_pod, wait_for_refusal
from tests.realnodes.claim_stage import explained
from tests.realnodes.cluster import Cluster
from tests.realnodes.results import REQUIREMENTS, Results
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase

GPU = "nvidia.com/gpu"
NO_LIBRARY = "find binary nvidia-container-cli in PATH"
REFUSAL = "NVIDIA_REQUIRE_CUDA refuses this driver: wants CUDA >= 99.0, or what else it names"
UNMET = {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=99.0"}
REQUIREMENT = (
    "requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version, "
    "or use an earlier cuda container"
)
MISMATCH = "initialization error: nvml error: driver/library version mismatch"
C_LIBRARY = f"""#!/bin/sh
case "$*" in *--require=cuda*) error='{REQUIREMENT}' ;; *) error='{MISMATCH}' ;; esac
echo "nvidia-container-cli: $error" >&2
exit 1
"""
"""In place of nvidia-container-cli: its errors (NVIDIA/libnvidia-container src/cli/configure.c), by its arguments."""


@pytest.fixture(scope="module")
def unguarded(cluster: Cluster) -> str:
    """A namespace that gpu-usher leaves alone."""
    return create_namespace(cluster.plane, "requirements", **{"gpu_usher.io__ignore": "true"})


def demanding_pod(namespace: str, **spec: object) -> Object:
    return container_pod("demanding", namespace, {GPU: 1}, env=[UNMET], **spec)


def test_toolkit_starts_what_the_driver_cannot_run(cluster: Cluster, unguarded: str, results: Results) -> None:
    """F31: in its default mode the toolkit checks no requirement (NVIDIA/nvidia-container-toolkit issue 1470)."""
    pod = demanding_pod(unguarded, nodeName="node-1", runtimeClassName="nvidia")
    create_pod(cluster.plane, pod)
    wait_for_phase(cluster, pod)
    seen = read_seen(cluster, pod)
    delete_pod(cluster, pod)

    assert len(seen.gpus) == 1
    results.add_requirement(
        REQUIREMENTS[0], "the container starts and can open its GPU: nothing checks the requirement"
    )


def test_toolkit_in_legacy_mode_needs_the_c_library(cluster: Cluster, unguarded: str, results: Results) -> None:
    """F31: the hook hands requirements to nvidia-container-cli of libnvidia-container, which the Go proxy lacks."""
    node = cluster.nodes["node-1"]
    pod = demanding_pod(unguarded, nodeName=node.name, runtimeClassName="nvidia")
    node.toolkit.configure(mode="legacy")
    try:
        create_pod(cluster.plane, pod)
        eventually("its container fails", lambda: NO_LIBRARY in str(read_pod(cluster.plane, pod)["status"]))
        delete_pod(cluster, pod)
    finally:
        node.toolkit.configure()

    said = f"*couldn't {NO_LIBRARY}*: that program is C and would check the requirement; not to be had here"
    results.add_requirement(REQUIREMENTS[1], f"RunContainerError, {said}")


def test_start_errors_of_the_c_library_are_explained_also_while_the_kubelet_backs_off(
    cluster: Cluster, unguarded: str
) -> None:
    """F83: as runc and the kubelet pass them on, with words of their own before and after."""
    node = cluster.nodes["node-1"]
    program = node.folder / "nvidia-container-cli"
    program.write_text(C_LIBRARY, "utf-8")
    program.chmod(0o755)
    place = {"nodeName": node.name, "runtimeClassName": "nvidia"}
    mismatched, demanding = container_pod("mismatched", unguarded, {GPU: 1}, **place), demanding_pod(unguarded, **place)
    node.toolkit.configure(mode="legacy", command=str(program))
    try:
        for pod in (mismatched, demanding):
            create_pod(cluster.plane, pod)
        first = {
            pod["metadata"]["name"]: explained_when(cluster, pod, "RunContainerError")
            for pod in (mismatched, demanding)
        }
        later = {
            pod["metadata"]["name"]: explained_when(cluster, pod, "CrashLoopBackOff") for pod in (mismatched, demanding)
        }
    finally:
        node.toolkit.configure()
        for pod in (mismatched, demanding):
            delete_pod(cluster, pod)
    print(first, later)

    for explanations in (first, later):
        assert "the former kernel module is still loaded" in explanations["mismatched"]
        assert f"created again on {node.name}, it would fail in the same way" in explanations["mismatched"]
        assert "set the annotation gpu-usher.io/cuda" in explanations["demanding"]


def explained_when(cluster: Cluster, pod: Object, reason: str) -> str:
    """Explain a pod as soon as its container waits for a reason."""
    eventually(f"it waits: {reason}", lambda: reason in str(read_pod(cluster.plane, pod)["status"]))
    return explained(cluster, pod)


def test_pod_waits_that_the_driver_cannot_run(cluster: Cluster, namespace: str, results: Results) -> None:
    """F31: gpu-usher judges the requirement, and says which."""
    pod = demanding_pod(namespace)
    create_pod(cluster.plane, pod)
    message = wait_for_refusal(cluster.plane, pod)
    delete_pod(cluster, pod)

    assert f"1 {REFUSAL}" in message
    results.add_requirement(REQUIREMENTS[2], f"the pod waits: *1 {REFUSAL}*")
