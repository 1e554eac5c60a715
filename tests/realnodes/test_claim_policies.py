# SPDX-License-Identifier: Apache-2.0
"""The ways of tests/e2e/claim_ways.py on real nodes, whose DRA driver prepares what the claims of started pods got.

The driver publishes more devices than its nodes have, so that no way is kept from a denied GPU by another one's pod.
"""

from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.claim_ways import (
    ALLOWED,
    BOUNDED,
    DENIED,
    DENYING,
    OWN_CLASS,
    PLAIN,
    PLAIN_CONFIGURATION,
    WAYS,
    Fleet,
    Settled,
    Tenant,
    all_of_a_node,
    devices_of,
    tenants_of,
    try_ways,
    wanted,
)
from tests.e2e.stage import (
    ASKED_ABOUT_CLAIMS,
    OURS,
    Service,
    create_namespace,
    eventually,
    install_webhooks,
    own_policies,
    remove_webhooks,
    serving,
    start_scheduler,
)
from tests.realnodes.claim_stage import RESOURCE, delete_namespace, nodes_with_containerd_2
from tests.realnodes.cluster import Cluster
from tests.realnodes.images import SHELL
from tests.realnodes.node import Node

NEEDS_A_DEVICE = "ls /dev/nvidia[0-9]* && exec sleep 1000"
"""What the containers run: without a device file of a GPU the pod fails."""
FLEET = Fleet(
    {"node-1": DENIED, "node-3": ALLOWED},
    {"image": SHELL, "command": ["sh", "-c", NEEDS_A_DEVICE]},
    {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1},
    ("Running",),
)
COPIES = 16
"""Of each of eight GPUs: 128 is as many as a ResourceSlice holds."""


@pytest.fixture(scope="module")
def dra_nodes(cluster: Cluster) -> Iterator[Mapping[str, Node]]:
    """A node with the denied product and one with the allowed, both without labels' help: claims are all there is."""
    with nodes_with_containerd_2(cluster, FLEET.nodes) as nodes:
        for node in nodes.values():
            node.stop_device_plugin()
            node.start_dra_driver()
        cluster.plane.api.create(f"{RESOURCE}/deviceclasses", OWN_CLASS)
        yield nodes
        cluster.plane.api.delete(f"{RESOURCE}/deviceclasses/{OWN_CLASS['metadata']['name']}")


@pytest.fixture(scope="module")
def service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with the policies, its webhooks, and schedulers with us and without."""
    folder = own_policies(tmp_path_factory.mktemp("p"), {"sec": BOUNDED, "deny": DENYING})
    with serving(cluster.plane, policies=str(folder)) as running:
        install_webhooks(cluster.plane, running)
        cluster.plane.start_scheduler(PLAIN_CONFIGURATION, PLAIN)
        start_scheduler(cluster.plane, running, change=ASKED_ABOUT_CLAIMS)
        yield running
        for scheduler in (PLAIN, OURS):
            cluster.plane.stop(scheduler)
        remove_webhooks(cluster.plane)


def publish(nodes: Mapping[str, Node], copies: int) -> None:
    """Let the drivers publish their GPUs, and wait until they have."""
    for node in nodes.values():
        node.publish_devices(copies=copies)
    counts = [copies * len(node.world.machine.gpus) for node in nodes.values()]
    eventually("all are published", lambda: [published(node) for node in nodes.values()] == counts)


def published(node: Node) -> int:
    return sum(len(each["spec"].get("devices") or ()) for each in node.slices())


@pytest.mark.usefixtures("service")
def test_no_pod_runs_that_the_policy_denies_and_each_allowed_one_does(
    cluster: Cluster, dra_nodes: Mapping[str, Node]
) -> None:
    """F166: 20 ways, with kube-scheduler alone and with our extender."""
    publish(dra_nodes, COPIES)
    tenants = tenants_of(cluster.plane, FLEET)

    running, missing, answers = try_ways(tenants)

    for tenant in tenants.values():
        delete_namespace(cluster, tenant.namespace)
    print(len(WAYS), "ways", len(running), "denied that run", *running, len(missing), "allowed that do not", sep="\n")
    print(*missing, *answers, sep="\n")
    assert running == []
    assert missing == []


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("scheduler", [PLAIN, OURS])
def test_all_gpus_of_a_node_are_given_where_the_policy_allows_them(
    cluster: Cluster, dra_nodes: Mapping[str, Node], scheduler: str
) -> None:
    """F166: allocationMode All, under a policy without a bound on the number."""
    publish(dra_nodes, 1)
    namespace = create_namespace(cluster.plane, f"all-{scheduler[:5]}", held="denying")
    tenant = Tenant(cluster.plane, namespace, scheduler, FLEET)
    all_of_a_node(tenant, "denied", DENIED)
    all_of_a_node(tenant, "named", DENIED, selectors=wanted(DENIED, 1)["selectors"])
    all_of_a_node(tenant, "allowed", ALLOWED)
    eventually("each runs or is refused", Settled(tenant), 60)

    held = {pod["metadata"]["name"]: devices_of(tenant, pod) for pod in cluster.plane.api.items(tenant.pods)
            if FLEET.has_started(pod)}  # fmt: skip
    delete_namespace(cluster, namespace)

    assert held == {"allowed": [ALLOWED] * len(dra_nodes["node-3"].world.machine.gpus)}
