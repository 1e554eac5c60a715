# SPDX-License-Identifier: Apache-2.0
"""Ways of a tenant with the role `edit` around a policy that denies a product and bounds the number of GPUs (F166).

Each way is tried with a denied product, with too many GPUs, and with what is allowed, by kube-scheduler with our
extender and without. No pod gets what the policy denies, and each allowed one is bound.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.dra.makes import device, device_class, slice_of
from tests.e2e.claim_ways import (
    ALLOWED,
    BOUNDED,
    CLASS,
    DENIED,
    DENYING,
    MOST,
    OWN_CLASS,
    PLAIN,
    PLAIN_CONFIGURATION,
    TRIED,
    Fleet,
    Settled,
    Tenant,
    claim_by_name,
    pod_before_claim,
    pod_before_template,
    several_claims,
    template_first,
    tenants_of,
    try_ways,
)
from tests.e2e.offers import dra_path, keeps_extended_resources
from tests.e2e.stage import (
    ASKED_ABOUT_CLAIMS,
    Service,
    create_namespace,
    eventually,
    install_webhooks,
    own_policies,
    serving,
    start_scheduler,
)

FLEET = Fleet({f"{make}-{number}": make for make in (DENIED, ALLOWED) for number in range(4)})
GPUS = 64
"""GPUs of a node, of which no kubelet releases any."""
BY_LABEL = policy(
    "some",
    "match: {namespaceSelector: {matchLabels: {held: some}}, podSelector: {matchLabels: {held: 'yes'}}}, "
    f"placement: {{products: {{deny: [H100]}}}}, admission: {{maxGPUsPerPod: {MOST}}}",
)


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Nodes without labels, whose GPUs a DRA driver publishes; webhooks, and schedulers with us and without."""
    if not keeps_extended_resources(plane):
        pytest.skip("The API server drops extendedResourceName. Choose a newer version.")
    add_nodes(plane.api, [node_object(name, None, None, {}) for name in FLEET.nodes])
    for name, make in FLEET.nodes.items():
        devices = [device(number, "gpu", make) for number in range(GPUS)]
        plane.api.create(f"{dra_path(plane)}/resourceslices", slice_of(name, devices))
    served = device_class(CLASS, "gpu")
    served["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    plane.api.create(f"{dra_path(plane)}/deviceclasses", served)
    plane.api.create(f"{dra_path(plane)}/deviceclasses", OWN_CLASS)
    folder: Path = own_policies(tmp_path_factory.mktemp("p"), {"sec": BOUNDED, "deny": DENYING, "some": BY_LABEL})
    with serving(plane, policies=str(folder)) as running:
        install_webhooks(plane, running)
        plane.start_scheduler(PLAIN_CONFIGURATION, PLAIN)
        start_scheduler(plane, running, change=ASKED_ABOUT_CLAIMS)
        yield running


@pytest.mark.usefixtures("service")
def test_no_way_of_a_tenant_leads_around_a_policy_and_each_allowed_one_is_open(plane: ControlPlane) -> None:
    """F166: 20 ways, with kube-scheduler alone and with our extender."""
    running, missing, answers = try_ways(tenants_of(plane, FLEET))

    print(len(running), "denied that run", *running, len(missing), "allowed that do not", *missing, *answers, sep="\n")
    assert running == []
    assert missing == []


@pytest.mark.usefixtures("service")
def test_policy_that_selects_pods_by_labels_is_seen_to_by_their_review(plane: ControlPlane) -> None:
    """F166: their claims must be known first; a template that is replaced in between is filter's to catch."""
    tenant = Tenant(plane, create_namespace(plane, "some", held="some"), PLAIN, FLEET)
    for kind, (make, count) in TRIED.items():
        for way in (template_first, pod_before_template, claim_by_name, pod_before_claim, several_claims):
            way(tenant, f"{way.__name__.replace('_', '-')}-{kind}", make, count)
    eventually("pods are bound", Settled(tenant))

    bound = [pod["metadata"]["name"] for pod in plane.api.items(tenant.pods) if pod["spec"].get("nodeName")]

    assert sorted(bound) == ["claim-by-name-allowed", "several-claims-allowed", "template-first-allowed"]
