# SPDX-License-Identifier: Apache-2.0
"""Kueue's own controller beside our webhooks and scheduler: what it counts, and where what it admits runs.

Kueue's webhooks suspend a Job and gate a Pod; its controller counts what is stored, after all webhooks. The order in
which the API server calls its webhooks and ours hence does not matter.
"""

import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.cluster.files import shipped_policies
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, kubelets, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    OURS,
    Service,
    create_namespace,
    create_pod,
    decision,
    eventually,
    gpu_pod,
    install_webhooks,
    pods_of,
    read_pod,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)
from tests.neighbours.kueue import GPU, NAME, QUEUE, counted, flavour, queue, refusals, running_kueue
from tests.neighbours.programs import find
from tests.neighbours.running import apply

POOL = "gpu-usher.test/pool"
PRODUCT = "nvidia.com/gpu.product"
H100, T4, A100 = "NVIDIA-H100-80GB-HBM3", "Tesla-T4", "NVIDIA-A100-SXM4-40GB"
SLICE = "nvidia.com/mig-1g.5gb"
TAINTS = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
FLEET = (
    node_object("t4", T4, offers={GPU: 8}, labels={POOL: "t4"}, taints=TAINTS),
    node_object("h100", labels={POOL: "h100"}, taints=TAINTS),
    node_object("h100-of-others", taints=TAINTS),
    node_object("a100", A100, offers={GPU: 4, SLICE: 7}, labels={PRODUCT: A100}, taints=TAINTS),
)
FLAVOURS = (
    flavour("t4", {POOL: "t4", PRODUCT: T4}),
    flavour("h100", {POOL: "h100", PRODUCT: H100}),
    flavour("a100", {PRODUCT: A100}),
    flavour("tainted", {PRODUCT: H100}, TAINTS),
)
SLICES = "priority: 900, match: {podSelector: {matchLabels: {slices: 'yes'}}}, admission: {rightSizing: true}"


