# SPDX-License-Identifier: Apache-2.0
"""The pod of components/second-scheduler: its containers run as processes, each with the token that it has mounted."""

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.controlplane.binaries import Binaries
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Kubectl, Object
from tests.controlplane.processes import Process, free_port
from tests.e2e.stage import DEPLOY, OURS, create_namespace, create_pod, eventually, gpu_pod, wait_for_node

COMPONENT = DEPLOY / "components" / "second-scheduler"
SECRETS = "/api/v1/namespaces/gpu-usher/secrets"
SCHEDULING: tuple[tuple[str, str, str], ...] = (
    ("", "pods/binding", "create"),
    ("", "pods", "delete"),
    ("", "pods/status", "patch"),
    ("coordination.k8s.io", "leases", "update"),
)
"""(group, resource, verb) of what kube-scheduler may do to other people's pods, and to its lease."""
FORBIDDEN = (
    *SCHEDULING,
    ("", "pods", "create"),
    ("", "pods/eviction", "create"),
    ("", "pods/exec", "create"),
    ("", "secrets", "get"),
    ("", "secrets", "list"),
    ("", "nodes", "update"),
    ("", "nodes/proxy", "get"),
    ("", "serviceaccounts/token", "create"),
    ("", "serviceaccounts", "impersonate"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "patch"),
    ("rbac.authorization.k8s.io", "clusterroles", "escalate"),
    ("gpu-usher.io", "gpupolicies", "create"),
)


@dataclass(frozen=True, slots=True)
class Identities:
    """The kubeconfigs with the tokens that the containers have mounted."""

    scheduler: Path
    extender: Path


@pytest.fixture(scope="module")
def identities(plane: ControlPlane) -> Identities:
    """Install what the pod needs, and give each container its token: projected by a kubelet, and from the Secret."""
    parts = (
        "base/namespace.yaml",
        "base/rbac.yaml",
        "components/crd/rbac.yaml",
        "components/dra/rbac.yaml",
        "components/second-scheduler/rbac.yaml",
    )
    result = plane.kubectl("apply", "--server-side", *(word for part in parts for word in ("-f", str(DEPLOY / part))))
    assert result.code == 0, result.err
    result = plane.kubectl("-n", "gpu-usher", "create", "token", _template()["serviceAccountName"], "--duration=1h")
    assert result.code == 0, result.err
    mounted = next(volume["secret"] for volume in _template()["volumes"] if volume["name"] == "extender-account")
    keys = {item["key"] for item in mounted["items"]}

    def filled() -> bool:
        return keys <= set(plane.api.get(f"{SECRETS}/{mounted['secretName']}").get("data", ()))

    eventually("the token controller has filled the Secret", filled)
    token = base64.b64decode(plane.api.get(f"{SECRETS}/{mounted['secretName']}")["data"]["token"]).decode()
    return Identities(_kubeconfig(plane, "scheduler", result.out.strip()), _kubeconfig(plane, "extender", token))


def _kubeconfig(plane: ControlPlane, name: str, token: str) -> Path:
    document = json.loads(plane.kubeconfig("admin").read_text("utf-8"))
    document["users"] = [{"name": "admin", "user": {"token": token}}]
    path = plane.folder / f"{name}-account.kubeconfig"
    path.write_text(json.dumps(document), "utf-8")
    return path


@pytest.fixture(scope="module")
def pod(plane: ControlPlane, binaries: Binaries, identities: Identities) -> Iterator[tuple[Process, Process]]:
    """Run both containers as the manifest says; only ports and mounts are this machine's."""
    certs = plane.folder / "certs"
    certs.mkdir()
    port = free_port()
    extender = _extender(plane, identities.extender, certs, f"127.0.0.1:{port}")
    scheduler: Process | None = None
    try:
        scheduler = _scheduler(plane, binaries, identities.scheduler, port)
        yield extender, scheduler
    finally:
        for process in (scheduler, extender):
            if process is not None:
                process.stop()


