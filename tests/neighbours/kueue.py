# SPDX-License-Identifier: Apache-2.0
"""Kueue's and JobSet's own controllers as processes, with the objects of their modules and their own accounts."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, free_port, wait_until
from tests.e2e.certificate_stage import Mount
from tests.neighbours.running import account_kubeconfig, apply, at_port, lead_service, rendered

NAME = "kueue"
SYSTEM = "kueue-system"
LEFT_OUT = ("Deployment", "Service", "APIService")
"""Kinds of Kueue's installation that this process replaces: its pod, and what leads there."""
PLAIN = ("batch/job", "pod")
START_SECONDS = 90
"""Kueue looks for its mounted certificate after one, two, four … seconds."""
API = "kueue.x-k8s.io/v1beta2"
GPU = "nvidia.com/gpu"
QUEUE = "kueue.x-k8s.io/queue-name"
"""The label by which a workload names its LocalQueue."""


@dataclass(frozen=True, slots=True)
class Manager:
    """A controller with its webhooks: program, namespace, account, and the configuration that is its own.

    The names of its Service and of its certificate's Secret follow the namespace in Kueue and in JobSet. `mounted` is
    where its certificate has to be, None where its configuration says it.
    """

    name: str
    system: str
    account: str
    settings: Mapping[str, object]
    flags: tuple[str, ...] = ()
    mounted: Path | None = None

    @property
    def prefix(self) -> str:
        """What the names of its objects begin with."""
        return self.system.removesuffix("-system")


JOBSET = Manager(
    "jobset-manager",
    "jobset-system",
    "jobset-controller-manager",
    {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "internalCertManagement": {"enable": True}},
    mounted=Path("/tmp/k8s-webhook-server/serving-certs"),  # jobset v0.12.0 pkg/util/cert/cert.go certDir
)


def kueue_manager(frameworks: Sequence[str] = PLAIN) -> Manager:
    """Describe Kueue for some kinds of jobs."""
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "namespace": SYSTEM,
        "integrations": {"frameworks": list(frameworks)},
        "featureGates": {"VisibilityOnDemand": False},
    }
    return Manager(NAME, SYSTEM, "kueue-controller-manager", settings, ("--zap-log-level=2",))


@contextmanager
def running_kueue(plane: ControlPlane, folder: Path, frameworks: Sequence[str] = PLAIN) -> Iterator[Process]:
    """Run Kueue for kinds of jobs, and wait until it is ready; `folder` holds its program and its kustomization."""
    with running_manager(plane, folder, kueue_manager(frameworks), folder / "config" / "default") as process:
        yield process


@contextmanager
def running_manager(plane: ControlPlane, folder: Path, manager: Manager, installation: Path) -> Iterator[Process]:
    """Run a controller, and wait until it is ready; `folder` holds its program, `installation` its kustomization."""
    webhooks, probes, prefix = free_port(), free_port(), manager.prefix
    apply(plane, (at_port(one, webhooks) for one in rendered(plane, installation) if _wanted(one)))
    lead_service(plane, manager.system, f"{prefix}-webhook-service")
    certificate = f"/api/v1/namespaces/{manager.system}/secrets/{prefix}-webhook-server-cert"
    folder_of_certificate = manager.mounted or plane.folder / f"{prefix}-certificate"
    shutil.rmtree(folder_of_certificate, ignore_errors=True)
    folder_of_certificate.parent.mkdir(parents=True, exist_ok=True)
    mount = Mount(plane, folder_of_certificate, certificate)
    settings = plane.folder / f"{prefix}.json"
    settings.write_text(json.dumps(_configuration(webhooks, probes, mount.folder, manager)), "utf-8")
    account = account_kubeconfig(plane, manager.system, manager.account)
    command = [str(folder / manager.name), f"--config={settings}", f"--kubeconfig={account}", *manager.flags]
    process = Process(manager.name, command, plane.folder / f"{manager.name}.log")
    ready = f"http://127.0.0.1:{probes}/readyz"
    try:
        wait_until(f"{manager.name} is ready", lambda: _succeeds(ready), START_SECONDS, process)
        yield process
    finally:
        process.stop()
        mount.stop()
        shutil.rmtree(folder_of_certificate)


def _wanted(document: Object) -> bool:
    return document["kind"] not in LEFT_OUT


def _configuration(webhooks: int, probes: int, certificate: Path, manager: Manager) -> Object:
    """Write a controller's configuration, with a webhook server that only this machine reaches."""
    return {
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probes}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(certificate)},
        "leaderElection": {"leaderElect": False},
        **manager.settings,
    }


def _succeeds(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=5).is_success
    except httpx.HTTPError as error:
        raise ConnectionError(str(error)) from error


def flavour(
    name: str, labels: Mapping[str, str], taints: Sequence[Mapping[str, str]] = (), topology: str | None = None
) -> Object:
    """Write a ResourceFlavor, whose labels Kueue adds to the nodeSelector of what it admits."""
    spec = {"nodeLabels": dict(labels), "nodeTaints": list(taints), **({"topologyName": topology} if topology else {})}
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def queue(namespace: str, quota: Mapping[str, Mapping[str, int]]) -> tuple[Object, Object]:
    """Write the ClusterQueue of a namespace, whose quota is units of resources by flavour, and a LocalQueue to it."""
    flavours = [
        {
            "name": name,
            "resources": [{"name": resource, "nominalQuota": units} for resource, units in by_resource.items()],
        }
        for name, by_resource in quota.items()
    ]
    covered = [resource["name"] for resource in flavours[0]["resources"]]  # type: ignore[index]
    group = {"coveredResources": covered, "flavors": flavours}
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    return (
        {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": namespace}, "spec": spec},
        {
            "apiVersion": API,
            "kind": "LocalQueue",
            "metadata": {"name": "queue", "namespace": namespace},
            "spec": {"clusterQueue": namespace},
        },
    )


def counted(plane: ControlPlane, namespace: str, owner: str) -> tuple[str, Mapping[str, str]] | None:
    """Return the flavour and the amounts that Kueue has counted for a Job or a Pod; None while it is not admitted."""
    for workload in _workloads(plane, namespace):
        admission = (workload.get("status") or {}).get("admission")
        if admission and owner in (one["name"] for one in workload["metadata"]["ownerReferences"]):
            (assignment,) = admission["podSetAssignments"]
            (name,) = set(assignment["flavors"].values())
            return name, assignment["resourceUsage"]
    return None


def flavour_of_gpus(plane: ControlPlane, namespace: str, owner: str) -> str | None:
    """Return the flavour of the GPUs of a job of several pod sets; None while it is not admitted."""
    for workload in _workloads(plane, namespace):
        admission = (workload.get("status") or {}).get("admission")
        if admission and owner in (one["name"] for one in workload["metadata"]["ownerReferences"]):
            flavours = (assignment.get("flavors") or {} for assignment in admission["podSetAssignments"])
            return next((chosen[GPU] for chosen in flavours if GPU in chosen), None)
    return None


def refusals(plane: ControlPlane, namespace: str) -> list[str]:
    """List why Kueue reserves no quota for what waits in a namespace."""
    statuses = [workload.get("status") or {} for workload in _workloads(plane, namespace)]
    conditions = [condition for status in statuses for condition in status.get("conditions") or ()]
    return [one["message"] for one in conditions if (one["type"], one["status"]) == ("QuotaReserved", "False")]


def _workloads(plane: ControlPlane, namespace: str) -> list[Object]:
    return plane.api.items(f"/apis/{API}/namespaces/{namespace}/workloads")
