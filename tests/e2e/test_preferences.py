# SPDX-License-Identifier: Apache-2.0
"""Which soft wishes of a pod the real scheduler fulfils: without us, and with each --filter-answer.

The nodes of zone `a` are the best ones by our score, because half of their GPUs are in use; each wish is for others.
`GPU_USHER_PREFERENCES_RESULTS=1` writes tests/results/preferences.md.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object, pod_path
from tests.controlplane.kubectl import Object
from tests.e2e.stage import create_namespace, create_pod, eventually, gpu_pod, serving, start_scheduler, wait_for_node

FILE = Path(__file__).parents[1] / "results" / "preferences.md"
ASKED = "GPU_USHER_PREFERENCES_RESULTS"
HEAD = """\
# Soft wishes of pods

A run of `tests/e2e/test_preferences.py` wrote this: a real kube-scheduler with its default plugins, alone and with each
`--filter-answer`; fourteen nodes of eight GPUs in three zones. Our score prefers the nodes whose GPUs are half in use;
each pod wishes for others. *Yes*: the pod went where it wished to be.

| a pod with one GPU and | without us | all | shortlist | `--shortlist 1` |
|---|---|---|---|---|
"""
BARE = "bare"
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SCHEDULERS = ("default-scheduler", "all", "shortlist", "one")
PLAIN = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
BIG_IMAGE = {"names": ["registry.example/train:big"], "sizeBytes": 5_000_000_000}
SOFT_TAINT = {"key": "maintenance", "value": "soon", "effect": "PreferNoSchedule"}
WORKERS = {"matchLabels": {"app": "worker"}}


def matching(key: str, *values: str, operator: str = "In") -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def preferring(*terms: tuple[int, Object]) -> Object:
    return {"nodeAffinity": {PREFERRED: [{"weight": weight, "preference": term} for weight, term in terms]}}


def among_pods(kind: str, key: str, app: str) -> Object:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {kind: {PREFERRED: [{"weight": 100, "podAffinityTerm": term}]}}}


def spread(key: str) -> Object:
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": WORKERS}
    return {"topologySpreadConstraints": [constraint], "labels": {"app": "worker"}}


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish: what it is called, the pod's fields, and the labels of which a node that fulfils it has one."""

    name: str
    pod: Mapping[str, Any]
    fulfilled: Mapping[str, tuple[str, ...]]
    group: str = "main"
    always: bool = True
    """Whether a shortlist fulfils it, whatever our score says."""


