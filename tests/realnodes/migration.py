# SPDX-License-Identifier: Apache-2.0
"""A Deployment whose pods follow the GPUs of real nodes from the device plugin to DRA and back, and what they hold."""

import datetime as dt
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.builders import policy
from tests.controlplane.kubectl import Object
from tests.e2e.stage import create_namespace, eventually
from tests.realnodes.claim_stage import CONFIG_MAPS, delete_namespace, make_templates
from tests.realnodes.cluster import Cluster
from tests.realnodes.node import Node
from tests.realnodes.seen_devices import ALLOWED, container_pod

LABELS = {"app": "train"}
SECONDS = 240
"""Bound on a move: some ten seconds on two quiet cores."""


class Migration:
    """A Deployment of one namespace, whose pods ask for one `nvidia.com/gpu` each, by one manifest."""

    def __init__(self, cluster: Cluster, replicas: int) -> None:
        self._cluster = cluster
        self._api = cluster.plane.api
        self.replicas = replicas
        self.namespace = create_namespace(cluster.plane, "migration", migration="yes")
        self._path = f"/api/v1/namespaces/{self.namespace}/pods"
        self._pod = container_pod("train", self.namespace, {"nvidia.com/gpu": 1})
        self.drained: list[float] = []

    @contextmanager
    def running(self, folder: Path) -> Iterator[None]:
        """Run the pods while the block lasts; the templates for their claims are there from the beginning."""
        make_templates(self._cluster, self._pod, folder)
        template = {"metadata": {"labels": LABELS}, "spec": self._pod["spec"]}
        spec = {"replicas": self.replicas, "selector": {"matchLabels": LABELS}, "template": template}
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        self._api.create(path, {"metadata": {"name": "train"}, "spec": spec})
        try:
            yield
        finally:
            self._api.delete(f"{path}/train")
            self._api.delete(f"{CONFIG_MAPS}/convert-migration")
            eventually("its pods are gone", lambda: not self._api.items(self._path), SECONDS)
            delete_namespace(self._cluster, self.namespace)

    def convert(self, on: bool) -> None:
        """Switch the policy field convertToClaims for the namespace, and wait until admission does so."""
        text = policy("convert", "priority: 9, match: {namespaceSelector: {matchLabels: {migration: 'yes'}}}, "
                      f"admission: {{convertToClaims: {json.dumps(on)}}}")  # fmt: skip
        metadata = {"name": "convert-migration", "labels": {"gpu-usher.io/policy": "true"}}
        document = {"metadata": metadata, "data": {"convert.yaml": text}}
        known = self._api.client.get(f"{CONFIG_MAPS}/convert-migration").is_success
        if known:
            self._api.patch(f"{CONFIG_MAPS}/convert-migration", document)
        else:
            self._api.create(CONFIG_MAPS, document)
        eventually("admission knows the policy", lambda: self._converts() == on)

    def _converts(self) -> bool:
        return "resourceClaims" in self._api.create(f"{self._path}?dryRun=All", self._pod)["spec"]

    def drain(self, node: Node) -> None:
        """Cordon a node, and evict its pods."""
        words = ("drain", node.name, "--pod-selector=app=train", "--timeout=120s")
        done = self._cluster.plane.kubectl(*words)
        assert done.code == 0, done.err

    def uncordon(self, node: Node) -> None:
        """Give a node back."""
        assert self._cluster.plane.kubectl("uncordon", node.name).code == 0

    def wait(self) -> list[Object]:
        """Wait until all pods run and have said what they see, and return them."""
        began = time.monotonic()
        pods: list[Object] = []

        def settled() -> bool:
            pods[:] = [pod for pod in self._api.items(self._path) if not pod["metadata"].get("deletionTimestamp")]
            running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
            return len(running) == self.replicas == len(pods) and all(map(self._has_said, running))

        eventually("every pod runs", settled, SECONDS)
        self.drained.append(time.monotonic() - began)
        return pods

    def _log(self, pod: Object) -> str:
        answer = self._api.client.get(f"{self._path}/{pod['metadata']['name']}/log")
        return answer.text if answer.is_success else ""

    def _has_said(self, pod: Object) -> bool:
        return self._log(pod).endswith("end\n")

    def held_twice(self, pods: list[Object]) -> list[str]:
        """Name the device files that more than one pod of a node can open."""
        counts = Counter(
            f"{pod['spec']['nodeName']}: {line.partition(':')[0]}"
            for pod in pods
            for line in self._log(pod).splitlines()
            if ALLOWED in line
        )
        assert counts.total() == self.replicas, counts
        return [file for file, count in counts.items() if count > 1]


def seconds_without_service(before: list[Object], after: list[Object]) -> list[float]:
    """List, for each pod that replaced another, the seconds from its creation, at the eviction, to its start."""
    kept = {pod["metadata"]["uid"] for pod in before}
    new = [pod for pod in after if pod["metadata"]["uid"] not in kept]
    running = [pod["status"]["containerStatuses"][0]["state"]["running"] for pod in new]
    return [
        (_second(state["startedAt"]) - _second(pod["metadata"]["creationTimestamp"])).total_seconds()
        for pod, state in zip(new, running, strict=True)
    ]


def _second(timestamp: str) -> dt.datetime:
    return dt.datetime.fromisoformat(timestamp)


def kinds(pods: list[Object]) -> dict[str, Counter[str]]:
    """Count by node how its pods got their GPUs: converted, by a claim for the extended resource, or by the plugin."""
    counts: dict[str, Counter[str]] = {}
    for pod in pods:
        extended = pod["status"].get("extendedResourceClaimStatus")
        kind = "converted" if pod["spec"].get("resourceClaims") else "extended" if extended else "plugin"
        counts.setdefault(pod["spec"]["nodeName"], Counter())[kind] += 1
    return counts
