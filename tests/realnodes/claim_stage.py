# SPDX-License-Identifier: Apache-2.0
"""What the tests of claims run on: nodes whose GPUs a DRA driver publishes, claims, their pods, and their devices.

The nodes run containerd 2, since Debian's 1.6 has no CDI and starts such containers without their devices.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    OURS,
    Service,
    eventually,
    grant_events,
    install_webhooks,
    remove_webhooks,
    serving,
    start_scheduler,
)
from tests.realnodes import containerd_module
from tests.realnodes.cluster import Cluster
from tests.realnodes.dra_devices import device_classes, driver_file
from tests.realnodes.images import PAUSE, SHELL
from tests.realnodes.node import DEFAULT_INSTALLATION, Installation, Node
from tests.realnodes.seen_devices import container_pod

RESOURCE = "/apis/resource.k8s.io/v1"
CONFIG_MAPS = "/api/v1/namespaces/gpu-usher/configmaps"
EVENT_SECONDS = 60
"""Ten that a pod has to wait, two turns, and the explanation, on a busy machine."""


@contextmanager
def nodes_with_containerd_2(cluster: Cluster, names: Iterable[str]) -> Iterator[Mapping[str, Node]]:
    """Run nodes with containerd 2 and the device plugin while the block lasts, and serve the driver's DeviceClasses."""
    programs = containerd_module.find()
    if isinstance(programs, str):
        pytest.skip(programs)
    images = [cluster.archives[PAUSE], cluster.archives[SHELL]]
    installation = replace(DEFAULT_INSTALLATION, programs=programs, state="containerd-2")
    nodes = {name: cluster.nodes[name] for name in names}
    cluster.plane.api.create_all(f"{RESOURCE}/deviceclasses", device_classes())
    _change(nodes.values(), installation, images)
    yield nodes
    for node in nodes.values():
        if node.slices():
            node.stop_dra_driver()
    _change(nodes.values(), DEFAULT_INSTALLATION, ())
    for document in device_classes():
        cluster.plane.api.delete(f"{RESOURCE}/deviceclasses/{document['metadata']['name']}")


def _change(nodes: Iterable[Node], installation: Installation, images: Sequence[Path]) -> None:
    """Change the container runtime of nodes, all at once, since most of it is waiting."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: node.change_installation(installation, images), nodes))


@contextmanager
def telling_service(cluster: Cluster) -> Iterator[Service]:
    """Run the service with Events, its webhooks, and a scheduler that asks it, while the block lasts."""
    grant_events(cluster.plane)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_USHER_EVENTS", "true")
        with serving(cluster.plane) as running:
            install_webhooks(cluster.plane, running)
            start_scheduler(cluster.plane, running)
            yield running
            cluster.plane.stop(OURS)
            remove_webhooks(cluster.plane)


def create_claim(cluster: Cluster, name: str, namespace: str, requests: Any) -> str:
    """Create a claim, and return its path."""
    path = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
    spec = {"devices": {"requests": list(requests)}}
    cluster.plane.api.create(path, {"metadata": {"name": name}, "spec": spec})
    return f"{path}/{name}"


def claiming_pod(name: str, namespace: str, claim: str, node: str, **more: Any) -> Object:
    """Write a pod whose container uses a claim and says what it sees."""
    pod = container_pod(
        name,
        namespace,
        {},
        nodeSelector={"kubernetes.io/hostname": node},
        resourceClaims=[{"name": "devices", "resourceClaimName": claim}],
    )
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "devices"}]}
    pod["spec"].update(more)
    return pod


def results_of(cluster: Cluster, path: str) -> list[Object]:
    """List the results of a claim's allocation; none before it is allocated."""
    allocation = (cluster.plane.api.get(path).get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def allocated(cluster: Cluster, path: str) -> list[str]:
    """List the devices that a claim was given."""
    return [result["device"] for result in results_of(cluster, path)]


def generated_claim(pod: Object) -> str:
    """Return the path of the claim that was made for a pod, of its template or for its extended resource."""
    namespace, status = pod["metadata"]["namespace"], pod["status"]
    extended = status.get("extendedResourceClaimStatus")
    [made] = [extended] if extended else status["resourceClaimStatuses"]
    return f"{RESOURCE}/namespaces/{namespace}/resourceclaims/{made['resourceClaimName']}"


def files_of(node: Node, devices: list[str]) -> set[str]:
    """Name the device files of devices, by the file of the node's driver."""
    files = driver_file(node.world.machine)["files"]
    return {file for device in devices for file in files[device]}


def explained(cluster: Cluster, pod: Object) -> str:
    """Return what `gpu-usher explain` prints of a pod of the cluster."""
    words = ["explain", pod["metadata"]["name"], "-n", pod["metadata"]["namespace"], "--kubeconfig"]
    command = [*words, str(cluster.plane.kubeconfig("admin"))]
    return CliRunner().invoke(app, command, env={"COLUMNS": "500"}).output


def event_of(cluster: Cluster, pod: Object) -> str:
    """Wait for an Event of gpu-usher on a pod, and return its reason and note."""
    path = f"/apis/events.k8s.io/v1/namespaces/{pod['metadata']['namespace']}/events"
    found: list[Object] = []

    def told() -> bool:
        found[:] = [
            event
            for event in cluster.plane.api.items(path)
            if event["reportingController"] == "gpu-usher" and event["regarding"]["name"] == pod["metadata"]["name"]
        ]
        return bool(found)

    eventually("gpu-usher has written an Event", told, EVENT_SECONDS)
    return f"{found[-1]['reason']}: {found[-1]['note']}"


def make_templates(cluster: Cluster, pod: Object, folder: Path) -> None:
    """Apply the ResourceClaimTemplates that `plan claim-templates` writes for a pod."""
    file = folder / "pod.json"
    file.write_text(json.dumps(pod), "utf-8")
    words = ["-f", str(file), "-n", pod["metadata"]["namespace"], "--kubeconfig"]
    done = CliRunner().invoke(app, ["plan", "claim-templates", *words, str(cluster.plane.kubeconfig("admin"))])
    assert done.exit_code == 0, done.output
    applied = cluster.plane.kubectl("apply", "-f", "-", stdin=done.stdout)
    assert applied.code == 0, applied.err


def delete_namespace(cluster: Cluster, name: str) -> None:
    """Delete a namespace, and wait until all in it is gone."""
    path = f"/api/v1/namespaces/{name}"
    cluster.plane.api.delete(path)
    eventually(f"{name} is gone", lambda: cluster.plane.api.client.get(path).status_code == 404)
