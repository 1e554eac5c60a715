# SPDX-License-Identifier: Apache-2.0
"""gpu-usher on the real nodes by its own manifests: what all ways to install it have in common, and its removal."""

import shutil
from pathlib import Path

import yaml

from app.kube.pods import DECISION
from tests.controlplane.binaries import Binaries
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import wait_until
from tests.e2e.stage import (
    DEPLOY,
    OURS,
    SOON_SECONDS,
    create_pod,
    decision,
    gpu_pod,
    remove_webhooks,
    wait_for_node,
)
from tests.realnodes.cluster import Cluster
from tests.realnodes.dockerfile import Config
from tests.realnodes.images import our_image, write_archive
from tests.realnodes.rootfs import busybox_layer
from tests.realnodes.seen_devices import container_pod, delete_pod, read_seen, wait_for_phase

NAMESPACE, GPU = "gpu-usher", "nvidia.com/gpu"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
OVERLAY = DEPLOY / "overlays" / "production-self-signed"
"""The production overlay for a cluster without cert-manager and the Prometheus operator."""
SCHEDULER_CONFIG = Config({"PATH": "/usr/local/bin:/bin"}, user="65532:65532", command=("kube-scheduler",))
PLAY_SCHEDULER = '#!/bin/sh\nexec /controlplane kube-scheduler "$@"\n'
"""The manifest's command is `kube-scheduler`; the tests' binary plays what its first argument says."""
DEFAULT_SCHEDULER: Object = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
}
"""The cluster's own scheduler, which places our pods."""
ROLLOUT_SECONDS = 600
"""Bound on a rollout. A guess; one of three replicas takes some 40 s on two quiet cores."""
UNINSTALL_SECONDS = 180
"""Bound on the end of all pods, which have at most 45 s each by their manifests."""


def write_scheduler_image(target: Path, name: str, binaries: Binaries) -> None:
    """Write the OCI archive of kube-scheduler: busybox, the tests' binary, and a script of the program's name."""
    layer = target.with_suffix(".layer")
    programs = layer / "usr" / "local" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(binaries.command("kube-scheduler")[0], layer / "controlplane")
    (programs / "kube-scheduler").write_text(PLAY_SCHEDULER, "utf-8")
    for file in (layer / "controlplane", programs / "kube-scheduler"):
        file.chmod(0o755)
    write_archive(target, name, (busybox_layer(), layer), SCHEDULER_CONFIG)
    shutil.rmtree(layer)


def scheduler_image() -> str:
    """Return the image that components/second-scheduler names."""
    document = yaml.safe_load((DEPLOY / "components" / "second-scheduler" / "deployment.yaml").read_text("utf-8"))
    return str(document["spec"]["template"]["spec"]["containers"][0]["image"])


def run_gpu_pod(cluster: Cluster, namespace: str) -> None:
    """Create a pod with GPUs in requests alone; see it admitted, placed and running with its GPUs; delete it."""
    pod = container_pod("train", namespace, {}, requests={GPU: 2}, schedulerName="default-scheduler")
    created = create_pod(cluster.plane, pod)
    assert created["spec"]["schedulerName"] == OURS
    assert created["spec"]["containers"][0]["resources"]["limits"] == {GPU: "2"}
    assert decision(created)
    assert wait_for_node(cluster.plane, pod) == "node-1"
    wait_for_phase(cluster, pod)
    assert len(read_seen(cluster, pod).gpus) == 2
    delete_pod(cluster, pod)


