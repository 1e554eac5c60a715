# SPDX-License-Identifier: Apache-2.0
"""What users and administrators do while gpu-usher is upgraded: pods that run, workloads, and edits of policies."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.kube.pods import DECISION
from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Api, Object
from tests.e2e.stage import gpu_pod
from tests.realnodes.claim_stage import CONFIG_MAPS
from tests.realnodes.images import SHELL
from tests.realnodes.seen_devices import container_pod

PAUSE_SECONDS = 0.5
"""Between two rounds."""
MOST_WAITING = 3
"""GPU pods that may wait at a time, so that a node of eight GPUs has room for them beside those of a test."""
FAR_SECONDS = 90
"""Bound on the wait for the last pod. A new leader of kube-scheduler needs up to 15 s by its Lease."""
TOO_MANY_REQUESTS = 429
POLICIES = "/apis/gpu-usher.io/v1alpha1/gpupolicies"
EDITED = "edited"
DONE, UNCHANGED = "done", "not mutated"
"""The outcomes that are not an error's message: `not mutated` is a GPU pod or a workload that admission never saw."""
NOWHERE = "match: {podSelector: {matchLabels: {nobody: has-it}}}"


@dataclass
class Activity:
    """The outcomes so far by kind, the seconds that GPU pods waited until they ran, and the last edit that passed."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    edit: int = 0

    def count(self, kind: str, outcome: str) -> None:
        """Count an outcome."""
        self.outcomes.setdefault(kind, Counter())[outcome] += 1

    def failures(self) -> dict[str, Counter[str]]:
        """Return the outcomes that are not DONE, by kind."""
        others = {kind: Counter({key: n for key, n in c.items() if key != DONE}) for kind, c in self.outcomes.items()}
        return {kind: counter for kind, counter in others.items() if counter}

    def rows(self) -> list[str]:
        """Write a row of a table for each kind: how many, and how many of them failed."""
        counted = (
            (kind, tally.total(), tally[UNCHANGED], tally[DONE]) for kind, tally in sorted(self.outcomes.items())
        )
        return [
            f"| {kind} | {total} | {unchanged} | {total - done - unchanged} |"
            for kind, total, unchanged, done in counted
        ]


def edited_objects(number: int) -> tuple[Object, Object]:
    """Write a GPUPolicy and a ConfigMap with a policy, as they are after so many edits."""
    spec: Object = {"description": f"edit {number}", "match": {"podSelector": {"matchLabels": {"nobody": "has-it"}}}}
    text = policy(f"{EDITED}-file", f"description: edit {number}, {NOWHERE}")
    metadata = {"name": EDITED, "namespace": "gpu-usher", "labels": {"gpu-usher.io/policy": "true"}}
    return (
        {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": EDITED}, "spec": spec},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"edited.yaml": text}},
    )


@dataclass
class Round:
    """One user: each call of `go` does every kind of request once; `prefix` begins the names of what it creates."""

    api: Api
    namespace: str
    activity: Activity
    prefix: str
    number: int = 0
    waiting: deque[tuple[str, float]] = field(default_factory=deque)

    def go(self) -> None:
        """Take a round."""
        self.number += 1
        self._finish()
        if len(self.waiting) < MOST_WAITING:
            self._run_gpu_pod()
        self._run_cpu_pod()
        self._change_workload()
        self._edit()

    def end(self) -> None:
        """Wait until all GPU pods have run, and count those that do not."""
        end = time.monotonic() + FAR_SECONDS
        while self.waiting and time.monotonic() < end:
            self._finish()
            time.sleep(PAUSE_SECONDS)
        for name, _ in self.waiting:
            self.activity.count("GPU pods that ran", f"{name} has not run")

    def _create(self, kind: str, path: str, document: Object) -> Object:
        """Create an object, and count the outcome; GPU pods and workloads must have been mutated."""
        answer = self.api.try_create(path, document)
        body: Object = answer.json()
        self.activity.count(
            kind, (DONE if _mutated(kind, body) else UNCHANGED) if answer.is_success else body["message"]
        )
        return body if answer.is_success else {}

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def _run_gpu_pod(self) -> None:
        pod = container_pod(
            f"{self.prefix}-gpu-{self.number}", self.namespace, {"nvidia.com/gpu": 1}, schedulerName="default-scheduler"
        )
        if self._create("GPU pods that ran", self._pods, pod):
            self.waiting.append((pod["metadata"]["name"], time.monotonic()))

    def _finish(self) -> None:
        """Delete the GPU pods that run."""
        for name, since in list(self.waiting):
            if self.api.get(f"{self._pods}/{name}")["status"].get("phase") == "Running":
                self.activity.waits.append(time.monotonic() - since)
                self.api.client.delete(f"{self._pods}/{name}")
                self.waiting.remove((name, since))

    def _run_cpu_pod(self) -> None:
        pod = gpu_pod(
            f"{self.prefix}-cpu-{self.number}", self.namespace, {}, image=SHELL, schedulerName="default-scheduler"
        )
        pod["spec"]["containers"][0]["command"] = ["true"]
        pod["spec"]["restartPolicy"] = "Never"
        if self._create("CPU pods", self._pods, pod) and self.number > 3:
            self.api.client.delete(f"{self._pods}/{self.prefix}-cpu-{self.number - 3}")

    def _change_workload(self) -> None:
        """Create a Deployment whose template requests GPUs without limits, change its template, and delete it."""
        name, path = f"{self.prefix}-{self.number}", f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        template = gpu_pod(name, self.namespace, requests={"nvidia.com/gpu": 1})
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": template["spec"]}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        stored = self._create("workloads", path, {"metadata": {"name": name}, "spec": spec})
        if stored:
            stored["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "2"}}
            answer = self.api.client.put(f"{path}/{name}", json={**stored, "metadata": {"name": name}})
            body = answer.json()
            changed = answer.is_success and _limits(body["spec"]["template"]) == {"nvidia.com/gpu": "2"}
            self.activity.count("updates of workloads", DONE if changed else body.get("message", UNCHANGED))
            self.api.delete(f"{path}/{name}")

    def _edit(self) -> None:
        """Edit a policy in both of its forms."""
        objects = edited_objects(self.number)
        for kind, path, document in zip(
            ("GPUPolicy edits", "policy file edits"), (POLICIES, CONFIG_MAPS), objects, strict=True
        ):
            headers = {"Content-Type": "application/merge-patch+json"}
            answer = self.api.client.patch(f"{path}/{EDITED}", json=document, headers=headers)
            if answer.status_code == TOO_MANY_REQUESTS:  # while the definition changes; clients then try again
                time.sleep(float(answer.headers["Retry-After"]))
                answer = self.api.client.patch(f"{path}/{EDITED}", json=document, headers=headers)
            self.activity.count(kind, DONE if answer.is_success else answer.json()["message"])
        self.activity.edit = self.number


def _mutated(kind: str, body: Object) -> bool:
    """Tell whether admission changed what it must change: a decision in a GPU pod, limits in a template."""
    if kind == "CPU pods":
        return True
    template = body["spec"].get("template")
    return _limits(template) != {} if template else DECISION in body["metadata"].get("annotations", {})


def _limits(template: Object) -> Object:
    limits: Object = template["spec"]["containers"][0]["resources"].get("limits", {})
    return limits


@contextmanager
def activity(plane: ControlPlane, namespace: str, prefix: str) -> Iterator[Activity]:
    """Let a user take rounds for as long as the block lasts, and wait until the last GPU pod has run."""
    stop, seen = threading.Event(), Activity()

    def go() -> None:
        with plane.api.like() as api:
            user = Round(api, namespace, seen, prefix)
            while not stop.wait(PAUSE_SECONDS):
                user.go()
            user.end()

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(go)
        try:
            yield seen
        finally:
            stop.set()
            going.result(FAR_SECONDS + 30)
            print(*seen.rows(), f"longest wait {max(seen.waits, default=0):.0f} s", seen.failures(), sep="\n")
