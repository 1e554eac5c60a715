# SPDX-License-Identifier: Apache-2.0
"""The inner half of `make cluster` (playground.py): everything that runs in the sandbox, and the files to use it."""

import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from app.demo.sample_fleets import demo_fleet
from tests.controlplane.binaries import find_binaries
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.front_proxy import CLUSTER_ROLES, FrontProxy
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import free_port
from tests.e2e.stage import (
    DEPLOY,
    EXPLAIN_RIGHTS,
    OURS,
    apply_files,
    create_namespace,
    create_pod,
    grant_events,
    install_explain_api,
    install_webhooks,
    serving,
    start_scheduler,
)
from tests.realnodes import images, nvidia
from tests.realnodes.cluster import Cluster, real_cluster, state_folder
from tests.realnodes.control_plane import ADDRESS, IDENTITIES, NAMES, RealControlPlane
from tests.realnodes.gateway import forward
from tests.realnodes.object_nodes import object_nodes
from tests.realnodes.worlds import make_world

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = Path(__file__).with_name("examples")
WORLDS = ("h100", "a100-mig-mixed")
FLEET = "weekday"
"""The sample fleet that docs/tour.md walks; its nodes are objects here."""
REAL = {"gpu-usher.test/kubelet": "real"}
"""The label by which the examples choose a node that runs containers."""
STARTABLE = "nvidia.com/mig-1g.10gb"
"""What some pods of the sample fleet wait for, and a real node here has: their images could not be pulled there."""
DEFAULT = "default-scheduler"
"""What a pod without schedulerName gets. Here it asks gpu-usher too, so that `explain` is right about each pod."""
TENANT, NAMESPACE = "tina", "vision"
"""A user with role edit in one namespace, who may not read nodes."""

READER = "extension-apiserver-authentication-reader"
"""Kubernetes' own Role to read the front proxy's CA; one process is all of gpu-usher here, as the account of Events."""


class PlaygroundControlPlane(FrontProxy, RealControlPlane):
    """A control plane with explanations for tenants, and one tenant."""

    controllers = (*RealControlPlane.controllers, CLUSTER_ROLES)
    tokens = {**IDENTITIES, TENANT: (TENANT, "tenants")}  # noqa: RUF012


def main(folder: Path) -> int:
    """Run the cluster until the process outside ends, which is at the other end of standard input."""
    began = time.monotonic()
    control = socket.socket(fileno=0)
    _, descriptors, _, _ = socket.recv_fds(control, 64, 2)
    outside = threading.Thread(target=_end_with, args=(control,), daemon=True)
    outside.start()
    api, page = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    state, programs, archives, built = state_folder(), find_binaries(), images.find(), nvidia.find()
    missing = [why for why in (programs, archives, built) if isinstance(why, str)]
    if isinstance(programs, str) or isinstance(archives, str) or isinstance(built, str) or state is None:
        raise SystemExit(f"cluster: {missing or 'not in a sandbox'}")
    with ExitStack() as stack:
        worlds = [make_world(world, name) for world, name in zip(WORLDS, NAMES, strict=False)]
        cluster = stack.enter_context(
            real_cluster(programs, images.archives(archives), built, worlds, PlaygroundControlPlane)
        )
        _install(cluster, stack, page)
        api_port = api.getsockname()[1]
        forward(api, ADDRESS, cluster.plane.port)
        _write_tools(cluster.plane, state / "tools", api_port)
        folder.symlink_to(state / "tools")
        print(_instructions(folder, page.getsockname()[1], time.monotonic() - began), flush=True)
        outside.join()
    return 0


def _end_with(control: socket.socket) -> None:
    """End this process as soon as the one outside does; the kernel then ends all others of the sandbox at once."""
    control.recv(1)
    os._exit(0)


def _install(cluster: Cluster, stack: ExitStack, page: socket.socket) -> None:
    """Add the object-only nodes with their pods, and then gpu-usher, which was not there when those pods came."""
    plane = cluster.plane
    for name in cluster.nodes:
        plane.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": REAL}})
    fleet = demo_fleet(FLEET)
    stack.enter_context(object_nodes(plane.api, [item for item in fleet if item["kind"] == "Node"]))
    pods = [document for document in fleet if document["kind"] == "Pod"]
    for name in sorted({pod["metadata"]["namespace"] for pod in pods}):
        create_namespace(plane, name)
    _create(plane, (pod for pod in pods if "nodeName" in pod["spec"]))
    create_namespace(plane, "gpu-usher")
    grant_events(plane)
    os.environ["GPU_USHER_EVENTS"] = "true"
    apply_files(plane, EXPLAIN_RIGHTS)
    _bind(plane, "explain", "kube-system", f"--role={READER}", "--serviceaccount=gpu-usher:gpu-usher-controller")
    explain_port = free_port()
    service = stack.enter_context(serving(plane, explain_address=f"127.0.0.1:{explain_port}"))
    install_webhooks(plane, service)
    install_explain_api(plane, service, explain_port)
    _bind(plane, TENANT, NAMESPACE, "--clusterrole=edit", f"--user={TENANT}")
    result = plane.kubectl("apply", "--server-side", "-f", str(DEPLOY / "base" / "exemptions.yaml"))
    assert result.code == 0, result.err
    for name in (OURS, DEFAULT):
        start_scheduler(plane, service, name=name)
    waiting = (pod for pod in pods if "nodeName" not in pod["spec"])
    _create(plane, (pod for pod in waiting if STARTABLE not in str(pod["spec"]["containers"])))
    host, _, port = service.flags["ui-address"].rpartition(":")
    forward(page, host, int(port))


