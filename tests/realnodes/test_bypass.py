# SPDX-License-Identifier: Apache-2.0
"""What pods get that go around gpu-usher, on real nodes: without it the devices, with its guards a refusal."""

import shutil
from collections.abc import Iterator, Mapping

import pytest

from app.cluster.files import shipped_policies
from tests.builders import policy
from tests.controlplane.kubectl import Object
from tests.e2e.stage import Service, create_namespace, create_pod, install_webhooks, remove_webhooks, serving
from tests.realnodes.cluster import Cluster
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase

GPU = "nvidia.com/gpu"
GUARD = "priority: 9, admission: {visibleDevices: Deny, privileged: Deny, bypass: Deny}"
HOST_DEVICES: Object = {
    "volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}],
    "mount": {"name": "dev", "mountPath": "/host"},
}
PRIVILEGED: Object = {"privileged": True}
BYPASSES: Mapping[str, tuple[Object, Object, int, int]] = {
    "privileged": (PRIVILEGED, {}, 8, 0),
    "device files of the host": ({}, HOST_DEVICES, 0, 8),
    "privileged, device files of the host": (PRIVILEGED, HOST_DEVICES, 8, 0),
}
"""Bypass → security context, volume, and of the node's eight GPUs those that it may open, and may only see."""


@pytest.fixture(scope="module")
def service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with the shipped policies and one that denies what goes around the scheduler."""
    policies = shutil.copytree(shipped_policies(), tmp_path_factory.mktemp("guards") / "policies")
    (policies / "guard.yaml").write_text(policy("guard", GUARD), "utf-8")
    with serving(cluster.plane, policies=str(policies)) as running:
        install_webhooks(cluster.plane, running)
        yield running
        remove_webhooks(cluster.plane)


@pytest.fixture(scope="module")
def guarded(cluster: Cluster, service: Service) -> str:
    assert service.ready()
    return create_namespace(cluster.plane, "guarded")


@pytest.fixture(scope="module")
def unguarded(cluster: Cluster, service: Service) -> str:
    """A namespace that an administrator has exempted, as it would be without gpu-usher."""
    assert service.ready()
    return create_namespace(cluster.plane, "unguarded", **{"gpu_usher.io__ignore": "true"})


def bypassing_pod(namespace: str, security: Object, volume: Object) -> Object:
    """Write a pod that requests no GPU, and names its node so that no scheduler is asked."""
    pod = container_pod("bypass", namespace, {}, requests={}, nodeName="node-1")
    container = pod["spec"]["containers"][0]
    container.pop("resources")
    container["securityContext"] = security
    if volume:
        pod["spec"]["volumes"] = volume["volumes"]
        container["volumeMounts"] = [volume["mount"]]
        container["env"] = [{"name": "FOLDER", "value": "/host"}]
    return pod


@pytest.mark.parametrize(("security", "volume", "opened", "denied"), BYPASSES.values(), ids=BYPASSES)
def test_container_that_goes_around_gets_what_the_guards_refuse(
    cluster: Cluster, guarded: str, unguarded: str, security: Object, volume: Object, opened: int, denied: int
) -> None:
    """F12, F14: a hostPath volume shows device files, but only a privileged container may open them."""
    pod = bypassing_pod(unguarded, security, volume)
    create_pod(cluster.plane, pod)
    wait_for_phase(cluster, pod)
    seen = read_seen(cluster, pod)
    delete_pod(cluster, pod)

    assert (len(seen.gpus), len([file for file in seen.denied if "caps" not in file])) == (opened, denied)
    refusal = cluster.plane.kubectl.create(bypassing_pod(guarded, security, volume), dry_run=True)
    assert "denied the request" in refusal.err


def test_pod_bound_by_hand_beyond_what_is_free_is_refused_by_the_kubelet(cluster: Cluster, unguarded: str) -> None:
    """F13: whoever names a node instead of a scheduler meets UnexpectedAdmissionError."""
    pods = [container_pod(f"by-hand-{n}", unguarded, {GPU: 5}, nodeName="node-1") for n in range(2)]
    create_pod(cluster.plane, pods[0])
    wait_for_phase(cluster, pods[0])
    create_pod(cluster.plane, pods[1])
    status = wait_for_phase(cluster, pods[1], "Failed")["status"]

    assert status["reason"] == "UnexpectedAdmissionError"
    for pod in pods:
        delete_pod(cluster, pod)
