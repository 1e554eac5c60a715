# SPDX-License-Identifier: Apache-2.0
"""gpu-usher installed on real nodes by deploy/overlays/production: its own image, pods, Service and certificates."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.kube.pods import DECISION
from tests.controlplane.cluster import ControlPlane
from tests.e2e.stage import OURS, create_namespace, create_pod, decision, eventually, gpu_pod, wait_for_node
from tests.realnodes.cluster import Cluster, state_folder
from tests.realnodes.containers import UNLIMITED, Container, containers_of
from tests.realnodes.installation import Installation
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase

REPLICAS = {"gpu-usher": 3, "gpu-usher-scheduler": 2, "gpu-usher-certificates": 1}
GPU = "nvidia.com/gpu"
USER = "65532"
MAKERS = 2
CALLS = 100
"""Creations before and after a rollout, so that it lies within the stream."""


@pytest.fixture(scope="module")
def installation(cluster: Cluster) -> Iterator[Installation]:
    state = state_folder()
    assert state is not None
    folder = state / "overlay"
    folder.mkdir()
    made = Installation(cluster, folder)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def installed(installation: Installation) -> Installation:
    """Install it, or apply it again, so that each test stands alone."""
    installation.install()
    return installation


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> str:
    return create_namespace(cluster.plane, "team-installed")


@contextmanager
def admissions(plane: ControlPlane, namespace: str) -> Iterator[list[str]]:
    """Create requests-only GPU pods as dry runs in several threads for as long as the block lasts.

    Yields what became of each: `admitted` with a decision of ours, `bypassed` without, or the API server's refusal.
    """
    stop, outcomes = threading.Event(), list[str]()

    def make() -> None:
        with plane.api.like() as api:
            while not stop.is_set():
                pod = gpu_pod("p", namespace, requests={GPU: 1})
                answer = api.try_create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
                metadata = answer.json().get("metadata", {})
                ours = "admitted" if DECISION in metadata.get("annotations", {}) else "bypassed"
                outcomes.append(ours if answer.status_code == 201 else answer.text[:300])

    threads = [threading.Thread(target=make) for _ in range(MAKERS)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def containers(installed: Installation) -> list[Container]:
    """Find all containers of ours."""
    return [container for pod in installed.pods() for container in containers_of(pod)]


def test_every_deployment_is_available_and_its_replicas_are_on_different_nodes(installed: Installation) -> None:
    """F114, F133: none of its containers was started twice."""
    nodes: dict[str, list[str]] = {name: [] for name in REPLICAS}
    for pod in installed.pods():
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        nodes["gpu-usher" if component == "admission" else f"gpu-usher-{component}"].append(pod["spec"]["nodeName"])
        states = [*pod["status"].get("initContainerStatuses", ()), *pod["status"]["containerStatuses"]]
        assert [state["restartCount"] for state in states] == [0] * len(states), pod["metadata"]["name"]

    assert {name: len(used) for name, used in nodes.items()} == REPLICAS
    assert all(len(set(used)) == len(used) for used in nodes.values()), nodes


def test_containers_run_without_rights_and_cannot_write_their_root(installed: Installation) -> None:
    """PSS-01, F114: as the kernel shows the first process of each: user, capabilities, seccomp, mounts."""
    running = containers(installed)

    assert {container.name for container in running} == {"gpu-usher", "certificates", "extender", "kube-scheduler"}
    for container in running:
        status = container.status()
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {USER}, container
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, container
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), container
        assert "ro" in container.root_options(), container


def test_memory_of_each_container_stays_below_its_limit(installed: Installation) -> None:
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


def test_pod_with_gpus_in_requests_only_runs(cluster: Cluster, installed: Installation, namespace: str) -> None:
    """F1, F117: through the Service to a replica, which sends it to the second scheduler, and on to a kubelet."""
    assert installed
    pod = container_pod("train", namespace, {}, requests={GPU: 2}, schedulerName="default-scheduler")

    created = create_pod(cluster.plane, pod)

    assert created["spec"]["schedulerName"] == OURS
    assert created["spec"]["containers"][0]["resources"]["limits"] == {GPU: "2"}
    assert decision(created)
    assert wait_for_node(cluster.plane, pod) == "node-1"
    wait_for_phase(cluster, pod)
    assert len(read_seen(cluster, pod).gpus) == 2
    delete_pod(cluster, pod)


def test_rolling_restart_loses_no_admission(installed: Installation, namespace: str) -> None:
    """HA-02, HA-03, fault 64: three new replicas come one by one while the API server calls the Service."""
    plane = installed.plane
    old = {pod["metadata"]["name"] for pod in installed.pods()}
    with admissions(plane, namespace) as outcomes:
        eventually("pods are admitted", lambda: len(outcomes) > CALLS)
        result = plane.kubectl("-n", "gpu-usher", "rollout", "restart", "deployment/gpu-usher")
        assert result.code == 0, result.err
        installed.wait_for_rollout("gpu-usher")
        until = len(outcomes) + CALLS
        eventually("pods are admitted afterwards", lambda: len(outcomes) > until)

    kept = old & {pod["metadata"]["name"] for pod in installed.pods()}
    assert len(kept) == len(old) - REPLICAS["gpu-usher"]
    assert Counter(outcomes) == {"admitted": len(outcomes)}
    print(f"{len(outcomes)} creations, all admitted")


def test_drained_node_loses_no_admission(installed: Installation, namespace: str) -> None:
    """HA-01: its replicas are evicted within the budget, and their successors run on the two nodes that are left."""
    plane = installed.plane
    with admissions(plane, namespace) as outcomes:
        eventually("pods are admitted", lambda: len(outcomes) > CALLS)
        try:
            result = plane.kubectl("drain", "node-1", "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=55s")
            assert result.code == 0, result.err
            assert installed.pods()
            assert all(pod["spec"].get("nodeName") != "node-1" for pod in installed.pods())
            for name in REPLICAS:
                installed.wait_for_rollout(name)
        finally:
            assert plane.kubectl("uncordon", "node-1").code == 0

    assert Counter(outcomes) == {"admitted": len(outcomes)}
    print(f"{len(outcomes)} creations, all admitted")


def objects_of_ours(plane: ControlPlane) -> list[str]:
    """List all objects whose name or namespace is ours, of every kind that can be listed, but for events."""
    resources = plane.kubectl("api-resources", "--verbs=list", "--no-headers", "-o", "name")
    kinds = ",".join(name for name in resources.out.split() if not name.startswith("events"))
    columns = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
    result = plane.kubectl("get", kinds, "--all-namespaces", "--no-headers", "-o", columns)
    assert (resources.code, result.code) == (0, 0), resources.err + result.err
    return [line for line in result.out.splitlines() if "gpu-usher" in line]


def test_uninstall_leaves_nothing(installed: Installation) -> None:
    """ADM-10: no object of ours in any namespace, and none outside of one."""
    assert any("gpu-usher-certificates" in line for line in objects_of_ours(installed.plane))

    installed.uninstall()

    eventually("nothing is left", lambda: objects_of_ours(installed.plane) == [])
