# SPDX-License-Identifier: Apache-2.0
"""Jobs of five kinds in queues of two flavours, and of one with a topology: which of them get nodes that refuse them.

In one namespace a policy has what the pods need written into the templates, in the other none has. A job is admitted to
a wrong flavour if no pod of it can ever be placed there.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from app.cluster.files import shipped_policies
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    Service,
    create_namespace,
    eventually,
    install_webhooks,
    pods_of,
    serving,
    start_scheduler,
)
from tests.neighbours.jobs import (
    FRAMEWORKS,
    PATHS,
    create,
    is_suspended,
    path_of,
    pod_of,
    pod_template,
    queued_job,
    stored_templates,
)
from tests.neighbours.kueue import (
    API,
    GPU,
    JOBSET,
    NAME,
    flavour,
    flavour_of_gpus,
    queue,
    running_kueue,
    running_manager,
)
from tests.neighbours.programs import find
from tests.neighbours.running import apply

PRODUCT, MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
POOL, RACK, BLOCK = "gpu-usher.test/pool", "gpu-usher.test/rack", "gpu-usher.test/block"
HOST = "kubernetes.io/hostname"
H100, T4 = "NVIDIA-H100-80GB-HBM3", "Tesla-T4"
TAINTS = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
EACH = 12
"""Nodes of eight GPUs of each product."""
FLEET = tuple(
    node_object(
        f"{name}-{index}",
        product,
        offers={GPU: 8},
        labels={PRODUCT: product, MEMORY: memory, POOL: "gpus", RACK: f"{block}-{index // 4}", BLOCK: block},
        taints=TAINTS,
    )
    for block, name, product, memory in (("a", "t4", T4, "15360"), ("b", "h100", H100, "81559"))
    for index in range(EACH)
)
FLAVOURS = (
    flavour("t4", {PRODUCT: T4}, TAINTS),
    flavour("h100", {PRODUCT: H100}, TAINTS),
    flavour("mixed", {POOL: "gpus"}, topology="racks"),
    flavour("blocks", {POOL: "gpus"}, topology="blocks"),
)
TOPOLOGIES = tuple(
    {
        "apiVersion": API,
        "kind": "Topology",
        "metadata": {"name": name},
        "spec": {"levels": [{"nodeLabel": level}, {"nodeLabel": HOST}]},
    }
    for name, level in (("racks", RACK), ("blocks", BLOCK))
)
"""Each has domains whose nodes have one product alone, and one memory."""
ROOM = {"cpu": 1000, "memory": 1 << 40}
KINDS = ("Job", "JobSet", "RayCluster", "MPIJob", "AppWrapper")
PER_KIND = 10
CONTROLLED = ("Job", "JobSet")
"""Kinds whose own controllers run here, and make the pods."""
LATE = ("Job", "RayJob", "RayCluster", "MPIJob")
"""Kinds whose templates may get affinity while they are suspended."""
MERGED = ("JobSet", "MPIJob")
"""Kinds whose lists server-side apply merges; those of Ray and AppWrapper are atomic, and in conflict."""
WRITES = (
    "priority: 900, match: {namespaceSelector: {matchLabels: {templates: written}}}, "
    "admission: {queuedTemplates: Write, tolerations: {fromNodeTaints: true}}"
)


@pytest.fixture(scope="module")
def kueue(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane on which Kueue runs with the definitions of five kinds; the tests skip where it is not built."""
    folder = find(NAME, JOBSET.name)
    if isinstance(folder, str):
        pytest.skip(folder)
    add_nodes(plane.api, FLEET)
    for file in sorted((folder / "jobs").rglob("*.yaml")):
        if "\nkind: CustomResourceDefinition" in file.read_text("utf-8") and "patches" not in file.parts:
            result = plane.kubectl("apply", "--server-side", "-f", str(file))
            assert result.code == 0, result.err
    jobset = running_manager(plane, folder, JOBSET, folder / "jobs" / "jobset" / "default")
    with kubelets(plane.api), jobset, running_kueue(plane, folder, FRAMEWORKS):
        apply(plane, (*TOPOLOGIES, *FLAVOURS))
        yield plane


