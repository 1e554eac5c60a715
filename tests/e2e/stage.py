# SPDX-License-Identifier: Apache-2.0
"""What a scenario runs on: a control plane, the service as its own process, webhooks, a scheduler with our extender."""

import base64
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from app.cli.verbs import app
from app.cluster.files import shipped_policies
from app.kube.pods import DECISION
from app.telemetry.logs import now
from app.tls.serving_certificates import issue_if_needed
from tests.controlplane.cluster import ControlPlane, Scheduler
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, free_port, wait_until

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
EVENT_RIGHTS = tuple(DEPLOY / "components" / "events" / f"{name}.yaml" for name in ("rbac", "lease", "wake"))
EXPLAIN_RIGHTS = DEPLOY / "components" / "explain-api" / "rbac.yaml"
READY_SECONDS = 240
SOON_SECONDS = 240
"""Seconds for an effect of kube-scheduler or of a watch, most of which take a fraction of a second; on two busy cores a
control plane has taken a minute to start. Less than the 300 s after which kube-scheduler tries every pod again."""
OURS = "gpu-usher-scheduler"


class Service:
    """`gpu-usher serve` as a process of its own, which follows the control plane by its kubeconfig."""

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
            "host": "127.0.0.1",
            "port": str(self.port),
            "ops-port": str(ops),
            "ui-address": f"127.0.0.1:{ui}",
            "certs": str(self.folder),
            "drain-seconds": "0",
            **{key.replace("_", "-"): value for key, value in flags.items()},
        }
        self.process = self._start()

    def _start(self) -> Process:
        # deploy/ gives the Events to a process of their own; here one does both, as the account that may write them.
        account = "controller" if os.environ.get("GPU_USHER_EVENTS") == "true" else "gpu-usher"
        flags = {"kubeconfig": str(self._plane.kubeconfig(account)), **self.flags}
        words = [f"--{key}={value}" for key, value in flags.items()]
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
        """Tell whether /readyz answers that the service is ready."""
        try:
            return httpx.get(f"{self._ops}/readyz", trust_env=False, timeout=20).status_code == 200
        except httpx.HTTPError as error:
            raise ConnectionError(str(error)) from error

    def health(self) -> Object:
        """Return the body of /readyz."""
        body: Object = httpx.get(f"{self._ops}/readyz", trust_env=False, timeout=20).json()
        return body

    def explain(self, pod: Object, **params: str) -> Object:
        """Post to /explain a Pod, or a reference that names a pod of the cluster, and return the explanation."""
        url = f"{self._people}/explain"
        explanation: Object = httpx.post(url, json=pod, params=params, trust_env=False, timeout=30).json()
        return explanation

    def page(self, path: str) -> str:
        """Return a page of the web UI."""
        return httpx.get(self._people + path, trust_env=False, timeout=30).raise_for_status().text

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels, or 0 where there is none."""
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
    """Run the service for as long as the block lasts, with the identity and the rights that deploy/ gives it."""
    grant(plane)
    service = Service(plane, name, **flags)
    try:
        service.wait_ready()
        yield service
    finally:
        service.process.stop()


def apply_files(plane: ControlPlane, *paths: Path) -> None:
    """Apply manifests, with a namespace gpu-usher for what they put there."""
    if plane.api.client.get("/api/v1/namespaces/gpu-usher").status_code == 404:
        create_namespace(plane, "gpu-usher")
    result = plane.kubectl("apply", *(word for path in paths for word in ("-f", str(path))))
    assert result.code == 0, result.err


def grant(plane: ControlPlane) -> None:
    """Create the roles and bindings of deploy/ for the service's account."""
    apply_files(plane, DEPLOY / "base" / "rbac.yaml", DEPLOY / "components" / "dra" / "rbac.yaml")


def grant_events(plane: ControlPlane) -> None:
    """Create what deploy/components/events has beside its patch: the rights to write Events, and a Lease."""
    apply_files(plane, *EVENT_RIGHTS)


def revoke_events(plane: ControlPlane) -> None:
    """Delete what grant_events created."""
    result = plane.kubectl(
        "delete", "--ignore-not-found", *(word for path in EVENT_RIGHTS for word in ("-f", str(path)))
    )
    assert result.code == 0, result.err


