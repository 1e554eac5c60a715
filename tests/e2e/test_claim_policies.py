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
    all_of_a_node,
    claim_by_name,
    gpus,
    pod_before_claim,
    pod_before_template,
    several_claims,
    template_first,
    tenants_of,
    try_ways,
    wanted,
)
from tests.e2e.offers import dra_path, keeps_extended_resources
from tests.e2e.stage import (
    ASKED_ABOUT_CLAIMS,
    OURS,
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


def dry_run(tenant: Tenant, claim: str) -> bool:
    """Tell whether a pod with a claim would be accepted."""
    entry = {"name": "c0", "resourceClaimName": claim}
    spec = {"resourceClaims": [entry], "containers": [{"name": "main", "image": "x"}]}
    return tenant.send("POST", f"{tenant.pods}?dryRun=All", {"metadata": {"name": "try"}, "spec": spec})


@pytest.mark.usefixtures("service")
def test_no_way_of_a_tenant_leads_around_a_policy_and_each_allowed_one_is_open(plane: ControlPlane) -> None:
    """F166: 20 ways, with kube-scheduler alone and with our extender."""
    running, missing, answers = try_ways(tenants_of(plane, FLEET))

    print(len(running), "denied that run", *running, len(missing), "allowed that do not", *missing, *answers, sep="\n")
    assert running == []
    assert missing == []


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("scheduler", [PLAIN, OURS])
def test_all_devices_of_a_node_are_those_that_the_policy_allows(plane: ControlPlane, scheduler: str) -> None:
    """F166: allocationMode All, under a policy without a bound on the number."""
    namespace = create_namespace(plane, f"all-{scheduler[:5]}", held="denying")
    tenant = Tenant(plane, namespace, scheduler, FLEET)
    all_of_a_node(tenant, "denied", DENIED)
    all_of_a_node(tenant, "named", DENIED, selectors=wanted(DENIED, 1)["selectors"])
    eventually("both are refused", Settled(tenant), 60)

    pods = plane.api.items(tenant.pods)

    assert [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")] == []


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("scheduler", [PLAIN, OURS])
def test_claim_made_before_the_policy_is_judged_with_the_pod(plane: ControlPlane, scheduler: str) -> None:
    """F166: the namespace comes under the policy when the claims are there already."""
    namespace = create_namespace(plane, f"before-{scheduler[:5]}")
    tenant = Tenant(plane, namespace, scheduler, FLEET)
    for kind, (make, count) in TRIED.items():
        assert tenant.claim(kind, gpus(make, count))
        assert tenant.claim(kind, gpus(make, count), template=True)
    plane.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"held": "bounded"}}})
    eventually("the policy is in force", lambda: not dry_run(tenant, "number"), 30)

    accepted = {(kind, by): tenant.pod(f"{kind}-{by}", kind, template=by == "template")
                for kind in TRIED for by in ("name", "template")}  # fmt: skip
    eventually("they are bound", Settled(tenant), 60)

    assert {kind for (kind, _), open_ in accepted.items() if open_} == {"allowed"}
    assert all(pod["spec"].get("nodeName") for pod in plane.api.items(tenant.pods))


@pytest.mark.usefixtures("service")
def test_policy_that_selects_pods_by_labels_is_seen_to_by_their_review(plane: ControlPlane) -> None:
    """F166: their claims must be known first; a template that is replaced in between is filter's to catch."""
    tenant = Tenant(plane, create_namespace(plane, "some", held="some"), PLAIN, FLEET)
    for kind, (make, count) in TRIED.items():
        for way in (template_first, pod_before_template, claim_by_name, pod_before_claim, several_claims):
            way(tenant, f"{way.__name__.replace('_', '-')}-{kind}", make, count)
    eventually("pods are bound", Settled(tenant), 60)

    bound = [pod["metadata"]["name"] for pod in plane.api.items(tenant.pods) if pod["spec"].get("nodeName")]

    assert sorted(bound) == ["claim-by-name-allowed", "several-claims-allowed", "template-first-allowed"]
