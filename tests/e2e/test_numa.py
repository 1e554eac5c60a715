# SPDX-License-Identifier: Apache-2.0
"""By policy a real kube-scheduler keeps a pod off a node whose kubelet would end it with TopologyAffinityError."""

from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import wait_until
from tests.e2e.stage import (
    SOON_SECONDS,
    Service,
    create_namespace,
    create_pod,
    gpu_pod,
    own_policies,
    serving,
    start_scheduler,
    wait_for_node,
    wait_for_refusal,
)

GROUP = "topology.node.k8s.io"
OBJECTS = f"/apis/{GROUP}/v1alpha2/noderesourcetopologies"
GPU = "nvidia.com/gpu"
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"noderesourcetopologies.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
    },
    "spec": {
        "group": GROUP,
        "names": {"plural": "noderesourcetopologies", "singular": "noderesourcetopology",
                  "kind": "NodeResourceTopology", "listKind": "NodeResourceTopologyList"},
        "scope": "Cluster",
        "versions": [{
            "name": "v1alpha2", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip
POLICY = """\
apiVersion: gpu-usher.io/v1alpha1
kind: GPUPolicy
metadata: {name: one-numa-node}
spec: {placement: {topologyManager: Refuse}}
"""


def topology(*available: int) -> Object:
    """Write the object of node n: NUMA nodes of four GPUs each."""
    resources = [{"name": GPU, "capacity": "4", "allocatable": "4", "available": str(free)} for free in available]
    return {
        "apiVersion": f"{GROUP}/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "n"},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [{"name": f"node-{index}", "type": "Node", "resources": [one]} for index, one in enumerate(resources)],
    }


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """One node of eight GPUs, its object, and a scheduler that asks us."""
    plane.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
    wait_until("the kind is served", lambda: plane.api.client.get(OBJECTS).is_success, SOON_SECONDS)
    add_nodes(plane.api, [node_object("n", offers={GPU: 8})])
    plane.api.create(OBJECTS, topology(3, 2))
    policies = own_policies(plane.folder, {"one-numa-node": POLICY})
    with serving(plane, policies=str(policies)) as running:
        wait_until(
            "the object is followed",
            lambda: running.health()["caches"].get("noderesourcetopologies", {}).get("objects") == 1,
            SOON_SECONDS,
        )
        start_scheduler(plane, running)
        yield running


def test_scheduler_places_the_pod_once_a_numa_node_has_enough(plane: ControlPlane, service: Service) -> None:
    """F83: pytorch/ci-infra#696 was accepted, failed and accepted again."""
    create_namespace(plane, "team-a")
    job = create_pod(plane, gpu_pod("job", "team-a", limits={GPU: 4}))
    message = wait_for_refusal(plane, job)
    explained = service.explain(job)
    plane.api.delete(f"{OBJECTS}/n")
    plane.api.create(OBJECTS, topology(4, 1))
    wait_until("the object is followed", lambda: service.explain(job)["fits"], SOON_SECONDS)
    small = create_pod(plane, gpu_pod("small", "team-a"))

    assert "not enough free on one NUMA node for the topology manager: wants 4 nvidia.com/gpu" in message
    assert not explained["fits"]
    assert wait_for_node(plane, small) == "n"
    plane.api.delete("/api/v1/namespaces/team-a/pods/small?gracePeriodSeconds=0")
    assert wait_for_node(plane, job) == "n"