@pytest.fixture(scope="module")
def service(kueue: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with its webhooks, and a policy that writes into templates of some namespaces."""
    policies: Path = shutil.copytree(shipped_policies(), tmp_path_factory.mktemp("own") / "policies")
    (policies / "written.yaml").write_text(policy("written", WRITES), "utf-8")
    with serving(kueue, policies=str(policies)) as running:
        install_webhooks(kueue, running, "queued-jobs")
        start_scheduler(kueue, running)
        yield running


def wanting_h100(**annotations: str) -> Object:
    return pod_template(1, products="H100", **annotations)


def pods_of_started(plane: ControlPlane, namespace: str, jobs: list[Object]) -> dict[str, Object]:
    """Wait until Kueue has started jobs, make the pods of those that have no controller here, and return all by job."""

    def started() -> bool:
        return not any(is_suspended(plane.api.get(path_of(job))) for job in jobs)

    eventually("all jobs are started", started, 180)
    for job in jobs:
        stored = plane.api.get(path_of(job))
        if job["kind"] not in CONTROLLED:
            [template] = stored_templates(stored)
            plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod_of(stored, template))
    eventually("all pods are made", lambda: len(pods_of(plane, namespace)) == len(jobs), 60)

    def judged(pod: Object) -> bool:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        return bool(pod["spec"].get("nodeName")) or any(one.get("reason") == "Unschedulable" for one in conditions)

    eventually("all pods are judged", lambda: all(map(judged, pods_of(plane, namespace))), 120)
    return {owner_of(pod): pod for pod in pods_of(plane, namespace)}


def owner_of(pod: Object) -> str:
    """Name the job of a pod; that of a JobSet's pod is named by a label, since a Job is between them."""
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get("jobset.sigs.k8s.io/jobset-name") or pod["metadata"]["ownerReferences"][0]["name"])


def tolerating(template: Object, templates: str) -> Object:
    """Add the toleration that Kueue asks for; where templates are written, admission does that."""
    if templates == "left":
        template["spec"]["tolerations"] = [{"key": GPU, "operator": "Exists"}]
    return template


NEEDS: Mapping[str, Mapping[str, str]] = {"product": {"products": "H100"}, "memory": {"gpu-memory": "40Gi"}}
"""Annotations of pods that can run in the blocks of H100 alone."""


