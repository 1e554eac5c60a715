# SPDX-License-Identifier: Apache-2.0
"""The scheduler shows an extender only a sample of the nodes; affinity from admission makes that the fitting ones."""

from collections.abc import Iterator

import pytest

from tests.bench.fleet import labels_of
from tests.bench.load import add_fleet, spread
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import node_object
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    gpu_pod,
    install_webhooks,
    serving,
    start_scheduler,
    wait_for_node,
)

NODES = 397
RARE = [f"zz-rare-{index}" for index in range(3)]
"""The only nodes that fit, which come last in every order."""
WHERE = "sampled"


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """Four hundred nodes, three of which fit, and a scheduler that samples nodes as it does by default."""
    add_fleet(plane.api, NODES)
    facts = {"labels": labels_of("NVIDIA-B200")}
    rare = (node_object(name, "NVIDIA-B200", "580.95.05", {"nvidia.com/gpu": 1}, **facts) for name in RARE)
    spread(plane.api, lambda own, document: own.create("/api/v1/nodes", document), rare)
    with serving(plane) as running:
        start_scheduler(plane, running)
        create_namespace(plane, WHERE)
        yield running


def test_pod_finds_its_place_outside_the_sample_at_the_first_try(plane: ControlPlane, service: Service) -> None:
    """P4, P5, F10: node affinity is judged before the sample is taken, so the extender sees fitting nodes only."""
    install_webhooks(plane, service)
    before = service.metric("gpu_usher_refusals_total", verb="filter")
    pods = [gpu_pod(f"rare-{index}", WHERE, annotations={"products": "B200"}) for index in range(len(RARE))]
    for pod in pods:
        create_pod(plane, pod)

    assert {wait_for_node(plane, pod) for pod in pods} == set(RARE)
    assert service.metric("gpu_usher_refusals_total", verb="filter") == before
