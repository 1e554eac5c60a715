# SPDX-License-Identifier: Apache-2.0
"""How many pods of a workload fit now: all of them are placed in turn, as many as its kind wants at once (F151)."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from app.cli.explained_objects import ObjectName, PodToExplain, as_pods, of_fleet, read_name
from app.explain.explanation import GangVerdict
from app.explain.pending_pod import explain
from app.knowledge.workload_templates import number_of_pods
from app.kube.existing_pods import existing_pods_of
from app.values.computations import finish
from app.world.world import world_of
from tests.builders import container, gpus, knowledge, node_document, pod, shipped, state_of

GPU, HOST, ZONE = "nvidia.com/gpu", "kubernetes.io/hostname", "topology.kubernetes.io/zone"
Object = dict[str, Any]


def nodes(*offers: int, zones: str = "a") -> list[Object]:
    """Write nodes with that many H100."""
    return [
        node_document(
            f"n-{index}",
            offers={GPU: number, "cpu": 64, "pods": 110},
            labels={HOST: f"n-{index}", ZONE: zones[index % len(zones)]},
        )
        for index, number in enumerate(offers)
    ]


def template(amount: int = 2, **spec: Any) -> Object:
    made = pod(gpus(amount), **spec)
    return {"metadata": {"labels": {"app": "w"}}, "spec": made["spec"]}


def deployment(replicas: int, amount: int = 2, **spec: Any) -> Object:
    metadata = {"name": "w", "namespace": "team-a"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
            "spec": {"replicas": replicas, "template": template(amount, **spec)}}  # fmt: skip


def verdict_of(first: PodToExplain, objects: Sequence[Object]) -> GangVerdict | None:
    pods = existing_pods_of(one for one in objects if one["kind"] == "Pod")
    snapshot = world_of(state_of(list(objects)), shipped(), existing_pods=pods)
    return finish(explain(first.pod, snapshot, first.live, workload=first.workload)).replicas


def of_file(workload: Object, objects: Sequence[Object]) -> GangVerdict | None:
    return verdict_of(as_pods(workload, "team-a", knowledge().workloads)[0], objects)


def wanted_of(api_version: str, kind: str, spec: Object, *place: str, status: Object | None = None) -> int | None:
    document = {"apiVersion": api_version, "kind": kind, "spec": spec, "status": status or {}}
    return number_of_pods(document, place, knowledge().workloads)


JOB_TEMPLATE = ("spec", "template")
JOBSET = ("spec", "replicatedJobs", "1", "template", "spec", "template")
LWS = ("spec", "leaderWorkerTemplate")
WORKERS = ("spec", "workerGroupSpecs", "0", "template")
WANTED: dict[str, tuple[int | None, int | None]] = {
    "Deployment without replicas": (wanted_of("apps/v1", "Deployment", {}, *JOB_TEMPLATE), 1),
    "StatefulSet": (wanted_of("apps/v1", "StatefulSet", {"replicas": 4}, *JOB_TEMPLATE), 4),
    "Deployment scaled to 0": (wanted_of("apps/v1", "Deployment", {"replicas": 0}, *JOB_TEMPLATE), 0),
    "Job": (wanted_of("batch/v1", "Job", {"parallelism": 5}, *JOB_TEMPLATE), 5),
    "Job of one pod at a time": (wanted_of("batch/v1", "Job", {"completions": 9}, *JOB_TEMPLATE), 1),
    "Job whose end is near": (
        wanted_of("batch/v1", "Job", {"parallelism": 5, "completions": 9}, *JOB_TEMPLATE, status={"succeeded": 7}),
        2,
    ),
    "Job that has ended": (
        wanted_of("batch/v1", "Job", {"parallelism": 5, "completions": 9}, *JOB_TEMPLATE, status={"succeeded": 9}),
        0,
    ),
    "CronJob": (
        wanted_of("batch/v1", "CronJob", {"jobTemplate": {"spec": {"parallelism": 3}}}, "spec", "jobTemplate",
                  *JOB_TEMPLATE),
        3,
    ),
    "JobSet": (
        wanted_of("jobset.x-k8s.io/v1alpha2", "JobSet",
                  {"replicatedJobs": [{"replicas": 7},
                                      {"replicas": 2, "template": {"spec": {"parallelism": 4, "completions": 3}}}]},
                  *JOBSET),
        6,
    ),
    "workers beside a leader": (
        wanted_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
                  {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": {}}}, *LWS, "workerTemplate"),
        6,
    ),
    "leaders": (
        wanted_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
                  {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": {}}}, *LWS, "leaderTemplate"),
        2,
    ),
    "workers of which one leads": (
        wanted_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
                  {"replicas": 2, "leaderWorkerTemplate": {"size": 4}}, *LWS, "workerTemplate"),
        8,
    ),
    "Ray workers of several hosts": (
        wanted_of("ray.io/v1", "RayCluster", {"workerGroupSpecs": [{"replicas": 3, "numOfHosts": 2}]}, *WORKERS), 6),
    "Ray workers with a minimum": (
        wanted_of("ray.io/v1", "RayCluster", {"workerGroupSpecs": [{"minReplicas": 2}]}, *WORKERS), 2),
    "Ray head": (wanted_of("ray.io/v1", "RayCluster", {}, "spec", "headGroupSpec", "template"), 1),
    "PyTorchJob": (
        wanted_of("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}},
                  "spec", "pytorchReplicaSpecs", "Worker", "template"),
        3,
    ),
    "Volcano Job": (
        wanted_of("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"replicas": 2}]}, "spec", "tasks", "0", "template"),
        2,
    ),
    "Job in an AppWrapper": (
        wanted_of("workload.codeflare.dev/v1beta2", "AppWrapper",
                  {"components": [{"template": deployment(3)},
                                  {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 4}}}]},
                  "spec", "components", "1", "template", *JOB_TEMPLATE),
        4,
    ),
    "not known": (wanted_of("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", {}, *JOB_TEMPLATE), None),
    "replicas of another type": (wanted_of("apps/v1", "Deployment", {"replicas": "6"}, *JOB_TEMPLATE), 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", WANTED)
def test_workload_wants_as_many_pods_as_its_controller_makes_at_once(kind: str) -> None:
    """F151."""
    wanted, right = WANTED[kind]

    assert wanted == right


def test_replicas_that_do_not_all_fit_are_counted_with_what_the_others_lack() -> None:
    """F151: eight GPUs are enough for four of six replicas of two, and one more node lets all run."""
    verdict = of_file(deployment(6), nodes(8))

    assert verdict is not None
    assert (verdict.pods, verdict.bound, verdict.fits) == (6, 0, 4)
    assert verdict.of_replicas == (
        "4 of 6 pods of Deployment team-a/w fit now; the others lack: not enough free GPUs: wants 2 nvidia.com/gpu; "
        "smallest change with which all fit: 1 more node like n-0, with all of it free"
    )


def test_replicas_that_fit_say_so_and_one_replica_says_nothing_more() -> None:
    """F151."""
    verdict = of_file(deployment(4), nodes(8))

    assert verdict is not None
    assert verdict.of_replicas == "all 4 pods of Deployment team-a/w fit now"
    assert of_file(deployment(1), nodes(8)) is None


def test_pods_with_a_node_are_counted_and_only_the_rest_is_placed() -> None:
    """F151: two run, one is pending, and three were never created."""
    workload = deployment(6)
    pods = [pod_of(workload, f"w-{index}", nodeName="n-0") for index in range(2)]
    pods.append(pod_of(workload, "w-2"))
    objects = [*nodes(4, 3), *pods]
    name = ObjectName("Deployment", "team-a", "w", ("apps", "deployments"))

    (first,) = of_fleet(name, objects, workload, "", knowledge().workloads)
    verdict = verdict_of(first, objects)

    assert verdict is not None
    assert (verdict.bound, verdict.pods, verdict.fits) == (2, 4, 1)
    assert verdict.of_replicas.startswith(
        "2 of 6 pods of Deployment team-a/w have a node; 1 of the 4 without one fits now; the others lack: "
    )


def pod_of(workload: Object, name: str, **spec: Any) -> Object:
    """Write a pod of a Deployment as its controllers make it."""
    made = pod(gpus(2), tolerations=[{"operator": "Exists"}], **spec)
    owner = {"kind": "ReplicaSet", "name": f"{workload['metadata']['name']}-abc", "controller": True}
    labels = {"app": "w", "pod-template-hash": "abc"}
    made["metadata"] |= {"name": name, "uid": name, "labels": labels, "ownerReferences": [owner]}
    made["status"] = {"phase": "Running" if "nodeName" in spec else "Pending"}
    return made


APART = {"labelSelector": {"matchLabels": {"app": "w"}}, "topologyKey": HOST}
SPREAD = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
          "labelSelector": {"matchLabels": {"app": "w"}}}  # fmt: skip
ANTI_AFFINITY = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART]}}
TOGETHER = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART]}}
PORT = {"ports": [{"containerPort": 80, "hostPort": 80}]}
AMONG_THEMSELVES: dict[str, tuple[Object, int]] = {
    "anti-affinity": ({"affinity": ANTI_AFFINITY}, 3),
    "spread": ({"topologySpreadConstraints": [SPREAD]}, 3),
}


@pytest.mark.parametrize("constraint", AMONG_THEMSELVES)
def test_constraints_among_the_replicas_count(constraint: str) -> None:
    """F151: three nodes, of which zone b has one with a single free GPU; without constraints nine of ten fit."""
    spec, fits = AMONG_THEMSELVES[constraint]

    verdict = of_file(deployment(10, 1, **spec), nodes(4, 1, 4, zones="ab"))

    assert verdict is not None
    assert verdict.fits == fits


def test_number_is_not_told_where_the_node_of_the_first_replica_decides() -> None:
    """F151: replicas that must be together fit by four or by one."""
    few = of_file(deployment(4, 1, affinity=TOGETHER), nodes(4, 1))
    all_fit = of_file(deployment(4, 1, affinity=TOGETHER), nodes(4, 4))

    assert few is not None
    assert few.of_replicas == (
        "how many of 4 pods of Deployment team-a/w fit now is not known (they must run beside each other, so that the "
        "node of the first one decides)"
    )
    assert all_fit is not None
    assert all_fit.of_replicas == "all 4 pods of Deployment team-a/w fit now"


def test_host_port_is_taken_once_on_each_node() -> None:
    """F151."""
    workload = deployment(4, 1)
    workload["spec"]["template"]["spec"]["containers"][0] |= PORT

    verdict = of_file(workload, nodes(8, 8))

    assert verdict is not None
    assert verdict.fits == 2


def test_templates_of_a_job_set_are_placed_together() -> None:
    """F151: a driver without a GPU, and six workers of four on two nodes of eight."""
    jobs = [
        {"name": "driver", "template": {"spec": {"template": {"spec": pod(container())["spec"]}}}},
        {"name": "workers", "replicas": 3, "template": {"spec": {"parallelism": 2, "template": template(4)}}},
    ]
    workload = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "s"},
                "spec": {"replicatedJobs": jobs}}  # fmt: skip

    verdict = of_file(workload, nodes(8, 8))

    assert verdict is not None
    assert (verdict.pods, verdict.fits) == (7, 5)


NOTES: dict[str, tuple[Object, str]] = {
    "suspended Job": (
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"},
         "spec": {"suspend": True, "template": template()}},
        "the Job is suspended, so that no pods are created; set spec.suspend to false to start it",
    ),
    "suspended by Kueue": (
        {"apiVersion": "batch/v1", "kind": "Job",
         "metadata": {"name": "w", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
         "spec": {"suspend": True, "template": template()}},
        "the Job is suspended, so that no pods are created; Kueue sets that when it admits it",
    ),
    "suspended MPIJob": (
        {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "w"},
         "spec": {"runPolicy": {"suspend": True}, "mpiReplicaSpecs": {"Worker": {"template": template()}}}},
        "the MPIJob is suspended, so that no pods are created; set spec.suspend to false to start it",
    ),
    "no replicas": (
        deployment(0), "the Deployment wants no pods: its replicas, or what is left of its completions, are 0"),
    "very many replicas": (
        deployment(2_000_000_000),
        "how many of its 2000000000 pods fit together is not known: it has more than 256",
    ),
    "many templates": (
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "w"},
         "spec": {"replicatedJobs": [{"template": {"spec": {"template": template()}}} for _ in range(40)]}},
        "only the first 32 of its 40 pod templates are looked at",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTES)
def test_what_keeps_a_workload_from_its_pods_is_said(case: str) -> None:
    """F151."""
    workload, note = NOTES[case]

    first = as_pods(workload, "team-a", knowledge().workloads)[0]

    assert first.notes == (note,)


@pytest.mark.parametrize("seed", range(30))
def test_number_that_fits_is_that_of_counting_nodes_one_by_one(seed: int) -> None:
    """F151: an obvious twin for pods that are alike."""
    chance = random.Random(seed)
    offers = [chance.randint(0, 8) for _ in range(chance.randint(1, 6))]
    replicas, amount = chance.randint(2, 12), chance.choice((1, 2, 3, 4))
    room = sum(number // amount for number in offers)

    verdict = of_file(deployment(replicas, amount), nodes(*offers))

    assert verdict is not None
    assert verdict.fits == min(replicas, room)


def quota(hard: Object, used: Object | None = None, **spec: Any) -> Object:
    status = {"status": {"hard": hard, "used": used}} if used is not None else {}
    metadata = {"name": "q", "namespace": "team-a"}
    return {"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard, **spec}, **status}


REQUESTED = f"requests.{GPU}"
FOR_BATCH = {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["b"]}]}}


@pytest.mark.parametrize(
    ("limits", "free", "fits", "lacks"),
    [
        pytest.param(quota({REQUESTED: "4"}), 8, 4, f"requested: {REQUESTED}=1, used: {REQUESTED}=4", id="no status"),
        pytest.param(quota({REQUESTED: "8"}, {REQUESTED: "5"}), 8, 3, f"used: {REQUESTED}=8, limited", id="in use"),
        pytest.param(quota({"pods": "2"}, {"pods": "0"}), 8, 2, "exceeded quota: q, requested: pods=1", id="pods"),
        pytest.param(quota({"count/pods": "5"}), 8, 5, "used: count/pods=5", id="count/pods"),
        pytest.param(quota({REQUESTED: "4"}), 2, 2, "exceeded quota: q", id="both, the nodes first"),
        pytest.param(quota({REQUESTED: "0"}), 8, 0, "exceeded quota: q", id="nothing left"),
        pytest.param(quota({REQUESTED: "6"}), 8, 6, "", id="enough for all"),
        pytest.param(quota({"requests.amd.com/gpu": "1"}), 8, 6, "", id="another resource"),
        pytest.param(quota({"pods": "2"}, **FOR_BATCH), 8, 6, "", id="another scope"),
    ],
)
def test_pods_that_a_quota_refuses_once_the_first_are_created_do_not_fit(
    limits: Object, free: int, fits: int, lacks: str
) -> None:
    """F151: each pod is counted in the quotas before the next one is created (apiserver resourcequota)."""
    verdict = of_file(deployment(6, 1), [*nodes(free), limits])

    assert verdict is not None
    assert (verdict.pods, verdict.fits) == (6, fits)
    assert lacks in verdict.lacks
    assert bool(verdict.lacks) == bool(lacks)
    assert not verdict.change or fits == free


def test_pods_that_are_there_are_counted_in_a_quota_already() -> None:
    """F151: two of them wait for nodes, and the quota that they use up does not refuse them."""
    limits = quota({REQUESTED: "2"}, {REQUESTED: "2"})
    waiting = [
        {**pod(gpus(1), name=name), "metadata": {"name": name, "namespace": "team-a", "uid": name,
         "ownerReferences": [{"kind": "ReplicaSet", "name": "w", "controller": True}]}, "kind": "Pod"}
        for name in ("w-0", "w-1")
    ]  # fmt: skip
    workload = {**deployment(2, 1), "kind": "ReplicaSet"}
    wanted = ObjectName("ReplicaSet", "team-a", "w", ("apps", "replicasets"))
    first = of_fleet(wanted, waiting, workload, "", knowledge().workloads)[0]

    verdict = verdict_of(first, [*nodes(8), limits, *waiting])

    assert verdict is not None
    assert (verdict.pods, verdict.fits) == (2, 2)


def spec_of(name: str, amount: int = 0) -> Object:
    """Write the spec of a pod of one container with a name and an image of its own."""
    return pod(container({GPU: amount} if amount else None, name=name, image=f"{name}:1"))["spec"]  # type: ignore[no-any-return]


def job_set(driver: str, workers: str) -> Object:
    jobs = [
        {"name": "driver", "template": {"spec": {"template": {"spec": spec_of(driver)}}}},
        {
            "name": "w",
            "replicas": 3,
            "template": {"spec": {"parallelism": 2, "template": {"spec": spec_of(workers, 4)}}},
        },
    ]
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {"replicatedJobs": jobs}}


LEADERS: Object = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "spec": {
        "replicas": 2,
        "leaderWorkerTemplate": {
            "size": 3,
            "leaderTemplate": {"metadata": {"labels": {"role": "leader"}}, "spec": spec_of("vllm", 4)},
            "workerTemplate": {"metadata": {"labels": {"role": "worker"}}, "spec": spec_of("vllm", 4)},
        },
    },
}
RAY: Object = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "spec": {
        "headGroupSpec": {"template": {"spec": spec_of("ray-head")}},
        "workerGroupSpecs": [{"groupName": "g", "replicas": 5, "template": {"spec": spec_of("ray-worker", 4)}}],
    },
}
NOT_KNOWN = "of which pod templates"


def member(label: str, name: str, spec: Object, node: str = "", **labels: str) -> Object:
    """Write a pod of workload w, with the sidecar that some webhook added."""
    sidecar = {"name": "proxy", "image": "proxy:2"}
    status = {"phase": "Running"} if node else {"phase": "Pending"}
    placed = {**spec, "containers": [*spec["containers"], sidecar], **({"nodeName": node} if node else {})}
    metadata = {"name": name, "namespace": "team-a", "uid": name, "labels": {label: "w", **labels}}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": placed, "status": status}


JOB_SET, LWS_NAME, RAY_NAME = (
    "jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/name", "ray.io/cluster"
)  # fmt: skip
DRIVER, WORKER = spec_of("driver"), spec_of("worker", 4)


@pytest.mark.parametrize(
    ("workload", "have", "expected", "told"),
    [
        pytest.param(
            job_set("driver", "worker"),
            [member(JOB_SET, "d", DRIVER, "n-0"), *(member(JOB_SET, f"w{i}", WORKER, "n-0") for i in range(2))],
            (3, 4, 2), False, id="JobSet: driver and two workers run",
        ),
        pytest.param(
            job_set("driver", "worker"), [member(JOB_SET, "w0", WORKER, "n-0")], (1, 6, 4), False,
            id="JobSet: a worker runs",
        ),
        pytest.param(
            LEADERS,
            [member(LWS_NAME, f"l{i}", spec_of("vllm", 4), f"n-{i}", role="leader") for i in range(2)],
            (2, 4, 2), False, id="LeaderWorkerSet: its leaders run, told by their labels",
        ),
        pytest.param(
            RAY,
            [member(RAY_NAME, "h", spec_of("ray-head"), "n-0"), member(RAY_NAME, "r", spec_of("ray-worker", 4), "n-1")],
            (2, 4, 3), False, id="RayCluster: head and a worker run",
        ),
        pytest.param(
            job_set("main", "main"), [member(JOB_SET, "w0", spec_of("main", 4), "n-0")], None, True,
            id="templates that are alike but for their requests",
        ),
        pytest.param(
            job_set("driver", "worker"), [member(JOB_SET, "x", spec_of("other"), "n-0")], None, True,
            id="a pod of an earlier template",
        ),
        pytest.param(
            job_set("driver", "worker"),
            [member(JOB_SET, "d", DRIVER, "n-0"), member(JOB_SET, "w0", WORKER)],
            (1, 1, 1), True, id="one waits, the others are not created",
        ),
    ],
)  # fmt: skip
def test_pods_of_several_templates_that_do_not_run_yet_are_counted_or_said_not_to_be(
    workload: Object, have: list[Object], expected: tuple[int, int, int] | None, told: bool
) -> None:
    """F151: on two nodes of eight, each pod is known by its template's containers and labels."""
    kind = workload["kind"].lower()
    whole = {**workload, "metadata": {"name": "w", "namespace": "team-a"}}
    wanted = read_name([kind, "w"], "team-a", knowledge().workloads)

    first = of_fleet(wanted, have, whole, "", knowledge().workloads)[0]
    verdict = verdict_of(first, [*nodes(8, 8), *have])

    assert (verdict and (verdict.bound, verdict.pods, verdict.fits)) == expected
    assert any(NOT_KNOWN in note for note in first.notes) == told
