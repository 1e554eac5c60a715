# SPDX-License-Identifier: Apache-2.0
"""The former release's service under this tree's manifests, as after a rollback of the replicas alone."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process
from tests.e2e.stage import Service, counted_calls, create_pod, decision, grant, install_webhooks, plain_pod
from tests.e2e.test_install import define

JOB_SETS = {"jobsets.jobset.x-k8s.io": "JobSet"}
GPU = "nvidia.com/gpu"


class FormerService(Service):
    """`gpu-usher serve` of the former release, from its files."""

    def __init__(self, plane: ControlPlane, tree: Path) -> None:
        self._tree = tree
        super().__init__(plane, "former")

    def _start(self) -> Process:
        words = [f"--{key}={value}" for key, value in self.flags.items()]
        command = [sys.executable, "-P", "-m", "app.cli.main", "serve", *words]
        log, account = self._plane.folder / "former.log", self._plane.kubeconfig("gpu-usher")
        return Process("former", [*command, f"--kubeconfig={account}"], log, {"PYTHONPATH": str(self._tree)})


@pytest.fixture(scope="module")
def service(plane: ControlPlane, former: Path) -> Iterator[FormerService]:
    """The former service, called by this tree's webhooks; failed calls are errors, whatever their policy is."""
    define(plane, JOB_SETS)
    grant(plane)
    running = FormerService(plane, former)
    try:
        running.wait_ready()
        install_webhooks(plane, running, "queued-jobs", failurePolicy="Fail")
        yield running
    finally:
        running.process.stop()


def test_former_service_admits_pods_by_the_webhooks_of_this_tree(
    plane: ControlPlane, service: FormerService, namespace: str
) -> None:
    """HA-02: between a rollback of the Deployment and of the webhooks, and with `kubectl rollout undo` for good."""
    assert service.process.running
    stored = create_pod(plane, plain_pod(namespace, requests={GPU: 1}))

    assert stored["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1"}
    assert decision(stored)


def test_former_service_lets_a_job_set_pass_that_only_this_tree_reviews(
    plane: ControlPlane, service: FormerService, namespace: str
) -> None:
    """F153: the webhook of queued-jobs stays after a rollback. The former release has no such webhook, and no error."""
    template: Object = {"spec": {"template": {"spec": plain_pod(namespace, requests={GPU: 1})["spec"]}}}
    spec = {"replicatedJobs": [{"name": "a", "replicas": 1, "template": template}]}
    job_set = {"apiVersion": "jobset.x-k8s.io/v1", "kind": "JobSet", "metadata": {"name": "train"}, "spec": spec}
    path = f"/apis/jobset.x-k8s.io/v1/namespaces/{namespace}/jobsets"

    with counted_calls(service) as calls:
        stored = plane.api.create(path, job_set)

    assert calls[0] == 1
    assert stored["spec"] == spec
