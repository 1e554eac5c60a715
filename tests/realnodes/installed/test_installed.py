# SPDX-License-Identifier: Apache-2.0
"""gpu-usher on real nodes by README's install block as it is printed: its image, pods, Service and certificates."""

import ssl
import subprocess
import sys

import pytest

from app.tls.pem import read_bundle, signed_by
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.certificate_stage import data, published
from tests.e2e.stage import (
    SOON_SECONDS,
    create_namespace,
    create_pod,
    eventually,
    read_pod,
)
from tests.realnodes.admission_load import admissions
from tests.realnodes.cluster import Cluster
from tests.realnodes.container_usage import recorded_usage
from tests.realnodes.containers import UNLIMITED, Container, containers_of
from tests.realnodes.installation import run_gpu_pod
from tests.realnodes.installed_results import InstalledResults
from tests.realnodes.printed_install import PrintedInstallation, image
from tests.realnodes.seen_devices import container_pod, delete_pod

REPLICAS = {"gpu-usher": 3, "gpu-usher-scheduler": 2, "gpu-usher-certificates": 1, "gpu-usher-controller": 1}
GPU = "nvidia.com/gpu"
USER = "65532"
ROTATION_SECONDS = 240
"""Bound on a step of a rotation: a new CA is trusted for a minute before it signs, and a kubelet takes up to another
minute and a half to show pods a changed Secret (its sync period, and the life of its cache)."""


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> str:
    return create_namespace(cluster.plane, "team-installed")


def containers(installed: PrintedInstallation) -> list[Container]:
    """Find all containers of ours."""
    return [container for pod in installed.pods() for container in containers_of(pod)]


def test_every_deployment_is_available_and_its_replicas_are_on_different_nodes(installed: PrintedInstallation) -> None:
    """F114, F133: none of its containers was started twice."""
    nodes: dict[str, list[str]] = {name: [] for name in REPLICAS}
    for pod in installed.pods():
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        nodes["gpu-usher" if component == "admission" else f"gpu-usher-{component}"].append(pod["spec"]["nodeName"])
        states = [*pod["status"].get("initContainerStatuses", ()), *pod["status"]["containerStatuses"]]
        assert [state["restartCount"] for state in states] == [0] * len(states), pod["metadata"]["name"]

    assert {name: len(used) for name, used in nodes.items()} == REPLICAS
    assert all(len(set(used)) == len(used) for used in nodes.values()), nodes


def test_containers_run_without_rights_and_cannot_write_their_root(installed: PrintedInstallation) -> None:
    """PSS-01, F114: as the kernel shows the first process of each: user, capabilities, seccomp, mounts."""
    running = containers(installed)

    names = {"gpu-usher", "controller", "certificates", "extender", "kube-scheduler"}
    assert {container.name for container in running} == names
    for container in running:
        status = container.status()
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {USER}, container
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, container
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), container
        assert "ro" in container.root_options(), container


def test_memory_of_each_container_stays_below_its_limit(installed: PrintedInstallation) -> None:
    """HA-07: the kernel has the manifest's limit, and never had to hold a container to it."""
    for container in containers(installed):
        limit = container.memory("memory.limit_in_bytes")
        peak = container.memory("memory.max_usage_in_bytes")
        print(f"{container.pod} {container.name}: peak {peak / 2**20:.0f} MiB, limit {container.limit}")
        if container.limit is None:
            assert limit > UNLIMITED, container
        else:
            assert limit == container.limit, container
            assert peak < limit, container
        assert container.memory("memory.failcnt") == 0, container


def test_pod_with_gpus_in_requests_only_runs(cluster: Cluster, installed: PrintedInstallation, namespace: str) -> None:
    """F1, F114, F117: through the Service to a replica, which sends it to the second scheduler, and on to a kubelet."""
    run_gpu_pod(cluster, namespace)

    assert image() in {container["image"] for pod in installed.pods() for container in pod["spec"]["containers"]}
    assert installed.docker_calls()[:2] == [f"build -t {image()} .", f"push {image()}"]


def rotate(plane: ControlPlane) -> None:
    """Request a new CA as an operator does."""
    command = [sys.executable, "-m", "app.cli.main", "certs", "rotate", f"--kubeconfig={plane.kubeconfig('admin')}"]
    subprocess.run(command, check=True, timeout=SOON_SECONDS, stdout=subprocess.DEVNULL)


