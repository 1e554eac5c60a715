# SPDX-License-Identifier: Apache-2.0
"""Pods that name no GPU resource, on the real kube-scheduler: CPU pods, pods that ask for zero GPUs, and claims alone.

They are scheduled as without us, but that CPU pods keep off GPU nodes with --every-pod, and also while no replica of
ours answers, so that a whole cluster can start.
"""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.dra.makes import device, device_class, slice_of
from tests.e2e.offers import dra_path
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    pods_of,
    read_pod,
    refusal,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

PLAIN = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
SCHEDULERS = ("plain", "shortlist", "listed")
DEPLOYMENTS, REPLICAS, NODES = 20, 3, 6
GPU, GPU_DEPLOYMENTS = "nvidia.com/gpu", 8
ROLE = "example.com/role"
BLANK: Object = {"product": None, "driver": None, "offers": {}}
SOON_WITHOUT_US = 60
"""Seconds; it takes 1 to 2, on a busy machine more."""


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Six equal nodes, two with GPUs beside two without, and schedulers with and without our extenders."""
    add_nodes(plane.api, [node_object(f"equal-{n}", **BLANK, labels={ROLE: "equal"}) for n in range(NODES)])
    add_nodes(plane.api, [node_object(f"gpu-{n}", labels={ROLE: "mixed"}) for n in range(2)])
    add_nodes(plane.api, [node_object(f"cpu-{n}", **BLANK, labels={ROLE: "mixed"}) for n in range(2)])
    for name in SCHEDULERS:
        role = {ROLE: f"fleet-{name}"}
        add_nodes(plane.api, [node_object(f"fleet-{name}-{n}", offers={GPU: 8}, labels=role) for n in range(NODES)])
    with serving(plane, "of-shortlist", filter_answer="shortlist") as shortlist:
        plane.start_scheduler({**PLAIN, "profiles": [{"schedulerName": "plain"}]}, "plain")
        start_scheduler(plane, shortlist, "--every-pod", name="shortlist")
        start_scheduler(plane, shortlist, name="listed")
        yield plane


def without_gpu(name: str, namespace: str, scheduler: str, role: str, **limits: str) -> Object:
    """Write a pod that requests some CPU, and the given limits."""
    pod = gpu_pod(name, namespace, {"cpu": "100m", "memory": "64Mi", **limits}, schedulerName=scheduler)
    pod["spec"]["nodeSelector"] = {ROLE: role}
    return pod


def deployment(name: str, namespace: str, pod: Object, replicas: int) -> Object:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def placed(plane: ControlPlane, namespace: str, number: int) -> list[tuple[str, str]]:
    """Wait until so many pods are bound, and return (app, node) of each."""

    def bound() -> list[tuple[str, str]]:
        pods = [pod for pod in pods_of(plane, namespace) if pod["spec"].get("nodeName")]
        return [(pod["metadata"].get("labels", {}).get("app", ""), pod["spec"]["nodeName"]) for pod in pods]

    eventually(f"{number} pods of {namespace} are bound", lambda: len(bound()) == number)
    return bound()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_sixty_pods_of_twenty_deployments_spread_over_six_equal_nodes(cluster: ControlPlane, scheduler: str) -> None:
    """F48, F61: the replicas of a Deployment run on different nodes, and nearly all nodes are used, as without us.

    kube-scheduler alone has left one of the six nodes without pods as well.
    """
    namespace = create_namespace(cluster, f"spread-{scheduler}")
    for number in range(DEPLOYMENTS):
        pod = without_gpu("", namespace, scheduler, "equal")
        document = deployment(f"d{number}", namespace, pod, REPLICAS)
        cluster.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", document)

    pods = placed(cluster, namespace, DEPLOYMENTS * REPLICAS)

    per_node = Counter(node for _, node in pods)
    print(f"{scheduler}: pods per node {sorted(per_node.values())}")
    assert len(set(pods)) >= DEPLOYMENTS * REPLICAS - 2
    assert len(per_node) >= NODES - 1
    assert max(per_node.values()) <= 2 * DEPLOYMENTS * REPLICAS / NODES


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_gpu_deployments_are_packed_and_lose_the_default_spread(cluster: ControlPlane, scheduler: str) -> None:
    """F49: half of the GPUs are asked for; docs/cluster.md says what packing costs in spread."""
    namespace = create_namespace(cluster, f"packed-{scheduler}")
    for number in range(GPU_DEPLOYMENTS):
        pod = without_gpu("", namespace, scheduler, f"fleet-{scheduler}", **{GPU: "1"})
        document = deployment(f"g{number}", namespace, pod, REPLICAS)
        cluster.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", document)
        pods = placed(cluster, namespace, (number + 1) * REPLICAS)

    per_node = Counter(node for _, node in pods)
    apart = Counter(Counter(app for app, _ in set(pods)).values())
    print(f"{scheduler}: GPUs per node {sorted(per_node.values())}, Deployments by number of their nodes {dict(apart)}")
    assert scheduler != "plain" or set(apart) == {REPLICAS}
    assert scheduler not in ("shortlist", "listed") or min(apart) < REPLICAS


def test_pods_without_gpus_keep_off_gpu_nodes_before_any_gpu_pod_was_seen(cluster: ControlPlane) -> None:
    """F61: GPU nodes have no taint here, and kube-scheduler alone would use them like all others."""
    namespace = create_namespace(cluster, "off")
    for number in range(8):
        create_pod(cluster, without_gpu(f"cpu-{number}", namespace, "shortlist", "mixed"))

    assert {node for _, node in placed(cluster, namespace, 8)} <= {"cpu-0", "cpu-1"}


CLAIM = {
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}}
}


def claiming(name: str, namespace: str, scheduler: str) -> Object:
    """Write a pod that claims a GPU and whose image needs CUDA 12.8, which driver 550 does not run."""
    env = [{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.8"}]
    pod = gpu_pod(name, namespace, {"cpu": "100m"}, schedulerName=scheduler, env=env)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return pod


def test_pod_with_a_claim_alone_is_judged_where_the_scheduler_asks_about_it(cluster: ControlPlane) -> None:
    """F88, F135: managedResources let it be bound to driver 550; the configuration for ResourceSlices does not."""
    if not dra_path(cluster).endswith("/v1"):
        pytest.skip(
            "The claim is of resource.k8s.io/v1, which this API server does not serve. Kubernetes 1.34 and newer do."
        )
    add_nodes(cluster.api, [node_object("driver-550", product=None, driver=None, offers={})])
    cluster.api.create(f"{dra_path(cluster)}/deviceclasses", device_class("gpu.nvidia.com", "gpu"))
    old = slice_of("driver-550", [device(n, "gpu", "a10") for n in range(8)])
    cluster.api.create(f"{dra_path(cluster)}/resourceslices", old)
    namespace = create_namespace(cluster, "claims")
    template = {"metadata": {"name": "one"}, **CLAIM}
    cluster.api.create(f"{dra_path(cluster)}/namespaces/{namespace}/resourceclaimtemplates", template)
    with serving(cluster, "of-claims") as service:
        words = ("--kubeconfig", str(cluster.kubeconfig("gpu-usher")))
        start_scheduler(cluster, service, *words, name="judged")
        start_scheduler(cluster, service, *words, "--every-pod", name="judged-too")

        listed = create_pod(cluster, claiming("listed", namespace, "listed"))
        assert wait_for_node(cluster, listed) == "driver-550"
        waiting = [create_pod(cluster, claiming(name, namespace, name)) for name in ("judged", "judged-too")]
        for pod in waiting:
            assert "CUDA" in wait_for_refusal(cluster, pod)

        add_nodes(cluster.api, [node_object("driver-580", product=None, driver=None, offers={})])
        new = slice_of("driver-580", [device(n, "gpu", "b200") for n in range(8)])
        cluster.api.create(f"{dra_path(cluster)}/resourceslices", new)
        for pod in waiting:
            assert wait_for_node(cluster, pod) == "driver-580"
        cluster.stop("judged")
        cluster.stop("judged-too")
        for name in ("listed", "judged", "judged-too"):
            cluster.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")


@pytest.fixture
def stopped(cluster: ControlPlane) -> Iterator[Service]:
    """A service that has been configured, and of which no replica runs."""
    with serving(cluster, "cold") as service:
        service.process.stop()
        yield service


def test_whole_cluster_starts_while_no_replica_of_ours_exists(cluster: ControlPlane, stopped: Service) -> None:
    """F61, F88: kube-system's pods and our own are bound in seconds, and GPU pods as soon as we answer."""
    start_scheduler(cluster, stopped, "--every-pod", name="cold")
    started = time.monotonic()
    pods = [
        create_pod(cluster, without_gpu(f"{name}-{number}", namespace, "cold", "equal"))
        for namespace, name in (("kube-system", "coredns"), ("gpu-usher", "gpu-usher"), ("default", "web"))
        for number in range(2)
    ]
    train = create_pod(cluster, gpu_pod("train", "default", schedulerName="cold", nodeSelector={ROLE: "mixed"}))

    for pod in pods:
        wait_for_node(cluster, pod, SOON_WITHOUT_US)
    print(f"cold start: {len(pods)} pods bound in {time.monotonic() - started:.1f} s")
    waits = wait_for_refusal(cluster, train)
    assert "connection refused" in waits
    assert not read_pod(cluster, train)["spec"].get("nodeName")

    answering = time.monotonic()
    stopped.restart()
    assert wait_for_node(cluster, train) in ("gpu-0", "gpu-1")
    print(f"GPU pod bound {time.monotonic() - answering:.1f} s after our start; {refusal(read_pod(cluster, train))}")
    cluster.stop("cold")
