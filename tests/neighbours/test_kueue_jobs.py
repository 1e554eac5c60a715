# SPDX-License-Identifier: Apache-2.0
"""Jobs of five kinds in queues of two flavours, and of one with a topology: which of them get nodes that refuse them.

In one namespace a policy has what the pods need written into the templates, in the other none has. A job is admitted to
a wrong flavour if no pod of it can ever be placed there.
"""

import json
import shutil
from collections.abc import Iterator
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
from tests.neighbours.kueue import API, GPU, NAME, flavour, flavour_of_gpus, queue, running_kueue
from tests.neighbours.programs import find
from tests.neighbours.running import apply

PRODUCT, POOL, RACK = "nvidia.com/gpu.product", "gpu-usher.test/pool", "gpu-usher.test/rack"
H100, T4 = "NVIDIA-H100-80GB-HBM3", "Tesla-T4"
TAINTS = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
EACH = 12
"""Nodes of eight GPUs of each product."""
FLEET = tuple(
    node_object(
        f"{name}-{index}",
        product,
        offers={GPU: 8},
        labels={PRODUCT: product, POOL: "gpus", RACK: f"{'a' if name == 't4' else 'b'}-{index // 4}"},
        taints=TAINTS,
    )
    for name, product in (("t4", T4), ("h100", H100))
    for index in range(EACH)
)
FLAVOURS = (
    flavour("t4", {PRODUCT: T4}, TAINTS),
    flavour("h100", {PRODUCT: H100}, TAINTS),
    flavour("mixed", {POOL: "gpus"}, topology="racks"),
)
TOPOLOGY: Object = {
    "apiVersion": API,
    "kind": "Topology",
    "metadata": {"name": "racks"},
    "spec": {"levels": [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]},
}
ROOM = {"cpu": 1000, "memory": 1 << 40}
KINDS = ("Job", "JobSet", "RayCluster", "MPIJob", "AppWrapper")
PER_KIND = 10
MERGED = ("JobSet", "MPIJob")
"""Kinds whose lists server-side apply merges; those of Ray and AppWrapper are atomic, and in conflict."""
WRITES = (
    "priority: 900, match: {namespaceSelector: {matchLabels: {templates: written}}}, "
    "admission: {queuedTemplates: Write, tolerations: {fromNodeTaints: true}}"
)


@pytest.fixture(scope="module")
def kueue(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane on which Kueue runs with the definitions of five kinds; the tests skip where it is not built."""
    folder = find(NAME)
    if isinstance(folder, str):
        pytest.skip(folder)
    add_nodes(plane.api, FLEET)
    for file in sorted((folder / "jobs").rglob("*.yaml")):
        if "CustomResourceDefinition" in file.read_text("utf-8"):
            result = plane.kubectl("apply", "--server-side", "-f", str(file))
            assert result.code == 0, result.err
    with kubelets(plane.api), running_kueue(plane, folder, FRAMEWORKS):
        apply(plane, (TOPOLOGY, *FLAVOURS))
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
        if job["kind"] != "Job":
            [template] = stored_templates(stored)
            plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod_of(stored, template))
    eventually("all pods are made", lambda: len(pods_of(plane, namespace)) == len(jobs), 60)

    def judged(pod: Object) -> bool:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        return bool(pod["spec"].get("nodeName")) or any(one.get("reason") == "Unschedulable" for one in conditions)

    eventually("all pods are judged", lambda: all(map(judged, pods_of(plane, namespace))), 120)
    return {pod["metadata"]["ownerReferences"][0]["name"]: pod for pod in pods_of(plane, namespace)}


def tolerating(template: Object, templates: str) -> Object:
    """Add the toleration that Kueue asks for; where templates are written, admission does that."""
    if templates == "left":
        template["spec"]["tolerations"] = [{"key": GPU, "operator": "Exists"}]
    return template


@pytest.mark.parametrize(("templates", "refused"), [("written", False)])
def test_topology_is_assigned_on_nodes_that_take_the_pods(
    kueue: ControlPlane, service: Service, templates: str, refused: bool
) -> None:
    """F153, S14: with a topology Kueue names the host itself, among those that the template's affinity selects."""
    namespace = create_namespace(kueue, f"topology-{templates}", templates=templates)
    apply(kueue, queue(namespace, {"mixed": {GPU: 100, **ROOM}}))
    jobs = []
    for index in range(8):
        template = tolerating(wanting_h100(), templates)
        template["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] = RACK
        jobs.append(queued_job("Job", f"tas-{index}", namespace, template))
        create(kueue, jobs[-1])

    pods = pods_of_started(kueue, namespace, jobs)

    unplaced = [name for name, pod in pods.items() if not pod["spec"].get("nodeName")]
    print(f"\n{namespace}: {len(unplaced)} of {len(jobs)} jobs are assigned a host that refuses their pods")
    assert bool(unplaced) is refused
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


def _kubectl(plane: ControlPlane, document: Object, *words: str) -> None:
    result = plane.kubectl(*words, "-f", "-", stdin=json.dumps(document))
    assert result.code == 0, result.err
