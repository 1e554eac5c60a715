# SPDX-License-Identifier: Apache-2.0
"""The pod of components/second-scheduler, its two containers run as processes with the tokens of its own account."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.controlplane.binaries import Binaries
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, free_port
from tests.e2e.stage import DEPLOY, OURS, create_pod, eventually, gpu_pod, namespace, node_of

ACCOUNT = "gpu-usher-scheduler"
COMPONENT = DEPLOY / "components" / "second-scheduler"


@pytest.fixture(scope="module")
def kubeconfig(plane: ControlPlane) -> Path:
    """Install what the pod needs, and give it a token of its own account, as the kubelet does."""
    parts = (
        "base/namespace.yaml",
        "base/rbac.yaml",
        "components/dra/rbac.yaml",
        "components/second-scheduler/rbac.yaml",
    )
    said = plane.kubectl("apply", "--server-side", *(word for part in parts for word in ("-f", str(DEPLOY / part))))
    assert said.code == 0, said.err
    said = plane.kubectl("-n", "gpu-usher", "create", "token", ACCOUNT, "--duration=1h")
    assert said.code == 0, said.err
    document = json.loads(plane.kubeconfig("admin").read_text("utf-8"))
    document["users"] = [{"name": "admin", "user": {"token": said.out.strip()}}]
    path = plane.folder / "account.kubeconfig"
    path.write_text(json.dumps(document), "utf-8")
    return path


@pytest.fixture(scope="module")
def pod(plane: ControlPlane, binaries: Binaries, kubeconfig: Path) -> Iterator[tuple[Process, Process]]:
    """Run both containers as the manifest says; only ports and mounts are this machine's."""
    certs = plane.folder / "certs"
    certs.mkdir()
    port = free_port()
    extender = _extender(plane, kubeconfig, certs, port)
    scheduler: Process | None = None
    try:
        eventually("the extender has made its CA", (certs / "ca.crt").exists)
        scheduler = _scheduler(plane, binaries, kubeconfig, certs, port)
        yield extender, scheduler
    finally:
        for process in (scheduler, extender):
            if process is not None:
                process.stop()


def _extender(plane: ControlPlane, kubeconfig: Path, certs: Path, port: int) -> Process:
    (container,) = _template()["initContainers"]
    here = {
        "GPU_USHER_CERTS": str(certs),
        "GPU_USHER_POLICIES": str(DEPLOY.parent / "policies"),
        "GPU_USHER_PORT": str(port),
        "GPU_USHER_OPS_PORT": str(free_port()),
        "GPU_USHER_UI_ADDRESS": "off",
        "GPU_USHER_KUBECONFIG": str(kubeconfig),
    }
    settings = {**{each["name"]: each["value"] for each in container["env"]}, **here}
    command = [sys.executable, "-m", "app.cli.main", *container["args"]]
    return Process("extender", command, plane.folder / "extender.log", settings)


def _scheduler(plane: ControlPlane, binaries: Binaries, kubeconfig: Path, certs: Path, port: int) -> Process:
    configuration: Object = yaml.safe_load((COMPONENT / "config.yaml").read_text("utf-8"))
    extender = configuration["extenders"][0]
    assert extender["tlsConfig"]["caFile"] == "/certs/ca.crt"
    extender["tlsConfig"]["caFile"] = str(certs / "ca.crt")
    extender["urlPrefix"] = extender["urlPrefix"].replace(":8443", f":{port}")
    configuration["clientConnection"] = {"kubeconfig": str(kubeconfig)}
    path = plane.folder / "config.yaml"
    path.write_text(json.dumps(configuration), "utf-8")
    flags = [f"--config={path}", "--bind-address=127.0.0.1", f"--secure-port={free_port()}"]
    flags += [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
    return Process("second", [*binaries.command("kube-scheduler"), *flags], plane.folder / "second.log")


def _template() -> Object:
    found: Object = yaml.safe_load((COMPONENT / "deployment.yaml").read_text("utf-8"))["spec"]["template"]["spec"]
    return found


def test_second_scheduler_takes_its_own_lease_and_places_a_pod(
    plane: ControlPlane, pod: tuple[Process, Process]
) -> None:
    """P28, F117: with the rights of the manifests, its configuration, and the CA that the sidecar made."""
    add_nodes(plane.api, [node_object("gpu-1")])
    where = namespace(plane, "research")

    assert all(each.running for each in pod)
    node = node_of(plane, create_pod(plane, gpu_pod("train", where)))

    assert node == "gpu-1"
    leases = "/apis/coordination.k8s.io/v1/namespaces"
    assert plane.api.get(f"{leases}/gpu-usher/leases/{OURS}")["spec"]["holderIdentity"]
    assert plane.api.client.get(f"{leases}/kube-system/leases/kube-scheduler").status_code == 404


def test_nothing_was_forbidden_to_either_container(plane: ControlPlane, pod: tuple[Process, Process]) -> None:
    """F117, F104: what is missing shows in the log alone."""
    assert all(each.running for each in pod)
    for name in ("extender", "second"):
        text = (plane.folder / f"{name}.log").read_text("utf-8")
        assert "orbidden" not in text, [line for line in text.splitlines() if "orbidden" in line][:3]
