# SPDX-License-Identifier: Apache-2.0
"""How many pods of a workload are said to fit, against the number that kube-scheduler with us binds (F151)."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from app.cli.explained_objects import as_pods
from app.explain.explanation import GangVerdict
from app.explain.pending_pod import explain
from app.kube.existing_pods import existing_pods_of
from app.values.computations import finish
from app.world.world import world_of
from tests.builders import knowledge, shipped, state_of
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.settling import QUICK, settle
from tests.e2e.stage import (
    OURS,
    Service,
    create_namespace,
    eventually,
    gpu_pod,
    install_webhooks,
    pods_of,
    scheduler_configuration,
    serving,
)

GPU, ZONE, HOST = "nvidia.com/gpu", "topology.kubernetes.io/zone", "kubernetes.io/hostname"
SPACE = "replicas"
CHOSEN = {"matchLabels": {"app": "w"}}
PRODUCTS: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("NVIDIA-H100-80GB-HBM3", 8, {}),
    ("NVIDIA-A100-SXM4-80GB", 4, {}),
    ("Tesla-T4", 2, {}),
    ("Tesla-T4-SHARED", 8, {"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.replicas": "4",
                            "nvidia.com/gpu.count": "2", "nvidia.com/gpu.sharing-strategy": "time-slicing"}),
)  # fmt: skip
ANTI_AFFINITY = [{"labelSelector": CHOSEN, "topologyKey": HOST}]
SPREAD = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": CHOSEN}
CONSTRAINTS: dict[str, Object] = {
    "apart": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ANTI_AFFINITY}}},
    "spread": {"topologySpreadConstraints": [SPREAD]},
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fleet, the pods that hold some of it, and a workload."""

    nodes: list[Object]
    held: list[Object]
    workload: Object
    replicas: int


