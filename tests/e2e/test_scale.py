# SPDX-License-Identifier: Apache-2.0
"""Many pods over a thousand mixed nodes: none is lost, none is on a wrong node, none is over-committed."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.bench.load import spread
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import wait_until
from tests.e2e.mixed import REQUESTS, PodRequest, fleet, make_request, serves
from tests.e2e.stage import Service, create_namespace, install_webhooks, refusal, serving, start_scheduler

NODES = 1000
PLACED_SECONDS = 240
"""Seconds until all pods are placed; 2,000 take about 40 s."""
DEMANDS = (
    *REQUESTS,
    make_request("half a node", amount=4),
    make_request("a whole node", {"products": "A100, H100", "sharing": "Exclusive"}, amount=8),
    make_request("three slices", resource="nvidia.com/mig-1g.10gb", amount=3),
)
"""Pods of one to eight GPUs, and of slices: the large ones find room only if the small ones are packed."""


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """A thousand mixed nodes, webhooks, and a scheduler that calls the extender."""
    spread(plane.api, lambda own, document: own.create("/api/v1/nodes", document), fleet(NODES))
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with serving(plane) as running:
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        yield running


def draw_requests(count: int) -> dict[str, PodRequest]:
    """Draw the request of every pod, by the pod's name."""
    drawn = random.Random(2026)
    return {f"p-{index}": drawn.choice(DEMANDS) for index in range(count)}


@pytest.mark.parametrize("count", [500, pytest.param(2000, marks=pytest.mark.long)])
def test_pods_all_find_a_right_place(plane: ControlPlane, service: Service, count: int) -> None:
    """F27 to F45 together, judged by the oracle: each pod is bound, or the scheduler says why it is not."""
    requests, namespace = draw_requests(count), create_namespace(plane, f"crowd-{count}")
    made = (request.pod(name, namespace) for name, request in requests.items())
    spread(plane.api, lambda own, document: own.create(f"/api/v1/namespaces/{namespace}/pods", document), made)

    pods: list[Object] = []

    def settled() -> bool:
        pods[:] = plane.api.items(f"/api/v1/namespaces/{namespace}/pods")
        return all(pod["spec"].get("nodeName") or refusal(pod) for pod in pods)

    wait_until("every pod is bound or refused", settled, PLACED_SECONDS)

    nodes = {node["metadata"]["name"]: node for node in plane.api.items("/api/v1/nodes")}
    places = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods}
    assert places.keys() == requests.keys()
    assert not [name for name, node in places.items() if node and not serves(requests[name], nodes[node])]
    assert not over_committed(pods, nodes)
    assert [name for name, node in places.items() if not node and fits_somewhere(requests[name], nodes, pods)] == []
    assert service.metric("gpu_usher_internal_errors_total") == 0
    plane.api.delete(f"/api/v1/namespaces/{namespace}/pods")


def held_units(pods: list[Object]) -> Counter[tuple[str, str]]:
    """Count the units that bound pods hold, by (node, GPU resource)."""
    units_held: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        for resource, units in pod["spec"]["containers"][0]["resources"]["limits"].items():
            if pod["spec"].get("nodeName"):
                units_held[pod["spec"]["nodeName"], resource] += int(units)
    return units_held


def over_committed(pods: list[Object], nodes: dict[str, Object]) -> list[tuple[str, str]]:
    """List each (node, resource) of which pods hold more units than there are."""
    return [
        (node, resource)
        for (node, resource), units in held_units(pods).items()
        if units > int(nodes[node]["status"]["allocatable"].get(resource, 0))
    ]


def fits_somewhere(request: PodRequest, nodes: dict[str, Object], pods: list[Object]) -> bool:
    """Tell whether a pod was refused although a right node has room."""
    taken = held_units(pods)
    return any(
        serves(request, node)
        and int(node["status"]["allocatable"].get(request.wish.resource, 0)) - taken[name, request.wish.resource]
        >= request.wish.amount
        for name, node in nodes.items()
    )
