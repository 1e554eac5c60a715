# SPDX-License-Identifier: Apache-2.0
"""How soon a pod is tried again where no event tells kube-scheduler that the cause has ended: docs/reference/woken.md.

The causes end by edits of policies and of a namespace's labels, and by GPU health that an exporter reports. Admission
writes no node affinity here, so that kube-scheduler refuses nothing by itself. And how soon the next replica wakes pods
once the one that holds the Lease has ended: the cause ends right after the replica has got its signal. The scheduler
asks the other replica, so that it is never without an answer.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import free_port
from tests.e2e.stage import (
    DEPLOY,
    Service,
    apply_files,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    read_pod,
    refusal,
    serving,
    wait_for_refusal,
)
from tests.e2e.woken_stage import PATIENCE_SECONDS, seconds_until_bound, waking_service

CONFIG_MAPS = "/api/v1/namespaces/gpu-usher/configmaps"
GPU_POLICIES = "/apis/gpu-usher.io/v1alpha1/gpupolicies"
CONFIG_MAP_POLICY, OBJECT_POLICY = "configmap", "gpupolicy"
FILE, NAMESPACE_LABELS, HEALTH, TAKEOVER = "file", "namespace", "health", "takeover"
FAILURE = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
POLL_SECONDS = 120
"""Four times as long as from one poll of GPU health to the next (app/cluster/gpu_health_polling.py)."""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu-usher/leases/gpu-usher-events"
TAKEOVER_SECONDS = 120
"""For the Lease to expire (15 s), a turn (5 s), and the looks; six times that, for a busy machine."""
DENIED: Object = {"products": {"deny": ["H100"]}}


def refusing(name: str) -> str:
    """Write a policy that refuses the product of all nodes to pods in the namespace of that name."""
    match = f"match: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}}}"
    return policy(f"refuse-{name}", f"priority: 900, {match}, placement: {{products: {{deny: [H100]}}}}")


class Exporter:
    """A DCGM exporter that reports one node, whose row remapping has failed until `failed` is False."""

    def __init__(self) -> None:
        self.failed = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                labels = f'gpu="0",UUID="GPU-{HEALTH}",Hostname="{HEALTH}"'
                body = f"# TYPE {FAILURE} gauge\n{FAILURE}{{{labels}}} {int(outer.failed)}\n".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Write no log."""

        self.port = free_port()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True)
class RefusalEnds:
    """What the ends of refusals change."""

    plane: ControlPlane
    service: Service
    flags: Mapping[str, str]
    exporter: Exporter

    def recover(self) -> None:
        """Let the exporter report health, and wait until a poll has brought it."""
        self.exporter.failed = False
        pod = gpu_pod("asked", HEALTH, nodeSelector={"turn": HEALTH})
        eventually("a poll has brought it", lambda: self.service.explain(pod)["fits"], POLL_SECONDS)


ENDS: dict[str, Callable[[RefusalEnds], object]] = {
    FILE: lambda stage: Path(stage.flags["policies"], f"{FILE}.yaml").unlink(),
    CONFIG_MAP_POLICY: lambda stage: stage.plane.api.delete(f"{CONFIG_MAPS}/{CONFIG_MAP_POLICY}"),
    OBJECT_POLICY: lambda stage: stage.plane.api.delete(f"{GPU_POLICIES}/refuse-{OBJECT_POLICY}"),
    NAMESPACE_LABELS: lambda stage: stage.plane.api.patch(
        f"/api/v1/namespaces/{NAMESPACE_LABELS}", {"metadata": {"labels": {"tier": "gold"}}}
    ),
    HEALTH: lambda _: None,
}


@pytest.fixture(scope="module")
def stage(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefusalEnds]:
    """The service, a scheduler, the exporter, and the policies that refuse."""
    folder = tmp_path_factory.mktemp("policies")
    (folder / "bare.yaml").write_text(policy("bare", "priority: 1, admission: {affinity: {mode: 'Off'}}"), "utf-8")
    (folder / f"{FILE}.yaml").write_text(refusing(FILE), "utf-8")
    tier = "match: {namespaceSelector: {matchLabels: {tier: plain}}}, placement: {products: {deny: [H100]}}"
    (folder / "tier.yaml").write_text(policy("tier", f"priority: 900, {tier}"), "utf-8")
    add_nodes(plane.api, [node_object(name, labels={"turn": name}) for name in (*ENDS, TAKEOVER)])
    apply_files(plane, *(DEPLOY / "components" / "crd" / name for name in ("gpupolicies.yaml", "rbac.yaml")))
    exporter = Exporter()
    flags = {"policies": str(folder), "dcgm_exporters": f"http://127.0.0.1:{exporter.port}/metrics"}
    with waking_service(plane, **flags) as service:
        for name in ENDS:
            create_namespace(plane, name, tier="plain" if name == NAMESPACE_LABELS else "none")
        eventually("GPUPolicies are followed", lambda: service.health()["caches"].get("gpupolicies", {}).get("synced"))
        write_policies(plane)
        for name in (CONFIG_MAP_POLICY, OBJECT_POLICY):
            eventually(f"{name} is in force", partial(service.metric, "gpu_usher_policy_info", policy=f"refuse-{name}"))
        yield RefusalEnds(plane, service, flags, exporter)
    exporter.close()