def _extender(plane: ControlPlane, kubeconfig: Path, certs: Path, address: str) -> Process:
    (container,) = _template()["initContainers"]
    local_variables = {
        "GPU_USHER_CERTS": str(certs),
        "GPU_USHER_POLICIES": str(DEPLOY.parent / "policies"),
        "GPU_USHER_PORT": str(free_port()),
        "GPU_USHER_SCHEDULER_ADDRESS": address,
        "GPU_USHER_OPS_PORT": str(free_port()),
        "GPU_USHER_UI_ADDRESS": "off",
        "GPU_USHER_KUBECONFIG": str(kubeconfig),
    }
    settings = {**{variable["name"]: variable["value"] for variable in container["env"]}, **local_variables}
    command = [sys.executable, "-m", "app.cli.main", *container["args"]]
    return Process("extender", command, plane.folder / "extender.log", settings)


def _scheduler(plane: ControlPlane, binaries: Binaries, kubeconfig: Path, port: int) -> Process:
    configuration: Object = yaml.safe_load((COMPONENT / "config.yaml").read_text("utf-8"))
    extender = configuration["extenders"][0]
    extender["urlPrefix"] = extender["urlPrefix"].replace(":8444", f":{port}")
    configuration["clientConnection"] = {"kubeconfig": str(kubeconfig)}
    path = plane.folder / "config.yaml"
    path.write_text(json.dumps(configuration), "utf-8")
    flags = [f"--config={path}", "--bind-address=127.0.0.1", f"--secure-port={free_port()}"]
    flags += [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
    return Process("second", [*binaries.command("kube-scheduler"), *flags], plane.folder / "second.log")


def _template() -> Object:
    template: Object = yaml.safe_load((COMPONENT / "deployment.yaml").read_text("utf-8"))["spec"]["template"]["spec"]
    return template


def test_second_scheduler_takes_its_own_lease_and_places_a_pod(
    plane: ControlPlane, pod: tuple[Process, Process]
) -> None:
    """P28, F117: with the rights of the manifests and its configuration, over plain HTTP."""
    add_nodes(plane.api, [node_object("gpu-1")])
    namespace = create_namespace(plane, "research")

    assert all(process.running for process in pod)
    node = wait_for_node(plane, create_pod(plane, gpu_pod("train", namespace)))

    assert node == "gpu-1"
    leases = "/apis/coordination.k8s.io/v1/namespaces"
    assert plane.api.get(f"{leases}/gpu-usher/leases/{OURS}")["spec"]["holderIdentity"]
    assert plane.api.client.get(f"{leases}/kube-system/leases/kube-scheduler").status_code == 404


def test_nothing_was_forbidden_to_either_container(plane: ControlPlane, pod: tuple[Process, Process]) -> None:
    """F117, F104: a missing right shows only in the log."""
    assert all(process.running for process in pod)
    for name in ("extender", "second"):
        text = (plane.folder / f"{name}.log").read_text("utf-8")
        assert "orbidden" not in text, [line for line in text.splitlines() if "orbidden" in line][:3]


def _may(kubectl: Kubectl, group: str, resource: str, verb: str, namespace: str) -> bool:
    """Ask the API server with a container's own credentials whether they allow a verb (SelfSubjectAccessReview)."""
    plural, _, part = resource.partition("/")
    attributes = {"group": group, "resource": plural, "subresource": part, "verb": verb, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    result = kubectl("create", "-f", "-", "-o", "json", "--validate=false", stdin=json.dumps(review))
    assert result.code == 0, result.err
    return bool(json.loads(result.out)["status"]["allowed"])


def test_extender_may_read_what_it_needs_and_do_nothing_to_pods(binaries: Binaries, identities: Identities) -> None:
    """F104, F117: the process that parses what tenants write may not bind, evict or delete a pod, nor impersonate."""
    extender = Kubectl(binaries.command("kubectl"), identities.extender)
    for namespace in ("team-a", "kube-system", "gpu-usher"):
        may = {attributes for attributes in FORBIDDEN if _may(extender, *attributes, namespace)}
        assert may == set(), namespace
    for resource in ("pods", "nodes", "namespaces"):
        assert _may(extender, "", resource, "watch", "")
    assert _may(extender, "resource.k8s.io", "resourceslices", "list", "")
    assert _may(extender, "gpu-usher.io", "gpupolicies", "list", "")


def test_scheduler_beside_it_may_bind(binaries: Binaries, identities: Identities) -> None:
    """F117: this shows that the test above can fail."""
    scheduler = Kubectl(binaries.command("kubectl"), identities.scheduler)
    assert _may(scheduler, "", "pods/binding", "create", "team-a")
    assert _may(scheduler, "", "pods", "delete", "team-a")