@pytest.fixture(scope="module")
def kueue(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane on which Kueue runs; the tests skip, with the remedy, where it is not built."""
    folder = find(NAME)
    if isinstance(folder, str):
        pytest.skip(folder)
    add_nodes(plane.api, FLEET)
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with kubelets(plane.api), running_kueue(plane, folder):
        apply(plane, FLAVOURS)
        yield plane


@pytest.fixture(scope="module")
def service(kueue: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with its webhooks and its scheduler, and a policy that gives some pods slices."""
    policies: Path = shutil.copytree(shipped_policies(), tmp_path_factory.mktemp("own") / "policies")
    (policies / "slices.yaml").write_text(policy("slices", SLICES), "utf-8")
    with serving(kueue, policies=str(policies)) as running:
        install_webhooks(kueue, running)
        start_scheduler(kueue, running)
        yield running


@pytest.fixture
def namespace(kueue: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace for this test alone, for which the webhooks are called."""
    assert service.process.running
    return create_namespace(kueue, f"queued-{zlib.crc32(request.node.name.encode()):08x}")


def job(
    name: str, namespace: str, requests: Mapping[str, int], limits: Mapping[str, int] | None = None, **more: Any
) -> Object:
    """Write a Job of two pods for a queue; `more`: annotations, labels, and fields of the pod's spec."""
    resources = {"requests": dict(requests), **({"limits": dict(limits)} if limits else {})}
    annotations = {f"gpu-usher.io/{key}": value for key, value in more.pop("annotations", {}).items()}
    labels = more.pop("labels", {})
    container = {"name": "main", "image": "train:1", "resources": resources}
    spec = {"restartPolicy": "Never", "schedulerName": OURS, "containers": [container], **more}
    template = {"metadata": {"annotations": annotations, "labels": labels}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {QUEUE: "queue"}},
        "spec": {"parallelism": 2, "completions": 2, "suspend": True, "template": template},
    }


def queued(plane: ControlPlane, namespace: str, quota: Mapping[str, Mapping[str, int]], *jobs: Object) -> None:
    """Create the queue of a namespace, and jobs for it."""
    apply(plane, queue(namespace, quota))
    for document in jobs:
        plane.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", document)


def admission_of(plane: ControlPlane, namespace: str, name: str) -> tuple[str, Mapping[str, str]]:
    """Wait until Kueue has admitted a Job or a Pod, and return the flavour and what it counts."""
    eventually(f"{name} is admitted", lambda: counted(plane, namespace, name))
    admission = counted(plane, namespace, name)
    assert admission is not None
    return admission


def pods_of_job(plane: ControlPlane, namespace: str, count: int = 2) -> list[Object]:
    """Wait until a Job has made its pods, and return them."""
    eventually(f"{count} pods are made", lambda: len(pods_of(plane, namespace)) == count)
    return pods_of(plane, namespace)


def test_job_with_requests_only_is_admitted_by_quota_and_runs_where_its_flavour_is(
    kueue: ControlPlane, namespace: str
) -> None:
    """F18, S14: we repair the template, Kueue counts and admits it, and our scheduler seats its pods."""
    queued(kueue, namespace, {"t4": {GPU: 4}, "h100": {GPU: 8}}, job("train", namespace, {GPU: 4}))

    flavour_of, usage = admission_of(kueue, namespace, "train")

    pods = pods_of_job(kueue, namespace)
    assert (flavour_of, usage) == ("h100", {GPU: "8"})
    assert {wait_for_node(kueue, pod) for pod in pods} == {"h100"}
    assert [pod["spec"]["nodeSelector"] for pod in pods] == [{POOL: "h100", PRODUCT: H100}] * 2
    assert all(f"toleration added for {GPU}" in decision(pod)["actions"] for pod in pods)
    kueue.api.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs/train")


def test_job_beyond_the_quota_waits_and_follows(kueue: ControlPlane, namespace: str) -> None:
    """F18, S14: what we repaired takes quota and gives it back."""
    jobs = [job(name, namespace, {GPU: 1}) for name in ("first", "second")]
    queued(kueue, namespace, {"t4": {GPU: 3}}, jobs[0])
    admission_of(kueue, namespace, "first")
    pods_of_job(kueue, namespace)
    kueue.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", jobs[1])

    eventually("it waits", lambda: any("insufficient unused quota" in word for word in refusals(kueue, namespace)))
    assert kueue.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/second")["spec"]["suspend"]
    kueue.api.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs/first")
    assert admission_of(kueue, namespace, "second") == ("t4", {GPU: "2"})


def test_requests_that_differ_from_limits_are_counted_as_the_limits(kueue: ControlPlane, namespace: str) -> None:
    """F7, S14: Kueue counts the Job as it is stored, and so with our repair."""
    queued(kueue, namespace, {"t4": {GPU: 8}}, job("train", namespace, {GPU: 4}, {GPU: 2}))

    assert admission_of(kueue, namespace, "train") == ("t4", {GPU: "4"})


def test_job_is_counted_by_its_template_and_not_by_the_slice_that_its_pods_get(
    kueue: ControlPlane, namespace: str
) -> None:
    """F130, S14, a limit: a template gets repairs only, so that quota of whole GPUs is held for pods on MIG slices."""
    small = job("train", namespace, {GPU: 1}, annotations={"gpu-memory": "4Gi"}, labels={"slices": "yes"})
    queued(kueue, namespace, {"a100": {GPU: 4}}, small)

    assert admission_of(kueue, namespace, "train") == ("a100", {GPU: "2"})
    pods = pods_of_job(kueue, namespace)
    assert {wait_for_node(kueue, pod) for pod in pods} == {"a100"}
    assert [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods] == [{SLICE: "1"}] * 2


def test_annotation_does_not_choose_the_flavour_of_a_job(kueue: ControlPlane, service: Service, namespace: str) -> None:
    """F83, S14, a limit: Kueue reads no annotation of ours. The pods wait, and explain says that the flavor excludes
    the nodes of the product that they allow.
    """
    only_h100 = {"products": "H100"}
    queued(
        kueue, namespace, {"t4": {GPU: 4}, "h100": {GPU: 8}}, job("train", namespace, {GPU: 1}, annotations=only_h100)
    )

    assert admission_of(kueue, namespace, "train") == ("t4", {GPU: "2"})
    pod = pods_of_job(kueue, namespace)[0]
    wait_for_refusal(kueue, pod)
    explanation = service.explain(read_pod(kueue, pod))
    assert explanation["primary"]["reason"] == "NodeAffinityMismatch"
    assert "ProductNotAllowed" in {part["reason"] for part in explanation["refused"]}
    assert {part["reason"] for part in explanation["in_tree"]} == {"NodeAffinityMismatch"}


def test_flavour_with_the_taint_of_gpu_nodes_admits_only_jobs_that_tolerate_it(
    kueue: ControlPlane, namespace: str
) -> None:
    """F3, S14, a limit: Kueue looks for the toleration in the template, and we give it to the pods."""
    tolerant = job("tolerant", namespace, {GPU: 1}, tolerations=[{"key": GPU, "operator": "Exists"}])
    queued(kueue, namespace, {"tainted": {GPU: 8}}, job("train", namespace, {GPU: 1}), tolerant)

    eventually("Kueue says why", lambda: any("untolerated taint" in word for word in refusals(kueue, namespace)))
    assert admission_of(kueue, namespace, "tolerant") == ("tainted", {GPU: "2"})
    assert counted(kueue, namespace, "train") is None


def test_node_selector_in_the_template_chooses_the_flavour_of_a_job(kueue: ControlPlane, namespace: str) -> None:
    """S14: what Kueue does read, as a flavour has the same label."""
    wanted = job("train", namespace, {GPU: 1}, nodeSelector={PRODUCT: H100})
    queued(kueue, namespace, {"t4": {GPU: 4}, "h100": {GPU: 8}}, wanted)

    assert admission_of(kueue, namespace, "train") == ("h100", {GPU: "2"})


def test_annotation_of_a_plain_pod_chooses_its_flavour(kueue: ControlPlane, namespace: str) -> None:
    """F10, S14: the affinity that we write is in the stored pod, which Kueue counts and matches with its flavours."""
    queued(kueue, namespace, {"t4": {GPU: 4}, "h100": {GPU: 8}})
    pod = gpu_pod("train", namespace, requests={GPU: 1}, annotations={"products": "H100"}, labels={QUEUE: "queue"})

    stored = create_pod(kueue, pod)

    assert {"name": "kueue.x-k8s.io/admission"} in stored["spec"]["schedulingGates"]
    assert admission_of(kueue, namespace, "train") == ("h100", {GPU: "1"})
    assert wait_for_node(kueue, pod) == "h100"


def test_plain_pod_is_counted_by_the_slice_that_it_gets(kueue: ControlPlane, namespace: str) -> None:
    """F130, S14: the slice is in the stored pod."""
    queued(kueue, namespace, {"a100": {GPU: 4, SLICE: 7}})
    labels = {QUEUE: "queue", "slices": "yes"}
    pod = gpu_pod("train", namespace, requests={GPU: 1}, annotations={"gpu-memory": "4Gi"}, labels=labels)

    create_pod(kueue, pod)

    assert admission_of(kueue, namespace, "train") == ("a100", {SLICE: "1"})
    assert wait_for_node(kueue, pod) == "a100"
