# SPDX-License-Identifier: Apache-2.0
"""The scheduler shows an extender only a sample of the nodes; affinity from admission makes that the fitting ones."""

from collections.abc import Iterator

import pytest

from tests.bench.fleet import labels_of
from tests.bench.load import add_fleet, spread
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import node_object, pod_path
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    install_webhooks,
    remove_webhooks,
    serving,
    start_scheduler,
    wait_for_node,
)

NODES = 997
RARE = [f"zz-rare-{index}" for index in range(3)]
"""The only nodes that fit, which come last in every order."""
WHERE = "sampled"
WISHES = {
    "product": {"products": "B200"},
    "memory": {"gpu-memory": "180GB"},
    "capability": {"compute-capability": "10.0"},
}


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """A thousand nodes, three of which fit, and a scheduler that samples nodes as it does by default."""
    add_fleet(plane.api, NODES)
    facts = {"labels": labels_of("NVIDIA-B200")}
    rare = (node_object(name, "NVIDIA-B200", "580.95.05", {"nvidia.com/gpu": 1}, **facts) for name in RARE)
    spread(plane.api, lambda own, document: own.create("/api/v1/nodes", document), rare)
    with serving(plane) as running:
        start_scheduler(plane, running)
        create_namespace(plane, WHERE)
        yield running


@pytest.mark.parametrize("need", WISHES)
def test_pod_finds_its_place_outside_the_sample_at_the_first_try(
    plane: ControlPlane, service: Service, need: str
) -> None:
    """P4, P5, F10: node affinity is judged before the sample is taken, so the extender sees fitting nodes only."""
    install_webhooks(plane, service)
    before = service.metric("gpu_usher_refusals_total", verb="filter")
    pods = [gpu_pod(f"{need}-{index}", WHERE, annotations=WISHES[need]) for index in range(len(RARE))]
    for pod in pods:
        create_pod(plane, pod)

    assert {wait_for_node(plane, pod) for pod in pods} == set(RARE)
    assert service.metric("gpu_usher_refusals_total", verb="filter") == before
    for pod in pods:
        plane.api.delete(pod_path(pod))


def test_without_the_affinity_we_are_shown_hundreds_of_wrong_nodes(plane: ControlPlane, service: Service) -> None:
    """P5, the reason of F10: of 1,000 nodes 420 are shown, and perhaps none of them fits.

    See docs/reference/control-plane.md#sampling.
    """
    remove_webhooks(plane)
    create_pod(plane, gpu_pod("unseen", WHERE, annotations=WISHES["product"]))

    eventually("a sample is refused", lambda: service.metric("gpu_usher_refusals_total", verb="filter") >= 400)
    assert service.metric("gpu_usher_refusals_total", verb="filter", reason="ProductNotAllowed") >= 400