def draw(seed: int) -> Drawn:
    """Draw three to eight nodes of which some are in part held, and a Deployment or a Job of two to twelve pods."""
    chance = random.Random(seed)
    nodes, held = [], []
    for index in range(chance.randint(3, 8)):
        product, number, labels = chance.choice(PRODUCTS)
        taints = [{"key": GPU, "value": "present", "effect": "NoSchedule"}] if chance.random() < 0.5 else None
        zone = {ZONE: chance.choice("ab")}
        name = f"n-{seed}-{index}"
        nodes.append(node_object(name, product, offers={GPU: number}, labels={**labels, **zone}, taints=taints))
        for count in range(chance.choice((0, 0, 1, number // 2, number))):
            held.append(gpu_pod(f"held-{index}-{count}", SPACE, {GPU: 1}, nodeName=name))
    wishes: dict[str, Any] = {"annotations": {}}
    if chance.random() < 0.3:
        wishes["annotations"] = {"products": chance.choice(("H100", "A100", "!T4"))}
    elif chance.random() < 0.2:
        wishes["annotations"] = {"sharing": "Exclusive"}
    wishes |= CONSTRAINTS.get(chance.choice(("", "", "apart", "spread")), {})
    limits: Object = {GPU: chance.choice((1, 1, 1, 2, 4)), "cpu": chance.choice((1, 16, 40))}
    pod = gpu_pod("w", SPACE, limits, labels={"app": "w"}, **wishes)
    if chance.random() < 0.15:
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    template = {"metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
    replicas, metadata = chance.randint(2, 12), {"name": "w", "namespace": SPACE}
    if chance.random() < 0.7:
        spec: Object = {"replicas": replicas, "selector": CHOSEN, "template": template}
        return Drawn(nodes, held, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec},
                     replicas)  # fmt: skip
    template["spec"]["restartPolicy"] = "Never"
    spec = {"parallelism": replicas, "template": template}
    return Drawn(nodes, held, {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}, replicas)


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service as it is shipped, its webhooks, and a scheduler that asks it."""
    with serving(plane) as running, kubelets(plane.api):
        install_webhooks(plane, running)
        plane.start_scheduler({**scheduler_configuration(running), **QUICK}, OURS)
        create_namespace(plane, SPACE)
        yield running


def path_of(workload: Object) -> str:
    group = "apps/v1" if workload["kind"] == "Deployment" else "batch/v1"
    return f"/apis/{group}/namespaces/{SPACE}/{workload['kind'].lower()}s"


def set_up(plane: ControlPlane, service: Service, drawn: Drawn) -> None:
    """Replace the fleet and the pods of the draw before."""
    for kind in ("Deployment", "Job"):
        plane.api.delete(path_of({"kind": kind}))
    plane.api.delete(f"/apis/apps/v1/namespaces/{SPACE}/replicasets")
    plane.api.delete(f"/api/v1/namespaces/{SPACE}/pods")
    eventually("the pods are gone", lambda: not pods_of(plane, SPACE))
    plane.api.delete("/api/v1/nodes")
    add_nodes(plane.api, drawn.nodes)
    plane.api.create_all(f"/api/v1/namespaces/{SPACE}/pods", drawn.held)
    names = {node["metadata"]["name"] for node in drawn.nodes}

    def known() -> bool:
        caches = service.health()["caches"]
        return bool(caches["nodes"]["objects"] == len(names) and caches["pods"]["objects"] == len(drawn.held))

    eventually("the fleet is known", known)


def said(plane: ControlPlane, drawn: Drawn) -> GangVerdict:
    """Say how many pods fit, as `gpu-usher explain -f` does."""
    pods = pods_of(plane, SPACE)
    stored = plane.api.items("/api/v1/nodes")
    objects = [*({**one, "kind": "Node"} for one in stored), *({**one, "kind": "Pod"} for one in pods)]
    cluster = world_of(state_of(objects), shipped(), existing_pods=existing_pods_of(pods))
    (first,) = as_pods(drawn.workload, SPACE, knowledge().workloads)
    verdict = finish(explain(first.pod, cluster, workload=first.workload, find_fixes=False)).replicas
    assert verdict is not None
    return verdict


def seen(plane: ControlPlane, drawn: Drawn) -> int:
    """Create the workload, wait until nothing moves any more, and count the pods that have a node."""
    plane.api.create(path_of(drawn.workload), drawn.workload)

    def created() -> list[Object]:
        return [pod for pod in pods_of(plane, SPACE) if (pod["metadata"].get("labels") or {}).get("app") == "w"]

    eventually("all its pods exist", lambda: len(created()) == drawn.replicas)
    settle(plane, plane.schedulers[OURS])
    return sum(bool(pod["spec"].get("nodeName")) for pod in created())


def compare(plane: ControlPlane, service: Service, seeds: range) -> None:
    """Compare what is said of drawn workloads with what is seen, and print how many fit in part."""
    different, partly = [], 0
    for seed in seeds:
        drawn = draw(seed)
        set_up(plane, service, drawn)
        verdict = said(plane, drawn)
        number = seen(plane, drawn)
        partly += 0 < number < drawn.replicas
        if verdict.unjudged or verdict.fits != number or verdict.pods != drawn.replicas:
            different.append((seed, verdict, number))
    print(f"{len(seeds) - len(different)} of {len(seeds)} workloads bind as many pods as said, {partly} in part")

    assert different == []
    assert partly > len(seeds) // 4


def test_as_many_replicas_bind_as_are_said_to_fit(plane: ControlPlane, service: Service) -> None:
    """F151: Deployments and Jobs of pods that are alike, with and without constraints among them."""
    compare(plane, service, range(16))


@pytest.mark.long
@pytest.mark.parametrize("first", range(16, 200, 46))
def test_as_many_replicas_of_many_more_workloads_bind(plane: ControlPlane, service: Service, first: int) -> None:
    """F151: with those above, the figure of 200."""
    compare(plane, service, range(first, first + 46))
