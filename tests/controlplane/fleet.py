# SPDX-License-Identifier: Apache-2.0
"""Nodes as objects, and a substitute for their kubelets."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.builders import node_document
from tests.controlplane.kubectl import Api, Object

KUBELET_SECONDS = 0.2
METADATA_ALONE = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
"""Of 500 pods the whole takes a quarter of a core, so often."""
ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}


def node_object(
    name: str,
    product: str | None = "NVIDIA-H100-80GB-HBM3",
    driver: str | None = "570.124.06",
    offers: Mapping[str, int] | None = None,
    **more: Any,
) -> Object:
    """Write a Ready node that the API server accepts; arguments as for `node_document`."""
    return registered(node_document(name, product, driver, offers, **more))


def registered(document: Object) -> Object:
    """Add to a node what a kubelet reports besides its GPUs; capacity equals allocatable where it is not given."""
    status = document.get("status") or {}
    allocatable = {**ROOM, **(status.get("allocatable") or {})}
    capacity = {**allocatable, **(status.get("capacity") or {})}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    conditions = [ready, *status.get("conditions", ())]
    metadata = dict(document["metadata"])
    labels = {"kubernetes.io/hostname": metadata["name"], **(metadata.get("labels") or {})}
    return {
        **document,
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {**metadata, "labels": labels},
        "status": {**status, "allocatable": allocatable, "capacity": capacity, "conditions": conditions},
    }


def add_nodes(api: Api, documents: Iterable[Object]) -> None:
    """Create nodes."""
    api.create_all("/api/v1/nodes", documents)


@contextmanager
def kubelets(api: Api) -> Iterator[None]:
    """Finish the deletion of pods, as their kubelets would, while the block lasts.

    The API server deletes pods without a node at once, so that those that are being deleted have one.
    """
    stop = threading.Event()

    def work() -> None:
        with api.like() as own:
            while not stop.wait(KUBELET_SECONDS):
                answer = own.client.get("/api/v1/pods", headers=METADATA_ALONE)
                assert answer.is_success, answer.text[:500]
                for pod in answer.json()["items"] or ():
                    if pod["metadata"].get("deletionTimestamp"):
                        own.delete(pod_path(pod))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def pod_path(pod: Object) -> str:
    """Return the path of a pod."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