class Installation:
    """gpu-usher in a cluster, however it is installed; `uninstall` may be called again."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """Give every node our image and kube-scheduler's, and the cluster a scheduler of its own.

        What an earlier module left of us in the cluster is deleted.
        """
        self.plane = cluster.plane
        for node in cluster.nodes.values():
            if not node.has_image(our_image()):
                node.import_image(cluster.archives[our_image()])
        if lacking := [node for node in cluster.nodes.values() if not node.has_image(scheduler_image())]:
            archive = folder.with_suffix(".tar")
            write_scheduler_image(archive, scheduler_image(), cluster.plane.binaries)
            for node in lacking:
                node.import_image(archive)
            archive.unlink()
        if OURS in self.plane.schedulers:
            self.plane.stop(OURS)
        self.uninstall()
        self.plane.start_scheduler(DEFAULT_SCHEDULER)

    def wait_until_admitting(self) -> None:
        """Wait until every Deployment is rolled out, and GPU pods are admitted."""
        for deployment in self.plane.api.items(DEPLOYMENTS):
            self.wait_for_rollout(deployment["metadata"]["name"])
        wait_until("GPU pods are admitted through the Service", self._admits, SOON_SECONDS)

    def _admits(self) -> bool:
        """Tell whether the API server calls the webhooks, which it does once the CA is in every configuration."""
        pod = gpu_pod("probe", "default", requests={"nvidia.com/gpu": 1})
        answer = self.plane.api.try_create("/api/v1/namespaces/default/pods?dryRun=All", pod)
        webhooks = [
            webhook
            for kind in CONFIGURATIONS
            for configuration in self.plane.api.items(f"{REGISTRATION}/{kind}")
            for webhook in configuration["webhooks"]
        ]
        bundles = all(webhook["clientConfig"].get("caBundle") for webhook in webhooks)
        return bundles and answer.is_success and DECISION in answer.json()["metadata"].get("annotations", {})

    def wait_for_rollout(self, name: str) -> None:
        """Wait until a Deployment has its replicas, all of the newest template and available, and no others."""
        try:
            wait_until(f"{name} is rolled out", lambda: self.rolled_out(name), ROLLOUT_SECONDS)
        except AssertionError as error:
            words = ("get", "pods,events", "--namespace", NAMESPACE, "-o", "wide")
            raise AssertionError(f"{error}\n{self.plane.kubectl(*words).out}") from error

    def rolled_out(self, name: str) -> bool:
        """Tell what `kubectl rollout status` waits for (k8s.io/kubectl pkg/polymorphichelpers/rollout_status.go)."""
        deployment = self.plane.api.get(f"{DEPLOYMENTS}/{name}")
        status = deployment["status"]
        counts = {status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")}
        seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
        return seen and counts == {deployment["spec"]["replicas"]}

    def pods(self) -> list[Object]:
        """List our pods that are not being deleted."""
        return [pod for pod in self.plane.api.items(PODS) if "deletionTimestamp" not in pod["metadata"]]

    def objects(self) -> list[str]:
        """List all objects whose name or namespace is ours, of every kind that can be listed, but for events."""
        resources = self.plane.kubectl("api-resources", "--verbs=list", "--no-headers", "-o", "name")
        kinds = ",".join(name for name in resources.out.split() if not name.startswith("events"))
        columns = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
        result = self.plane.kubectl("get", kinds, "--all-namespaces", "--no-headers", "-o", columns)
        assert (resources.code, result.code) == (0, 0), resources.err + result.err
        return [" ".join(line.split()) for line in result.out.splitlines() if "gpu-usher" in line]

    def uninstall(self) -> None:
        """Delete all of it as deploy/README says: the webhooks first, then the overlay; wait for the last pod."""
        self.remove_webhooks()
        kustomization = ("-k", str(OVERLAY))
        result = self.plane.kubectl("delete", *kustomization, "--ignore-not-found", "--wait=false")
        assert result.code == 0, result.err
        wait_until("every object of it is gone", lambda: self.plane.kubectl.gone(*kustomization), UNINSTALL_SECONDS)

    def remove_webhooks(self) -> None:
        """Delete the webhook configurations by the line of deploy/README, and what an earlier module left of them."""
        kinds = ",".join(CONFIGURATIONS)
        result = self.plane.kubectl("delete", kinds, "-l", "app.kubernetes.io/name=gpu-usher")
        assert result.code == 0, result.err
        remove_webhooks(self.plane)

    def close(self) -> None:
        """Uninstall it, and take the cluster's scheduler away, for modules that start their own."""
        self.uninstall()
        self.plane.stop("kube-scheduler")
