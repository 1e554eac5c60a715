# SPDX-License-Identifier: Apache-2.0
"""Two thousand pods over a thousand mixed nodes: none lost, none on a wrong node, none over-committed."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.bench.load import spread
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import wait_until
from tests.e2e.mixed import ASKS, Ask, ask, fleet, serves
from tests.e2e.stage import Service, install_webhooks, namespace, refusal, serving, start_scheduler

NODES = 1000
PODS = 2000
PLACED_SECONDS = 240
"""Bound; some 40 s here."""
WHERE = "crowd"
DEMANDS = (
    *ASKS,
    ask("half a node", amount=4),
    ask("a whole node", {"products": "A100, H100", "sharing": "Exclusive"}, amount=8),
    ask("three slices", resource="nvidia.com/mig-1g.10gb", amount=3),
)
"""One to eight GPUs, and slices: room for the large ones is there only while the small ones are packed."""


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """A thousand mixed nodes, webhooks, a scheduler that asks us."""
    spread(plane.api, lambda own, document: own.create("/api/v1/nodes", document), fleet(NODES))
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with serving(plane) as running:
        install_webhooks(plane, running)
        start_scheduler(plane, running)
        namespace(plane, WHERE)
        yield running


def wishes() -> dict[str, Ask]:
    """Draw what every pod asks for, by the pod's name."""
    drawn = random.Random(2026)
    return {f"p-{index}": drawn.choice(DEMANDS) for index in range(PODS)}


def test_two_thousand_pods_all_find_a_right_place(plane: ControlPlane, service: Service) -> None:
    """F27 to F45 together, judged by the oracle; a pod is bound, or the scheduler says why it is not."""
    asked = wishes()
    made = (each.pod(name, WHERE) for name, each in asked.items())
    spread(plane.api, lambda own, document: own.create(f"/api/v1/namespaces/{WHERE}/pods", document), made)

    pods: list[Object] = []

    def settled() -> bool:
        pods[:] = plane.api.items(f"/api/v1/namespaces/{WHERE}/pods")
        return all(pod["spec"].get("nodeName") or refusal(pod) for pod in pods)

    wait_until("every pod is bound or refused", settled, PLACED_SECONDS)

    nodes = {each["metadata"]["name"]: each for each in plane.api.items("/api/v1/nodes")}
    places = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods}
    assert places.keys() == asked.keys()
    assert not [name for name, node in places.items() if node and not serves(asked[name], nodes[node])]
    assert not over_committed(pods, nodes)
    assert [name for name, node in places.items() if not node and fits_somewhere(asked[name], nodes, pods)] == []
    assert service.metric("gpu_usher_internal_errors_total") == 0


def held(pods: list[Object]) -> Counter[tuple[str, str]]:
    """Count what is held: units by (node, GPU resource)."""
    found: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        for resource, units in pod["spec"]["containers"][0]["resources"]["limits"].items():
            if pod["spec"].get("nodeName"):
                found[pod["spec"]["nodeName"], resource] += int(units)
    return found


def over_committed(pods: list[Object], nodes: dict[str, Object]) -> list[tuple[str, str]]:
    """List what is held twice."""
    return [
        (node, resource)
        for (node, resource), units in held(pods).items()
        if units > int(nodes[node]["status"]["allocatable"].get(resource, 0))
    ]


def fits_somewhere(asked: Ask, nodes: dict[str, Object], pods: list[Object]) -> bool:
    """Tell whether a pod was refused although a right node has room."""
    taken = held(pods)
    return any(
        serves(asked, node)
        and int(node["status"]["allocatable"].get(asked.wish.resource, 0)) - taken[name, asked.wish.resource]
        >= asked.wish.amount
        for name, node in nodes.items()
    )