def install_explain_api(plane: ControlPlane, service: Service, port: int) -> None:
    """Install the APIService of deploy/; its Service is the name of loopback, where the service runs.

    The control plane has a front proxy, and EXPLAIN_RIGHTS were applied before the service started.
    """
    address = {"type": "ExternalName", "externalName": "localhost"}
    plane.api.create("/api/v1/namespaces/gpu-usher/services", {"metadata": {"name": "gpu-usher"}, "spec": address})
    document = yaml.safe_load(EXPLAIN_RIGHTS.with_name("apiservice.yaml").read_text("utf-8"))
    document["spec"]["service"]["port"] = port
    document["spec"]["caBundle"] = base64.b64encode(service.ca.read_bytes()).decode()
    plane.api.create("/apis/apiregistration.k8s.io/v1/apiservices", document)


def own_policies(folder: Path, texts: Mapping[str, str]) -> Path:
    """Write the shipped policies and some more, by the names of their files without suffix; return the directory."""
    policies = shutil.copytree(shipped_policies(), folder / "policies")
    for name, text in texts.items():
        (policies / f"{name}.yaml").write_text(text, "utf-8")
    return policies


def create_namespace(plane: ControlPlane, name: str, **labels: str) -> str:
    """Create a namespace, and wait until pods can be created in it; labels have `__` for `/` and `_` for `-`."""
    namespace_labels = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": namespace_labels}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(f"namespace {name} has its account", lambda: plane.api.client.get(account).is_success, SOON_SECONDS)
    return name


def install_webhooks(plane: ControlPlane, service: Service, *components: str, **changes: Any) -> None:
    """Install the webhooks of deploy/, and those of components, with the URL of the process.

    `changes` replace fields of every webhook.
    """
    ca = base64.b64encode(service.ca.read_bytes()).decode()
    files = (DEPLOY / "base" / "webhooks.yaml", *(DEPLOY / "components" / name / "webhook.yaml" for name in components))
    for document in (one for file in files for one in yaml.safe_load_all(file.read_text("utf-8"))):
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": service.url + path, "caBundle": ca}
            webhook.update(changes)
        result = plane.kubectl("apply", "-f", "-", stdin=json.dumps(document))
        assert result.code == 0, result.err
    _wait_for_webhooks(plane, service)


def remove_webhooks(plane: ControlPlane) -> None:
    """Delete the webhook configurations."""
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        plane.api.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/gpu-usher")


def _wait_for_webhooks(plane: ControlPlane, service: Service) -> None:
    """Wait until the API server's own watch has brought it the configurations, so that dry runs reach the service."""

    def called() -> bool:
        before = service.calls("mutate"), service.calls("validate")
        plane.api.try_create("/api/v1/namespaces/default/pods?dryRun=All", gpu_pod("probe", "default"))
        return service.calls("mutate") > before[0] and service.calls("validate") > before[1]

    wait_until("the API server calls the webhooks", called, SOON_SECONDS)


def scheduler_configuration(service: Service, *words: str) -> Object:
    """Return the configuration that `gpu-usher scheduler-config` writes for this process."""
    place = ["--url", f"{service.url}/scheduler", "--ca", str(service.ca)]
    result = CliRunner().invoke(app, ["scheduler-config", "--for", "second", "-o", "json", *place, *words])
    assert result.exit_code == 0, result.output
    configuration: Object = json.loads(result.stdout)
    return configuration


ASKED_ABOUT_CLAIMS: Mapping[str, Any] = {"managedResources": []}
"""The change of the extender where there are ResourceSlices, as `scheduler-config` and deploy/ have it: else it is not
asked about pods that have claims alone, and a node with a device plugin as well may give a GPU twice."""


def start_scheduler(
    plane: ControlPlane, service: Service, *words: str, name: str = OURS, change: Mapping[str, Any] | None = None
) -> Scheduler:
    """Start kube-scheduler with our extender, as schedulerName `name`; `change` replaces fields of the extender."""
    configuration = scheduler_configuration(service, *words)
    configuration["profiles"][0]["schedulerName"] = name
    configuration["extenders"][0].update(change or {})
    return plane.start_scheduler(configuration, name)


