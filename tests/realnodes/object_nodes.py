# SPDX-License-Identifier: Apache-2.0
"""Nodes that are objects alone, kept Ready beside real ones, and pods on them that are shown as Running.

KWOK does the same at the same cost (docs/reference/neighbours.md#kwok). It is not used, since it is one more module to
build and to keep at the version of Kubernetes, while all that is needed of it are the functions below: renew a Lease,
write a status, and finish a deletion.
"""

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from app.telemetry.logs import now
from tests.controlplane.fleet import add_nodes, pod_path, registered
from tests.controlplane.kubectl import Api, Object

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_SECONDS = 40
"""The kubelet's default nodeLeaseDurationSeconds; it renews the Lease after a quarter of that."""
LOOK_SECONDS = 1
"""Between two looks at the pods of the nodes. A guess: people do not wait for such a pod."""
VERSION = "object-only"
"""What `kubectl get nodes` shows in its column VERSION."""


@contextmanager
def object_nodes(api: Api, documents: Sequence[Object]) -> Iterator[None]:
    """Create nodes, and act as their kubelets while the block lasts.

    The node lifecycle controller takes a node as healthy for as long as its Lease is renewed. A container is never
    started on such a node: `kubectl logs` and `kubectl exec` find nobody there.
    """
    names = [document["metadata"]["name"] for document in documents]
    add_nodes(api, map(_describe, documents))
    api.create_all(
        LEASES, [{"metadata": {"name": name}, "spec": {"holderIdentity": name, **lease_term()}} for name in names]
    )
    stop = threading.Event()

    def work() -> None:
        renewed = now()
        with api.like() as own:
            while not stop.wait(LOOK_SECONDS):
                # An error is of one moment, such as a pod that is gone meanwhile: the next look tries again. The Leases
                # come first and by themselves, so that an API server that hung finds them renewed once it answers.
                if now() - renewed >= dt.timedelta(seconds=LEASE_SECONDS / 4):
                    with contextlib.suppress(AssertionError, httpx.HTTPError):
                        renew_leases(own, names)
                        report_ready(own, frozenset(names))
                        renewed = now()
                with contextlib.suppress(AssertionError, httpx.HTTPError):
                    _play_pods(own, frozenset(names))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def _describe(document: Object) -> Object:
    node = registered(document)
    return {**node, "status": {**node["status"], "nodeInfo": {"kubeletVersion": VERSION}}}


def renew_leases(api: Api, names: Sequence[str]) -> None:
    for name in names:
        api.patch(f"{LEASES}/{name}", {"spec": lease_term()})


def report_ready(api: Api, names: frozenset[str]) -> None:
    """Report nodes as Ready that are not, as their kubelets would: after a gap no other writer sets the condition."""
    for node in api.items("/api/v1/nodes"):
        conditions = node["status"].get("conditions") or ()
        ready = next((one for one in conditions if one["type"] == "Ready"), None)
        if node["metadata"]["name"] in names and (ready is None or ready["status"] != "True"):
            others = [one for one in conditions if one["type"] != "Ready"]
            report = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            change = {"status": {"conditions": [*others, report]}}
            api.patch(f"/api/v1/nodes/{node['metadata']['name']}/status", change)


def lease_term() -> Object:
    """Give the fields of a Lease that was renewed just now; its time has microseconds (metav1.MicroTime)."""
    return {"leaseDurationSeconds": LEASE_SECONDS, "renewTime": now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


def _play_pods(api: Api, names: frozenset[str]) -> None:
    for pod in api.items("/api/v1/pods"):
        if pod["spec"].get("nodeName") not in names:
            continue
        if pod["metadata"].get("deletionTimestamp"):
            api.delete(pod_path(pod))
        elif pod["status"].get("phase") == "Pending":
            api.patch(f"{pod_path(pod)}/status", {"status": _running(pod)})


def _running(pod: Object) -> Object:
    """Write the status of a pod whose containers run."""
    started = now().strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "startTime": started,
        "conditions": [{"type": name, "status": "True", "lastTransitionTime": started} for name in conditions],
        "containerStatuses": [
            {
                **{"name": container["name"], "image": container["image"], "imageID": ""},
                **{"ready": True, "started": True, "restartCount": 0, "state": {"running": {"startedAt": started}}},
            }
            for container in pod["spec"]["containers"]
        ],
    }
