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
    Fleet,
    Settled,
    Tenant,
    Way,
    admin_access,
    all_of_a_node,
    alternatives,
    any_gpu_before_the_template,
    claim_by_name,
    claim_replaced_in_between,
    devices_of,
    pod_before_claim,
    pod_before_template,
    resource_by_its_class,
    resource_of_a_plugin,
    several_requests_of_containers,
    shared_claim,
    template_first,
    template_replaced_in_between,
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
from tests.realnodes.claim_stage import RESOURCE, delete_namespace
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
WAYS: tuple[Way, ...] = (
    template_first,
    pod_before_template,
    template_replaced_in_between,
    claim_by_name,
    pod_before_claim,
    claim_replaced_in_between,
    shared_claim,
    alternatives,
    several_requests_of_containers,
    resource_by_its_class,
    resource_of_a_plugin,
    admin_access,
    any_gpu_before_the_template,
)
"""Those that differ in what the controllers, kube-scheduler and the kubelet do; all 20 are tried without kubelets."""
COPIES = 16
"""Of each of eight GPUs: 128 is as many as a ResourceSlice holds."""


@pytest.fixture(scope="module")
def nodes(cluster: Cluster, dra_nodes: Mapping[str, Node]) -> Iterator[Mapping[str, Node]]:
    """The nodes of FLEET, with COPIES of each device, and the administrator's own DeviceClass."""
    path, chosen = f"{RESOURCE}/deviceclasses", {name: dra_nodes[name] for name in FLEET.nodes}
    cluster.plane.api.create(path, OWN_CLASS)
    allowed = chosen["node-3"]
    allowed.stop_device_plugin()
    allowed.start_dra_driver()
    for node in chosen.values():
        publish(node, COPIES)
    yield chosen
    for node in chosen.values():
        publish(node, 1)
    allowed.stop_dra_driver()
    allowed.start_device_plugin()
    cluster.plane.api.delete(f"{path}/{OWN_CLASS['metadata']['name']}")


def publish(node: Node, copies: int) -> None:
    """Let the driver publish so many of each device, and wait until it has."""
    node.publish_devices(copies=copies)
    count = copies * len(node.world.machine.gpus)
    eventually("all are published", lambda: sum(len(one["spec"]["devices"]) for one in node.slices()) == count)


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


@pytest.mark.usefixtures("service", "nodes")
def test_no_pod_runs_that_the_policy_denies_and_each_allowed_one_does(cluster: Cluster) -> None:
    """F166: 13 ways, with kube-scheduler alone and with our extender; without the policy all 52 denied pods run."""
    tenants = tenants_of(cluster.plane, FLEET)

    running, missing, answers = try_ways(tenants, WAYS)

    for tenant in tenants.values():
        cluster.plane.api.delete(f"/api/v1/namespaces/{tenant.namespace}")
    for tenant in tenants.values():
        delete_namespace(cluster, tenant.namespace)
    print(len(running), "denied that run", *running, len(missing), "allowed that do not", *missing, *answers, sep="\n")
    assert running == []
    assert missing == []


@pytest.mark.usefixtures("service")
def test_all_gpus_of_a_node_are_given_where_the_policy_allows_them(cluster: Cluster, nodes: Mapping[str, Node]) -> None:
    """F166: allocationMode All, under a policy without a bound on the number; one of two schedulers gets all of A100.

    An allocation has no more than 32 devices, so that each node publishes only those that it has.
    """
    for node in nodes.values():
        publish(node, 1)
    tenants = [
        Tenant(cluster.plane, create_namespace(cluster.plane, f"all-{name[:5]}", held="denying"), name, FLEET)
        for name in (PLAIN, OURS)
    ]
    for tenant in tenants:
        all_of_a_node(tenant, "denied", DENIED)
        all_of_a_node(tenant, "named", DENIED, selectors=wanted(DENIED, 1)["selectors"])
        all_of_a_node(tenant, "allowed", ALLOWED)
    for tenant in tenants:
        eventually("each runs or is refused", Settled(tenant))

    held = [devices_of(tenant, pod) for tenant in tenants for pod in cluster.plane.api.items(tenant.pods)
            if FLEET.has_started(pod)]  # fmt: skip
    for tenant in tenants:
        delete_namespace(cluster, tenant.namespace)

    assert held == [[ALLOWED] * len(nodes["node-3"].world.machine.gpus)]