def served_certificates(installed: PrintedInstallation) -> set[bytes]:
    """Return the certificates that the admission replicas show to new callers."""
    addresses = [
        pod["status"]["podIP"]
        for pod in installed.pods()
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "admission"
    ]
    return {ssl.get_server_certificate((address, 8443), timeout=SOON_SECONDS).encode() for address in addresses}


def read_certificates(plane: ControlPlane) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the serving certificate of the Secret, and the trusted CAs, the one that signs first."""
    return data(plane, "tls", "tls.crt"), read_bundle(data(plane, "ca", "ca.crt"))


def place_pods(cluster: Cluster, namespace: str) -> None:
    """Have the second scheduler place as many GPU pods as a node has GPUs, and refuse as many."""
    pods = [container_pod(f"load-{n}", namespace, {GPU: 1}) for n in range(16)]
    for pod in pods:
        create_pod(cluster.plane, pod)
    eventually("eight are bound", lambda: sum("nodeName" in read_pod(cluster.plane, pod)["spec"] for pod in pods) >= 8)
    for pod in pods:
        delete_pod(cluster, pod)


def test_rotation_of_the_ca_and_a_rolling_restart_lose_no_admission(
    cluster: Cluster, installed: PrintedInstallation, namespace: str, installed_results: InstalledResults
) -> None:
    """TLS-06, P44, HA-02, HA-03, HA-07, faults 44 and 64: the CA, the certificate and then every replica are replaced.

    The restart makes the API server verify the new certificate on new connections. No container comes near its limit.
    """
    plane = installed.plane
    old = {pod["metadata"]["name"] for pod in installed.pods()}
    leaf, (authority, *_) = read_certificates(plane)
    with recorded_usage(installed.pods) as usage, admissions(plane, namespace) as stream:
        stream.go_on()
        stream.note("`gpu-usher certs rotate`")
        rotate(plane)
        eventually("a new CA signs", lambda: read_certificates(plane)[1][0] != authority)
        eventually("every webhook trusts both", lambda: published(plane))
        stream.note("the new CA is trusted beside the old by every webhook")
        place_pods(cluster, namespace)
        wait_until("there is a new certificate", lambda: read_certificates(plane)[0] != leaf, ROTATION_SECONDS)
        stream.note("the keeper has issued a certificate by the new CA")
        new_leaf, (new_authority, *_) = read_certificates(plane)
        wait_until("all replicas serve it", lambda: served_certificates(installed) == {new_leaf}, ROTATION_SECONDS)
        stream.note("all three replicas serve it, `kubectl rollout restart`")
        stream.go_on()
        result = plane.kubectl("-n", "gpu-usher", "rollout", "restart", "deployment/gpu-usher")
        assert result.code == 0, result.err
        installed.wait_for_rollout("gpu-usher")
        stream.note("three new replicas are available")
        stream.go_on()
        stream.note("end")

    kept = old & {pod["metadata"]["name"] for pod in installed.pods()}
    assert len(kept) == len(old) - REPLICAS["gpu-usher"]
    assert signed_by(new_leaf, new_authority)
    assert stream.failures() == {}
    assert usage.by_name.keys() == {"gpu-usher", "controller", "certificates", "extender", "kube-scheduler"}
    assert {name: (used.failures, used.throttled) for name, used in usage.by_name.items()} == dict.fromkeys(
        usage.by_name, (0, 0)
    )
    installed_results.add_steps("Rotation of the CA and a rolling restart", stream.steps)
    installed_results.add_usage("CPU and memory meanwhile", usage.rows())


def test_drained_node_loses_no_admission(
    installed: PrintedInstallation, namespace: str, installed_results: InstalledResults
) -> None:
    """HA-01: its replicas are evicted within the budget, and their successors run on the two nodes that are left."""
    plane = installed.plane
    with admissions(plane, namespace) as stream:
        stream.go_on()
        stream.note("`kubectl drain node-1`")
        try:
            result = plane.kubectl("drain", "node-1", "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=55s")
            assert result.code == 0, result.err
            assert installed.pods()
            assert all(pod["spec"].get("nodeName") != "node-1" for pod in installed.pods())
            stream.note("no pod is left on it")
            for name in REPLICAS:
                installed.wait_for_rollout(name)
            stream.note("all replicas are available on two nodes")
        finally:
            assert plane.kubectl("uncordon", "node-1").code == 0

    assert stream.failures() == {}
    installed_results.add_steps("A drained node", stream.steps)