def write_policies(plane: ControlPlane) -> None:
    """Create the policies that are objects of the cluster."""
    metadata = {"name": CONFIG_MAP_POLICY, "labels": {"gpu-usher.io/policy": "true"}}
    plane.api.create(CONFIG_MAPS, {"metadata": metadata, "data": {"own.yaml": refusing(CONFIG_MAP_POLICY)}})
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": OBJECT_POLICY}}}
    spec = {"priority": 900, "match": selector, "placement": DENIED}
    kind = {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy"}
    document = {**kind, "metadata": {"name": f"refuse-{OBJECT_POLICY}"}, "spec": spec}
    result = plane.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    assert result.code == 0, result.err


@pytest.mark.parametrize("name", ENDS)
def test_pod_is_woken_in_time_though_no_event_tells_the_scheduler(stage: RefusalEnds, name: str) -> None:
    """F140: for health the time counts from the poll that has brought it, as polls are half a minute apart."""
    pod = gpu_pod("waits", name, nodeSelector={"turn": name})
    if name == HEALTH:
        eventually("a poll has brought it", lambda: not stage.service.explain(pod)["fits"], POLL_SECONDS)
    create_pod(stage.plane, pod)
    wait_for_refusal(stage.plane, pod)
    message = refusal(read_pod(stage.plane, pod))
    if name == HEALTH:
        stage.recover()

    seconds = seconds_until_bound(stage.plane, pod, lambda: ENDS[name](stage), PATIENCE_SECONDS)
    print(f"WOKEN | {name} | {seconds:.2f} | {message}")

    assert seconds < float("inf")


@pytest.fixture(scope="module")
def other(stage: RefusalEnds) -> Iterator[Service]:
    """A second replica, which the scheduler does not ask, and which drains as in a cluster."""
    with serving(stage.plane, "other", **stage.flags, drain_seconds="5") as running:
        yield running


def holder(plane: ControlPlane) -> str:
    return str(plane.api.get(LEASE)["spec"].get("holderIdentity") or "")


@pytest.mark.parametrize(
    "ended_by",
    [pytest.param(signal.SIGTERM, id="stopped", marks=pytest.mark.long), pytest.param(signal.SIGKILL, id="killed")],
)
def test_next_replica_wakes_what_the_one_before_it_did_not(
    stage: RefusalEnds, other: Service, ended_by: signal.Signals
) -> None:
    """F140: the refusal ends right after the signal; a replica that is stopped still looks while it drains."""
    plane, name = stage.plane, f"ended-{ended_by.name.lower()}"
    let_hold(plane, stage.service, other)
    create_namespace(plane, name, tier="plain")
    pod = gpu_pod("waits", name, nodeSelector={"turn": TAKEOVER})
    create_pod(plane, pod)
    wait_for_refusal(plane, pod)

    def end() -> None:
        os.kill(other.process.pid, ended_by)
        plane.api.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"tier": "gold"}}})

    before = holder(plane)
    seconds = seconds_until_bound(plane, pod, end, TAKEOVER_SECONDS)
    print(f"WOKEN | takeover | {ended_by.name} | {seconds:.2f}")

    other.process.stop()
    assert seconds < float("inf")
    eventually("the next replica holds the Lease", lambda: holder(plane) not in ("", before))


def let_hold(plane: ControlPlane, asked: Service, other: Service) -> None:
    """Have the other replica hold the Lease: the one that is asked is started anew while the other waits for it."""
    if not other.process.running:
        other.restart()
    mine = holder(plane)
    asked.process.stop()
    eventually("the other replica holds the Lease", lambda: holder(plane) not in ("", mine))
    asked.restart()