def gpu_pod(name: str, namespace: str, limits: Mapping[str, Any] | None = None, **more: Any) -> Object:
    """Write a GPU pod for our scheduler; `more`: annotations, labels, image, requests, env, and fields of the spec."""
    container: Object = {"name": "main", "image": more.pop("image", "train:1"), "env": more.pop("env", [])}
    resources = {"limits": {"nvidia.com/gpu": 1} if limits is None else dict(limits)}
    if "requests" in more:
        resources = {"requests": dict(more.pop("requests")), **({"limits": dict(limits)} if limits else {})}
    annotations = {f"gpu-usher.io/{key}": value for key, value in more.pop("annotations", {}).items()}
    metadata = {"name": name, "namespace": namespace, "annotations": annotations, "labels": more.pop("labels", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": OURS, "containers": [{**container, "resources": resources}], **more},
    }


def create_pod(plane: ControlPlane, pod: Object) -> Object:
    """Create a pod through the API server."""
    return plane.api.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)


def pods_of(plane: ControlPlane, namespace: str) -> list[Object]:
    """List the pods of a namespace."""
    return plane.api.items(f"/api/v1/namespaces/{namespace}/pods")


def read_pod(plane: ControlPlane, pod: Object) -> Object:
    """Read the current version of a pod."""
    return plane.api.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")


def wait_for_node(plane: ControlPlane, pod: Object, seconds: float = SOON_SECONDS) -> str:
    """Wait until a pod is bound, and return the name of its node."""
    stored: Object = {}

    def bound() -> bool:
        stored.update(read_pod(plane, pod))
        return bool(stored["spec"].get("nodeName"))

    try:
        wait_until(f"{pod['metadata']['name']} is bound", bound, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {refusal(stored)}") from error
    return str(stored["spec"]["nodeName"])


def refusal(pod: Object) -> str:
    """Return the message of the PodScheduled condition, which the FailedScheduling event repeats; "" without one."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next(
        (c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )


def wait_for_refusal(plane: ControlPlane, pod: Object, seconds: float = SOON_SECONDS) -> str:
    """Wait until the scheduler reports that a pod cannot be placed, and return its message."""
    wait_until(f"{pod['metadata']['name']} is refused", lambda: bool(refusal(read_pod(plane, pod))), seconds)
    return refusal(read_pod(plane, pod))


def plain_pod(namespace: str, limits: Mapping[str, Any] | None = None, name: str = "p", **more: Any) -> Object:
    """Write a GPU pod that nothing schedules, without the randomly named volume of a service account."""
    spec = {"schedulerName": "default-scheduler", "automountServiceAccountToken": False, **more}
    return gpu_pod(name, namespace, limits, **spec)


def tolerated(pod: Object) -> list[Object]:
    """List a pod's tolerations, without those that the API server or the DaemonSet controller adds to every pod."""
    tolerations = pod["spec"].get("tolerations", [])
    return [toleration for toleration in tolerations if not toleration["key"].startswith("node.kubernetes.io/")]


def decision(pod: Object) -> Object:
    """Read the decision annotation; {} where there is none."""
    recorded: Object = json.loads((pod["metadata"].get("annotations") or {}).get(DECISION, "{}"))
    return recorded


@contextmanager
def counted_calls(service: Service) -> Iterator[list[float]]:
    """Count the calls of [/mutate, /validate] while the block lasts."""
    calls = [-service.calls("mutate"), -service.calls("validate")]
    yield calls
    calls[:] = [calls[0] + service.calls("mutate"), calls[1] + service.calls("validate")]


def authored_fields(pod: Object) -> Object:
    """Return what people and webhooks wrote in a pod, as the API server stores it."""
    metadata = {key: pod["metadata"].get(key) for key in ("labels", "annotations", "finalizers")}
    return {"metadata": metadata, "spec": pod["spec"]}


def eventually(what: str, true: Callable[[], object], seconds: float = SOON_SECONDS) -> None:
    """Wait for an effect of a controller or of a watch."""
    wait_until(what, true, seconds)
