# SPDX-License-Identifier: Apache-2.0
"""How soon the next replica wakes pods once the one that holds the Lease has ended: docs/reference/woken.md has it.

The cause ends right after the replica has got its signal, by an edit of a namespace's labels, of which no event tells
kube-scheduler. The scheduler asks the other replica, so that it is never without an answer.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.e2e.stage import Service, create_namespace, create_pod, eventually, gpu_pod, serving, wait_for_refusal
from tests.e2e.woken_stage import seconds_until_bound, waking_service

LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu-usher/leases/gpu-usher-events"
PATIENCE_SECONDS = 60
"""For the Lease to expire (15 s), a turn (5 s), and the looks; three times that, for a busy machine."""


@pytest.fixture(scope="module")
def replicas(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    """Two replicas; the scheduler asks the first."""
    folder = write_policies(tmp_path_factory.mktemp("policies"))
    add_nodes(plane.api, [node_object("node")])
    with (
        waking_service(plane, policies=str(folder)) as asked,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("GPU_USHER_EVENTS", "true")
        with serving(plane, "other", policies=str(folder)) as other:
            yield asked, other


def write_policies(folder: Path) -> Path:
    match = "match: {namespaceSelector: {matchLabels: {tier: plain}}}"
    rules = "admission: {affinity: {mode: 'Off'}}, placement: {products: {deny: [H100]}}"
    (folder / "tier.yaml").write_text(policy("tier", f"priority: 900, {match}, {rules}"), "utf-8")
    return folder


def holder(plane: ControlPlane) -> str:
    return str(plane.api.get(LEASE)["spec"].get("holderIdentity") or "")


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_next_replica_wakes_what_the_one_before_it_did_not(
    plane: ControlPlane, replicas: tuple[Service, Service], ended_by: signal.Signals
) -> None:
    """F140: the refusal ends right after the signal; a replica that is stopped still looks while it drains."""
    asked, other = replicas
    name = f"ended-{ended_by.name.lower()}"
    let_hold(plane, asked, other)
    create_namespace(plane, name, tier="plain")
    pod = gpu_pod("waits", name)
    create_pod(plane, pod)
    wait_for_refusal(plane, pod)

    def end() -> None:
        os.kill(other.process.pid, ended_by)
        plane.api.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"tier": "gold"}}})

    before = holder(plane)
    seconds = seconds_until_bound(plane, pod, end, PATIENCE_SECONDS)
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
