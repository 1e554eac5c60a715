# SPDX-License-Identifier: Apache-2.0
"""What a scenario plays on: a control plane, the service as its own process, webhooks, a scheduler that asks us."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.kube.pods import DECISION
from app.telemetry.clock import now
from app.tls.serving_certificates import issue_if_needed
from tests.controlplane.cluster import ControlPlane, Scheduler
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, free_port, wait_until

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
READY_SECONDS = 60
SOON_SECONDS = 60
"""Bound on what kube-scheduler or a watch does by itself; most take a fraction of a second."""
OURS = "gpu-usher-scheduler"


class Service:
    """`gpu-usher serve` as a process of its own, following the control plane by its kubeconfig."""

    def __init__(self, plane: ControlPlane, name: str = "gpu-usher", **flags: str) -> None:
        self._plane = plane
        self._name = name
        self.folder = plane.folder / name
        self.folder.mkdir(exist_ok=True)
        self.port, ops, ui = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._ops, self._people = f"http://127.0.0.1:{ops}", f"http://127.0.0.1:{ui}"
        issue_if_needed(self.folder, now())
        self.ca = self.folder / "ca.crt"
        self.flags = {
            "kubeconfig": str(plane.kubeconfig("gpu-usher")),
            "host": "127.0.0.1",
            "port": str(self.port),
            "ops-port": str(ops),
            "ui-address": f"127.0.0.1:{ui}",
            "certs": str(self.folder),
            **{key.replace("_", "-"): value for key, value in flags.items()},
        }
        self.process = self._start()

    def _start(self) -> Process:
        words = [f"--{key}={value}" for key, value in self.flags.items()]
        command = [sys.executable, "-m", "app.cli.main", "serve", *words]
        return Process(self._name, command, self._plane.folder / f"{self._name}.log")

    def restart(self) -> None:
        """Start it again on the same ports, after `process.stop`."""
        self.process = self._start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait for /readyz."""
        wait_until("gpu-usher is ready", self.ready, READY_SECONDS, self.process)

    def ready(self) -> bool:
        """Tell what /readyz says."""
        try:
            return httpx.get(f"{self._ops}/readyz", trust_env=False, timeout=20).status_code == 200
        except httpx.HTTPError as error:
            raise ConnectionError(str(error)) from error

    def health(self) -> Object:
        """Give the body of /readyz."""
        found: Object = httpx.get(f"{self._ops}/readyz", trust_env=False, timeout=20).json()
        return found

    def explain(self, pod: Object, **params: str) -> Object:
        """Ask /explain about a Pod, or the pod of the cluster that a reference names."""
        url = f"{self._people}/explain"
        found: Object = httpx.post(url, json=pod, params=params, trust_env=False, timeout=30).json()
        return found

    def metric(self, name: str, **labels: str) -> float:
        """Sum a metric's samples that carry these labels; 0 where there is none."""
        text = httpx.get(f"{self._ops}/metrics", trust_env=False, timeout=20).text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(
            sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def calls(self, verb: str) -> float:
        """Count the requests of a verb so far."""
        return self.metric("gpu_usher_requests_total", verb=verb)


@contextmanager
def serving(plane: ControlPlane, name: str = "gpu-usher", **flags: str) -> Iterator[Service]:
    """Run the service as long as the block lasts; its identity and rights are those of deploy/."""
    grant(plane)
    service = Service(plane, name, **flags)
    try:
        service.wait_ready()
        yield service
    finally:
        service.process.stop()


def grant(plane: ControlPlane) -> None:
    """Give our identity the rights that deploy/ gives it."""
    if plane.api.client.get("/api/v1/namespaces/gpu-usher").status_code == 404:
        namespace(plane, "gpu-usher")
    rights = (DEPLOY / "base" / "rbac.yaml", DEPLOY / "components" / "dra" / "rbac.yaml")
    said = plane.kubectl("apply", *(word for path in rights for word in ("-f", str(path))))
    assert said.code == 0, said.err


def namespace(plane: ControlPlane, name: str, **labels: str) -> str:
    """Make a namespace, and wait until pods can be made in it; labels with `__` for `/` and `_` for `-`."""
    found = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": found}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(f"namespace {name} has its account", lambda: plane.api.client.get(account).is_success, SOON_SECONDS)
    return name


def install_webhooks(plane: ControlPlane, service: Service, **changes: Any) -> None:
    """Install the webhooks of deploy/, pointed at the process; `changes` replace fields of every webhook."""
    ca = base64.b64encode(service.ca.read_bytes()).decode()
    for document in yaml.safe_load_all((DEPLOY / "base" / "webhooks.yaml").read_text("utf-8")):
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": service.url + path, "caBundle": ca}
            webhook.update(changes)
        said = plane.kubectl("apply", "-f", "-", stdin=json.dumps(document))
        assert said.code == 0, said.err
    _wait_for_webhooks(plane, service)


def remove_webhooks(plane: ControlPlane) -> None:
    """Take the webhooks away."""
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        plane.api.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/gpu-usher")


def _wait_for_webhooks(plane: ControlPlane, service: Service) -> None:
    """Wait until the API server's own watch has brought it the configurations: dry runs are called for."""

    def called() -> bool:
        before = service.calls("mutate"), service.calls("validate")
        plane.api.try_create("/api/v1/namespaces/default/pods?dryRun=All", gpu_pod("probe", "default"))
        return service.calls("mutate") > before[0] and service.calls("validate") > before[1]

    wait_until("the API server calls the webhooks", called, SOON_SECONDS)


def scheduler_configuration(service: Service, *words: str) -> Object:
    """Take the configuration that `gpu-usher scheduler-config` writes, for the process at hand."""
    command = [sys.executable, "-m", "app.cli.main", "scheduler-config", "--for", "second", "-o", "json"]
    place = ["--url", f"{service.url}/scheduler", "--ca", str(service.ca)]
    done = subprocess.run([*command, *place, *words], capture_output=True, text=True, timeout=60, check=True)
    found: Object = json.loads(done.stdout)
    return found


def start_scheduler(
    plane: ControlPlane, service: Service, *words: str, name: str = OURS, change: Mapping[str, Any] | None = None
) -> Scheduler:
    """Start kube-scheduler with our extender, as schedulerName `name`; `change` replaces fields of the extender."""
    configuration = scheduler_configuration(service, *words)
    configuration["profiles"][0]["schedulerName"] = name
    configuration["extenders"][0].update(change or {})
    return plane.start_scheduler(configuration, name)


def gpu_pod(name: str, where: str, limits: Mapping[str, Any] | None = None, **more: Any) -> Object:
    """Make a GPU pod for our scheduler. `more`: annotations, labels, image, requests, env, and fields of the spec."""
    container: Object = {"name": "main", "image": more.pop("image", "train:1"), "env": more.pop("env", [])}
    resources = {"limits": {"nvidia.com/gpu": 1} if limits is None else dict(limits)}
    if "requests" in more:
        resources = {"requests": dict(more.pop("requests")), **({"limits": dict(limits)} if limits else {})}
    annotations = {f"gpu-usher.io/{key}": value for key, value in more.pop("annotations", {}).items()}
    metadata = {"name": name, "namespace": where, "annotations": annotations, "labels": more.pop("labels", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": OURS, "containers": [{**container, "resources": resources}], **more},
    }


def create_pod(plane: ControlPlane, pod: Object) -> Object:
    """Create a pod through the API server."""
    return plane.api.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)


def read_pod(plane: ControlPlane, pod: Object) -> Object:
    """Read a pod again."""
    return plane.api.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")


def node_of(plane: ControlPlane, pod: Object, seconds: float = SOON_SECONDS) -> str:
    """Wait until a pod is bound, and say to which node."""
    found: Object = {}

    def bound() -> bool:
        found.update(read_pod(plane, pod))
        return bool(found["spec"].get("nodeName"))

    try:
        wait_until(f"{pod['metadata']['name']} is bound", bound, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {refusal(found)}") from error
    return str(found["spec"]["nodeName"])


def refusal(pod: Object) -> str:
    """Give the text of the PodScheduled condition, which the FailedScheduling event repeats; empty if there is none."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next(
        (c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )


def refused(plane: ControlPlane, pod: Object, seconds: float = SOON_SECONDS) -> str:
    """Wait until the scheduler says that a pod cannot be placed, and give its words."""
    wait_until(f"{pod['metadata']['name']} is refused", lambda: bool(refusal(read_pod(plane, pod))), seconds)
    return refusal(read_pod(plane, pod))


def plain_pod(where: str, limits: Mapping[str, Any] | None = None, name: str = "p", **more: Any) -> Object:
    """Make a GPU pod that nothing schedules, without the randomly named volume of a service account."""
    spec = {"schedulerName": "default-scheduler", "automountServiceAccountToken": False, **more}
    return gpu_pod(name, where, limits, **spec)


def tolerated(pod: Object) -> list[Object]:
    """List a pod's tolerations, less those that every pod gets from the API server or the DaemonSet controller."""
    return [each for each in pod["spec"].get("tolerations", []) if not each["key"].startswith("node.kubernetes.io/")]


def decision(pod: Object) -> Object:
    """Read the decision annotation; empty where there is none."""
    found: Object = json.loads((pod["metadata"].get("annotations") or {}).get(DECISION, "{}"))
    return found


@contextmanager
def counted(service: Service) -> Iterator[list[float]]:
    """Count the calls of [/mutate, /validate] while the block lasts."""
    calls = [-service.calls("mutate"), -service.calls("validate")]
    yield calls
    calls[:] = [calls[0] + service.calls("mutate"), calls[1] + service.calls("validate")]


def written(pod: Object) -> Object:
    """Give what people and webhooks write in a pod, as the API server has it."""
    metadata = {key: pod["metadata"].get(key) for key in ("labels", "annotations", "finalizers")}
    return {"metadata": metadata, "spec": pod["spec"]}


def eventually(what: str, true: Callable[[], object], seconds: float = SOON_SECONDS) -> None:
    """Wait for what a controller or a watch brings about."""
    wait_until(what, true, seconds)
