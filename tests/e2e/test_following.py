# SPDX-License-Identifier: Apache-2.0
"""The service follows the cluster through failures of the network and of the API server."""

import json
from collections.abc import Iterator

import pytest

from tests.builders import policy
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


def test_api_server_restarted_is_followed_again(plane: ControlPlane, service: Service) -> None:
    """HA-05, fault 2: a lost watch does not end readiness."""
    plane.stop("kube-apiserver")
    assert service.ready()
    plane.start_apiserver()

    add_nodes(plane.api, [node_object("after")])
    eventually("the node is seen", lambda: nodes_seen(service) == 4)
    plane.api.delete("/api/v1/nodes/after")
    eventually("the node is gone", lambda: nodes_seen(service) == 3)


def test_stale_view_places_nothing_and_says_so_until_it_is_back(
    plane: ControlPlane, relay: Relay, service: Service
) -> None:
    """CACHE-06: filter fails while the view is stale; admission goes on, and the pod is placed once it is current."""
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


def test_edited_policy_file_rules_on_the_next_pod_and_a_broken_one_changes_nothing(plane: ControlPlane) -> None:
    """F76, fault 12: there is no restart, and the last good set stays in force while an edit is broken."""
    namespace = create_namespace(plane, "edited")
    folder = plane.folder / "edited-policies"
    folder.mkdir()
    file = folder / "default.yaml"
    file.write_text(policy("default", ""), "utf-8")
    with serving(plane, "editing", policies=str(folder)) as editing:
        install_webhooks(plane, editing)
        create_pod(plane, gpu_pod("before", namespace, {"nvidia.com/gpu": 4}))
        file.write_text(policy("default", "admission: {maxGPUsPerPod: 2}"), "utf-8")
        eventually("the edit is taken", lambda: editing.metric("gpu_usher_policy_loads_total", result="success") >= 2)
        result = plane.kubectl.create(gpu_pod("after", namespace, {"nvidia.com/gpu": 4}))
        assert "at most 2 per pod" in result.err

        file.write_text("spec: [broken", "utf-8")
        eventually("the edit is seen", lambda: editing.metric("gpu_usher_policy_error") == 1)
        result = plane.kubectl.create(gpu_pod("broken", namespace, {"nvidia.com/gpu": 4}))
        assert "at most 2 per pod" in result.err
        assert "default.yaml:" in editing.health()["policies"]["error"]


def test_policy_in_a_config_map_is_followed_live(plane: ControlPlane, service: Service) -> None:
    """ConfigMaps labelled as policy, in our own namespace, are sources (docs/reference/policy.md#sources)."""
    install_webhooks(plane, service)
    namespace = create_namespace(plane, "by-config-map")
    document = {
        "metadata": {"name": "team", "labels": {"gpu-usher.io/policy": "true"}},
        "data": {"team.yaml": policy("team", "priority: 10, placement: {products: {allow: [T4]}}")},
    }
    plane.api.create("/api/v1/namespaces/gpu-usher/configmaps", document)
    eventually("it is loaded", lambda: service.metric("gpu_usher_policy_info", policy="team") == 1)
    pod = create_pod(plane, gpu_pod("bound", namespace))
    record = json.loads(pod["metadata"]["annotations"]["gpu-usher.io/decision"])
    assert "team" in record["policies"]

    plane.api.delete("/api/v1/namespaces/gpu-usher/configmaps/team")
    eventually("it is forgotten", lambda: service.metric("gpu_usher_policy_info", policy="team") == 0)
