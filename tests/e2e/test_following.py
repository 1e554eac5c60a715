# SPDX-License-Identifier: Apache-2.0
"""The service follows the cluster through failures of the network and of the API server."""

from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.relay import Relay
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    install_webhooks,
    read_pod,
    refusal,
    serving,
    start_scheduler,
    wait_for_node,
)

STALE_SECONDS = 90
"""Seconds for the 30 s after which a lost watch makes the view stale, and the 30 s until the next try after that."""


@pytest.fixture(scope="module")
def relay(plane: ControlPlane) -> Iterator[Relay]:
    """The network between the service and the API server, which a test can cut."""
    made = Relay(plane.port)
    yield made
    made.close()


@pytest.fixture(scope="module")
def service(plane: ControlPlane, relay: Relay) -> Iterator[Service]:
    """The service behind the relay, with webhooks and a scheduler that calls it."""
    add_nodes(plane.api, [node_object(f"h100-{index}") for index in range(3)])
    with serving(plane, kubeconfig=str(plane.kubeconfig("gpu-usher", relay.port))) as running:
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        yield running


def nodes_seen(service: Service) -> int:
    return int(service.health()["caches"]["nodes"]["objects"])


def label(plane: ControlPlane, node: str, key: str, value: str | None) -> None:
    plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {key: value}}})


def test_broken_watch_goes_on_where_it_stopped(plane: ControlPlane, relay: Relay, service: Service) -> None:
    """CACHE-02, CACHE-03: there is no new list, nothing is lost, and the service stays ready."""
    lists = service.metric("gpu_usher_relists_total", kind="nodes")
    relay.cut()
    add_nodes(plane.api, [node_object("while-away", "Tesla-T4", "535.104.05", {"nvidia.com/gpu": 4})])
    assert service.ready()

    relay.mend()
    eventually("the node is seen", lambda: nodes_seen(service) == 4)

    assert service.metric("gpu_usher_relists_total", kind="nodes") == lists
    assert service.metric("gpu_usher_watch_restarts_total", kind="nodes", reason="connection") >= 1
    plane.api.delete("/api/v1/nodes/while-away")
    eventually("the node is gone", lambda: nodes_seen(service) == 3)


def test_compaction_while_away_brings_410_and_one_new_list(plane: ControlPlane, relay: Relay, service: Service) -> None:
    """CACHE-02, fault 4: as the history is gone, the kind is listed again, and a deleted node leaves the index."""
    add_nodes(plane.api, [node_object("leaves")])
    eventually("the node is seen", lambda: nodes_seen(service) == 4)
    lists = service.metric("gpu_usher_relists_total", kind="nodes")
    relay.cut()
    plane.api.delete("/api/v1/nodes/leaves")
    for turn in range(3):
        label(plane, "h100-0", "turn", str(turn))
    plane.stop("kube-apiserver")
    plane.compact()
    plane.start_apiserver()

    relay.mend()
    eventually("the node is gone", lambda: nodes_seen(service) == 3)

    assert service.metric("gpu_usher_relists_total", kind="nodes") == lists + 1
    assert service.metric("gpu_usher_watch_restarts_total", kind="nodes", reason="gone") >= 1


def test_stale_view_places_nothing_and_says_so_until_it_is_back(
    plane: ControlPlane, relay: Relay, service: Service
) -> None:
    """CACHE-06, HA-05, fault 2: filter fails while the view is stale; admission goes on.

    The pod is placed once the view is current.
    """
    namespace = create_namespace(plane, "stale")
    relay.cut()
    eventually("the view is stale", lambda: service.health()["caches"]["nodes"].get("stale"), STALE_SECONDS)
    pod = gpu_pod("waits", namespace)
    create_pod(plane, pod)
    eventually("the scheduler says why", lambda: refusal(read_pod(plane, pod)))
    assert refusal(read_pod(plane, pod)) == "gpu-usher: node cache is stale"
    assert "gpu-usher.io/decision" in read_pod(plane, pod)["metadata"]["annotations"]
    assert service.ready()

    relay.mend()
    assert wait_for_node(plane, pod, STALE_SECONDS).startswith("h100-")