def _bind(plane: ControlPlane, name: str, namespace: str, *words: str) -> None:
    result = plane.kubectl("create", "rolebinding", name, "-n", namespace, *words)
    assert result.code == 0, result.err


def _create(plane: ControlPlane, pods: Iterable[Object]) -> None:
    """Create pods of the sample fleet as their authors wrote them: without what admission adds."""
    for pod in pods:
        spec: dict[str, Any] = {"containers": pod["spec"]["containers"], "schedulerName": OURS}
        if name := pod["spec"].get("nodeName"):
            spec["nodeName"] = name
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "annotations") if key in pod["metadata"]}
        create_pod(plane, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def _write_tools(plane: ControlPlane, folder: Path, port: int) -> None:
    """Write the kubeconfigs for the listener outside, and the commands that use them."""
    folder.mkdir()
    admin, tenant = (_kubeconfig(plane, token, folder / name, port) for token, name in KUBECONFIGS.items())
    ours = [sys.executable, "-m", "app.cli.main"]
    commands = {"kubectl": list(plane.binaries.command("kubectl")), "gpu-usher": ours, "kubectl-gpu_usher": ours}
    for name, words in commands.items():
        script = TOOL.format(admin=admin, tenant=tenant, root=shlex.quote(str(ROOT)), command=shlex.join(words))
        (folder / name).write_text(script, "utf-8")
        (folder / name).chmod(0o755)


def _kubeconfig(plane: ControlPlane, token: str, path: Path, port: int) -> str:
    document = json.loads(plane.kubeconfig(token).read_text("utf-8"))
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path.write_text(json.dumps(document), "utf-8")
    return shlex.quote(str(path))


KUBECONFIGS = {"admin": "kubeconfig", TENANT: "tenant.kubeconfig"}
TOOL = """#!/bin/sh
# KUBECONFIG may name one of this cluster's files. Another is not taken, lest an example be applied to another cluster.
file={admin}
if [ "${{KUBECONFIG:-}}" -ef {tenant} ]; then
  file={tenant}
elif [ -n "${{KUBECONFIG:-}}" ] && ! [ "$KUBECONFIG" -ef "$file" ]; then
  echo "KUBECONFIG is not taken: this is the cluster of $file; --kubeconfig FILE takes another" >&2
fi
KUBECONFIG=$file PYTHONPATH={root} exec {command} "$@"
"""


def _memory() -> float:
    """Give the GiB of memory of all processes of the sandbox; pages that several share count once (proc(5), Pss)."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/smaps_rollup"):
        with suppress(OSError):  # a process may end meanwhile
            total += sum(
                int(line.split()[1]) for line in path.read_text("ascii").splitlines() if line.startswith("Pss:")
            )
    return total / (1 << 20)


def _instructions(folder: Path, page: int, seconds: float) -> str:
    shown = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    examples = EXAMPLES.relative_to(ROOT)
    files = " ".join(sorted(path.name for path in EXAMPLES.glob("*.yaml")))
    real = ", ".join(f"{name} ({world})" for name, world in zip(NAMES, WORLDS, strict=False))
    return f"""
The cluster is ready, after {seconds:.0f} s; it uses {_memory():.1f} GiB of memory. Ctrl-C removes it.
  web page      http://127.0.0.1:{page}
  kubeconfig    {shown}/kubeconfig; to be {TENANT}, who may edit namespace {NAMESPACE} alone:
                export KUBECONFIG="$PWD/{shown}/tenant.kubeconfig"
  real nodes    {real}: mock GPUs, real kubelets and containers
  other nodes   objects alone, with the pods of the sample fleet `{FLEET}`; no container starts there
  examples      {examples}: {files}
In another terminal:
  export PATH="$PWD/{shown}:$PATH"
  kubectl get nodes
  kubectl apply -f {examples}/whole-gpu.yaml
  kubectl get pods -o wide
  kubectl logs whole-gpu
  kubectl apply -f {examples}
  kubectl gpu-usher explain default/too-many
docs/tour.md has more to ask: here, leave out `--demo-fleet weekday`.
"""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