OTHER_ZONES = {ZONE: ("b", "c")}
WISHES = (
    Wish("topology spread over zones, ScheduleAnyway", spread(ZONE), OTHER_ZONES),
    Wish("topology spread over hosts, ScheduleAnyway", spread(HOST), OTHER_ZONES),
    Wish("preferred node affinity, weight 1", {"affinity": preferring((1, matching("disk", "ssd")))}, {ZONE: ("c",)}),
    Wish("the same, weight 100", {"affinity": preferring((100, matching("disk", "ssd")))}, {ZONE: ("c",)}),
    Wish(
        "two preferred terms, weights 80 and 20",
        {"affinity": preferring((80, matching(ZONE, "b")), (20, matching("disk", "ssd")))},
        {ZONE: ("b",)},
    ),
    Wish(
        "preferred node affinity, NotIn",
        {"affinity": preferring((50, matching("disk", "hdd", operator="NotIn")))},
        OTHER_ZONES,
    ),
    Wish("preferred pod affinity, zone", among_pods("podAffinity", ZONE, "cache"), {ZONE: ("b",)}),
    Wish("preferred pod anti-affinity, host", among_pods("podAntiAffinity", HOST, "worker"), OTHER_ZONES),
    Wish("preferred pod anti-affinity, zone", among_pods("podAntiAffinity", ZONE, "worker"), OTHER_ZONES),
    Wish("a taint PreferNoSchedule on the best node", {}, {"taint": ("none",)}, group="tainted"),
    Wish("an image of 5 GB that a third of the nodes have", {"image": "registry.example/train:big"}, {ZONE: ("b",)},
         always=False),
    Wish("no wish; its Service has pods (default spread)", {"labels": {"app": "worker"}}, OTHER_ZONES, always=False),
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Three zones of four nodes, the pods on them, and the four schedulers."""
    add_nodes(plane.api, fleet())
    create_namespace(plane, BARE, **{"gpu_usher.io__ignore": "true"})
    service = {"metadata": {"name": "workers"}, "spec": {"selector": {"app": "worker"}, "ports": [{"port": 80}]}}
    plane.api.create(f"/api/v1/namespaces/{BARE}/services", service)
    for pod in bound_pods():
        create_pod(plane, pod)
    with (
        serving(plane, "all", filter_answer="all") as everyone,
        serving(plane, "shortlist", filter_answer="shortlist") as shortlist,
        serving(plane, "one", shortlist="1") as one,
    ):
        plane.start_scheduler(PLAIN)
        start_scheduler(plane, everyone, "--filter-answer", "all", name="all")
        for service_process, name in ((shortlist, "shortlist"), (one, "one")):
            start_scheduler(plane, service_process, name=name)
        yield plane


def fleet() -> Iterator[Object]:
    """Write twelve nodes in three zones, and two of another group, of which one has a soft taint."""
    for zone, disk in (("a", "hdd"), ("b", "nvme"), ("c", "ssd")):
        for index in range(4):
            node = node_object(f"{zone}-{index}", labels={ZONE: zone, "disk": disk, "group": "main"})
            if zone == "b":
                node["status"]["images"] = [BIG_IMAGE]
            yield node
    yield node_object("tainted-0", labels={"group": "tainted", "taint": "soft"}, taints=[SOFT_TAINT])
    yield node_object("tainted-1", labels={"group": "tainted", "taint": "none"})


def bound_pods() -> Iterator[Object]:
    """Write pods that hold half of the GPUs of zone `a` and of the tainted node, and one cache in zone `b`."""
    for name in ("a-0", "a-1", "a-2", "a-3", "tainted-0"):
        yield gpu_pod(f"on-{name}", BARE, {"nvidia.com/gpu": 4}, nodeName=name, labels={"app": "worker"})
    cache = gpu_pod("cache", BARE, {"cpu": "100m"}, nodeName="b-0", labels={"app": "cache"})
    yield cache


def fulfilled(plane: ControlPlane, wish: Wish, scheduler: str) -> bool:
    """Create the pod, tell whether its node fulfils the wish, and delete it."""
    pod = gpu_pod(f"wish-{scheduler}", BARE, nodeSelector={"group": wish.group}, **wish.pod)
    pod["spec"]["schedulerName"] = scheduler
    create_pod(plane, pod)
    node = plane.api.get(f"/api/v1/nodes/{wait_for_node(plane, pod)}")
    plane.api.delete(pod_path(pod))
    eventually("the pod is gone", lambda: plane.api.client.get(pod_path(pod)).status_code == 404)
    return any(node["metadata"]["labels"].get(key) in values for key, values in wish.fulfilled.items())


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: wish.name)
def test_wish_that_the_scheduler_fulfils_alone_is_fulfilled_with_a_shortlist(cluster: ControlPlane, wish: Wish) -> None:
    """See docs/reference/scores.md#shortlist."""
    answers = {scheduler: fulfilled(cluster, wish, scheduler) for scheduler in SCHEDULERS}

    ROWS.append(f"| {wish.name} | {' | '.join('yes' if answers[name] else 'no' for name in SCHEDULERS)} |")
    assert answers["default-scheduler"]
    assert answers["shortlist"] or not wish.always
    assert not answers["one"]


ROWS: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def results() -> Iterator[None]:
    """After the last wish, write the table if it is asked for."""
    yield
    if os.environ.get(ASKED) and len(ROWS) == len(WISHES):
        FILE.write_text(HEAD + "\n".join(ROWS) + "\n", encoding="utf-8")