@pytest.mark.parametrize(("templates", "refused"), [("left", True), ("written", False)])
@pytest.mark.parametrize("need", NEEDS)
def test_topology_is_assigned_on_nodes_that_take_the_pods(
    kueue: ControlPlane, service: Service, need: str, templates: str, refused: bool
) -> None:
    """F153, S14: Kueue names the hosts itself, in two flavours with a topology each, by the templates alone."""
    namespace = create_namespace(kueue, f"topology-{need}-{templates}", templates=templates)
    apply(kueue, queue(namespace, {"mixed": {GPU: 8, **ROOM}, "blocks": {GPU: 8, **ROOM}}))
    jobs = []
    for index in range(16):
        template = tolerating(pod_template(1, **NEEDS[need]), templates)
        template["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] = HOST
        jobs.append(queued_job(("Job", "JobSet")[index % 2], f"tas-{index}", namespace, template))
        create(kueue, jobs[-1])

    pods = pods_of_started(kueue, namespace, jobs)

    flavours = Counter(flavour_of_gpus(kueue, namespace, name) for name in pods)
    unplaced = [name for name, pod in pods.items() if not pod["spec"].get("nodeName")]
    print(f"\n{namespace}: {len(unplaced)} of {len(jobs)} jobs are assigned a host that refuses their pods {flavours}")
    assert flavours == {"mixed": 8, "blocks": 8}
    assert len(unplaced) == (len(jobs) if refused else 0)
    assert service.process.running


@pytest.mark.parametrize(("templates", "refused"), [("left", True), ("written", False)])
def test_fifty_jobs_of_five_kinds_are_admitted_where_their_pods_can_run(
    kueue: ControlPlane, service: Service, templates: str, refused: bool
) -> None:
    """F153, S14: of fifty jobs that need an H100, none is admitted to the flavour of T4 once templates say so."""
    namespace = create_namespace(kueue, f"kinds-{templates}", templates=templates)
    apply(kueue, queue(namespace, {"t4": {GPU: 60, **ROOM}, "h100": {GPU: 60, **ROOM}}))
    jobs = [
        queued_job(kind, f"{kind.lower()}-{index}", namespace, tolerating(wanting_h100(), templates))
        for kind in KINDS
        for index in range(PER_KIND)
    ]
    for job in jobs:
        create(kueue, job)

    pods = pods_of_started(kueue, namespace, jobs)

    flavours = {name: flavour_of_gpus(kueue, namespace, name) for name in pods}
    unplaced = sorted(name for name, pod in pods.items() if not pod["spec"].get("nodeName"))
    print(f"\n{namespace}: {len(unplaced)} of {len(jobs)} jobs are admitted to a flavour that refuses their pods")
    assert unplaced == (sorted(name for name, chosen in flavours.items() if chosen == "t4") if refused else [])
    assert len(unplaced) == (len(jobs) if refused else 0)
    assert service.process.running


@pytest.mark.parametrize("kind", PATHS)
def test_job_can_be_applied_again_and_by_a_second_manager(kueue: ControlPlane, service: Service, kind: str) -> None:
    """F23, F153: kubectl apply changes nothing, nor do two server-side managers where lists are merged by a key."""
    namespace = create_namespace(kueue, f"applied-{kind.lower()}", templates="written")
    document = queued_job(kind, "held", namespace, wanting_h100())
    for words in (("apply",), ("apply",)):
        _kubectl(kueue, document, *words)
    first = kueue.api.get(path_of(document))
    written = json.dumps(first["spec"])
    assert PRODUCT in written
    _kubectl(kueue, document, "apply")
    for manager in ("one", "two", "one") if kind in MERGED else ():
        _kubectl(kueue, document, "apply", "--server-side", f"--field-manager={manager}", "--force-conflicts=false")

    again = kueue.api.get(path_of(document))

    assert again["spec"] == first["spec"]
    assert service.process.running


def test_job_of_the_queue_that_is_a_namespaces_default_is_written_too(kueue: ControlPlane, service: Service) -> None:
    """F153: Kueue's own webhook adds the label after ours has been called, which is called again."""
    namespace = create_namespace(kueue, "by-default", templates="written")
    cluster_queue, local = queue(namespace, {"t4": {GPU: 60, **ROOM}, "h100": {GPU: 60, **ROOM}})
    local["metadata"]["name"] = "default"
    apply(kueue, (cluster_queue, local))
    jobs = [queued_job(kind, f"default-{kind.lower()}", namespace, wanting_h100()) for kind in ("Job", "JobSet")]
    for job in jobs:
        del job["metadata"]["labels"]
        create(kueue, job)

    pods = pods_of_started(kueue, namespace, jobs)

    assert {flavour_of_gpus(kueue, namespace, name) for name in pods} == {"h100"}
    assert all(pod["spec"].get("nodeName") for pod in pods.values())
    assert service.process.running


@pytest.mark.parametrize("kind", PATHS)
def test_suspended_job_that_gets_a_queue_later_is_written_then(
    kueue: ControlPlane, service: Service, kind: str
) -> None:
    """F153: kubectl label, on a queue that admits nothing; Kueue's own webhooks and JobSet's let it pass."""
    namespace = create_namespace(kueue, f"later-{kind.lower()}", templates="written")
    document = queued_job(kind, "late", namespace, wanting_h100())
    del document["metadata"]["labels"]
    create(kueue, document)
    before = kueue.api.get(path_of(document))
    resource = f"{PATHS[kind][1]}.{PATHS[kind][0].partition('/')[0]}/late"

    result = kueue.kubectl("label", "-n", namespace, resource, "kueue.x-k8s.io/queue-name=queue")

    after = kueue.api.get(path_of(document))
    assert result.code == 0, result.err
    assert PRODUCT not in json.dumps(before["spec"])
    [template] = stored_templates(after)
    written = json.dumps([template["spec"].get("affinity"), template["spec"].get("tolerations")])
    assert (PRODUCT in written, GPU in written) == ((True, True) if kind in LATE else (False, False))
    assert service.process.running


def test_worker_groups_of_a_ray_cluster_get_each_its_own_flavour(kueue: ControlPlane, service: Service) -> None:
    """F153: one group needs an H100, the other a T4; both flavours are open to both by labels."""
    namespace = create_namespace(kueue, "worker-groups", templates="written")
    apply(kueue, queue(namespace, {"t4": {GPU: 60, **ROOM}, "h100": {GPU: 60, **ROOM}}))
    cluster = queued_job("RayCluster", "mixed", namespace, wanting_h100())
    [first] = cluster["spec"]["workerGroupSpecs"]
    cluster["spec"]["workerGroupSpecs"].append(
        {**first, "groupName": "small", "template": pod_template(1, restart="Always", products="T4")}
    )
    create(kueue, cluster)
    eventually("it is started", lambda: not is_suspended(kueue.api.get(path_of(cluster))), 60)

    [workload] = kueue.api.items(f"/apis/{API}/namespaces/{namespace}/workloads")
    chosen = {one["name"]: one["flavors"].get(GPU) for one in workload["status"]["admission"]["podSetAssignments"]}

    assert {name: flavour for name, flavour in chosen.items() if flavour} == {"gpus": "h100", "small": "t4"}
    assert service.process.running


def _kubectl(plane: ControlPlane, document: Object, *words: str) -> None:
    result = plane.kubectl(*words, "-f", "-", stdin=json.dumps(document))
    assert result.code == 0, result.err
