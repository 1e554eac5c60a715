# SPDX-License-Identifier: Apache-2.0
"""Ways of a tenant with the role `edit` around a policy that denies a product and bounds the number of GPUs (F166).

Each way is tried with a denied product, with too many GPUs, and with what is allowed, by kube-scheduler with our
extender and without. No pod gets what the policy denies, and each allowed one is bound.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.dra.makes import device, device_class, slice_of
from tests.e2e.offers import GROUP, dra_path, dra_version, keeps_extended_resources, served_versions
from tests.e2e.settling import QUICK
from tests.e2e.stage import (
    ASKED_ABOUT_CLAIMS,
    OURS,
    Service,
    create_namespace,
    eventually,
    install_webhooks,
    own_policies,
    refusal,
    serving,
    start_scheduler,
)

PLAIN = "plain-scheduler"
CLASS = "gpu.nvidia.com"
DENIED, ALLOWED = "h100", "a100"
NODES = {f"{make}-{number}": make for make in (DENIED, ALLOWED) for number in range(4)}
GPUS = 64
"""GPUs of a node, of which no kubelet releases any."""
PRODUCTS = {DENIED: "NVIDIA H100 80GB HBM3", ALLOWED: "NVIDIA A100-SXM4-80GB"}
MOST = 2
BOUNDED = policy(
    "sec",
    "match: {namespaceSelector: {matchLabels: {held: bounded}}}, "
    f"placement: {{products: {{deny: [H100]}}}}, admission: {{maxGPUsPerPod: {MOST}}}",
)
DENYING = policy(
    "deny", "match: {namespaceSelector: {matchLabels: {held: denying}}}, placement: {products: {deny: [H100]}}"
)
BY_LABEL = policy(
    "some",
    "match: {namespaceSelector: {matchLabels: {held: some}}, podSelector: {matchLabels: {held: 'yes'}}}, "
    f"placement: {{products: {{deny: [H100]}}}}, admission: {{maxGPUsPerPod: {MOST}}}",
)


EDIT = ("system:aggregate-to-edit", "system:aggregate-to-view")
"""What the role `edit` has, which a controller puts together that does not run here."""


class Tenant:
    """A service account with the role `edit` in one namespace, whose pods name one scheduler."""

    def __init__(self, plane: ControlPlane, namespace: str, scheduler: str) -> None:
        self.plane, self.namespace, self.scheduler = plane, namespace, scheduler
        self.answers: list[str] = []
        account = f"system:serviceaccount:{namespace}:default"
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        self._headers = [("Impersonate-User", account), *(("Impersonate-Group", group) for group in groups)]
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
        for name in EDIT:
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
            plane.api.create(path, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})

    def send(self, method: str, path: str, document: Object | None = None, kind: str = "application/json") -> bool:
        """Send a request as the tenant; the answer is kept, and whether it was accepted returned."""
        headers = [*self._headers, ("Content-Type", kind)]
        answer: httpx.Response = self.plane.api.client.request(method, path, json=document, headers=headers)
        if not answer.is_success:
            self.answers.append(f"{path.rpartition('/')[2]}: {answer.json().get('message')}")
        return answer.is_success

    def claim(self, name: str, *requests: Object, template: bool = False, version: str = "", **metadata: Any) -> bool:
        """Create a claim, or a template."""
        spec: Object = {"devices": {"requests": list(requests)}}
        document = {"metadata": {"name": name, **metadata}, "spec": {"spec": spec} if template else spec}
        return self.send("POST", self.path(template, version), document)

    def path(self, template: bool, version: str = "") -> str:
        group = f"/apis/resource.k8s.io/{version or dra_version(self.plane)}/namespaces/{self.namespace}"
        return f"{group}/resourceclaim{'template' if template else ''}s"

    def drop(self, name: str, template: bool = False) -> bool:
        return self.send("DELETE", f"{self.path(template)}/{name}")

    def pod(self, name: str, *claims: str, template: bool = False, **spec: Any) -> bool:
        """Create a pod that uses claims by name, or of templates; `limits` are of its container."""
        key = "resourceClaimTemplateName" if template else "resourceClaimName"
        entries = [{"name": f"c{number}", key: claim} for number, claim in enumerate(claims)]
        resources = {"claims": [{"name": entry["name"]} for entry in entries]} if entries else {}
        resources |= {"limits": spec.pop("limits")} if "limits" in spec else {}
        containers = spec.pop("containers", [{"name": "main", "image": "x", "resources": resources}])
        whole = {"schedulerName": self.scheduler, "containers": containers, **spec}
        whole |= {"resourceClaims": entries} if entries else {}
        return self.send("POST", self.pods, {"metadata": {"name": name, "labels": {"held": "yes"}}, "spec": whole})

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def release(self, name: str) -> bool:
        """Take the scheduling gate off a pod."""
        change: Object = {"spec": {"schedulingGates": []}}
        return self.send("PATCH", f"{self.pods}/{name}", change, "application/merge-patch+json")


GATED: Mapping[str, Any] = {"schedulingGates": [{"name": "example.com/wait"}]}


def gpus(make: str, count: int = 1, name: str = "gpu", **fields: Any) -> Object:
    """Write a request for GPUs of a make."""
    return {"name": name, "exactly": wanted(make, count, **fields)}


def wanted(make: str, count: int, **fields: Any) -> Object:
    expression = f"device.attributes['{CLASS}'].productName == '{PRODUCTS[make]}'"
    return {"deviceClassName": CLASS, "count": count, "selectors": [{"cel": {"expression": expression}}], **fields}


Way = Callable[[Tenant, str, str, int], None]
"""A way of a tenant to GPUs of a make, a number of them, by objects of a name."""


def template_first(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.claim(name, gpus(make, count), template=True)
    tenant.pod(name, name, template=True)


def pod_before_template(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.pod(name, name, template=True)
    tenant.claim(name, gpus(make, count), template=True)


def template_replaced_in_between(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.claim(name, gpus(ALLOWED, 1), template=True)
    tenant.pod(name, name, template=True, **GATED)
    tenant.drop(name, template=True)
    tenant.claim(name, gpus(make, count), template=True)
    tenant.release(name)


def claim_by_name(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.claim(name, gpus(make, count))
    tenant.pod(name, name)


def pod_before_claim(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.pod(name, name)
    tenant.claim(name, gpus(make, count))


def claim_replaced_in_between(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.claim(name, gpus(ALLOWED, 1))
    tenant.pod(name, name, **GATED)
    tenant.drop(name)
    tenant.claim(name, gpus(make, count))
    tenant.release(name)


def shared_claim(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.claim(name, gpus(make, count))
    tenant.pod(name, name)
    tenant.pod(f"{name}-2", name)


def alternatives(tenant: Tenant, name: str, make: str, count: int) -> None:
    choices = [{"name": "first", **wanted(make, count)}, {"name": "second", **wanted(make, 1)}]
    tenant.claim(name, {"name": "gpu", "firstAvailable": choices}, template=True)
    tenant.pod(name, name, template=True)


def several_requests_of_containers(tenant: Tenant, name: str, make: str, count: int) -> None:
    requests = [gpus(make, 1, f"r{number}") for number in range(count)]
    tenant.claim(name, *requests, template=True)
    containers = [
        {"name": f"m{number}", "image": "x", "resources": {"claims": [{"name": "c0", "request": f"r{number}"}]}}
        for number in range(count)
    ]
    tenant.pod(name, name, template=True, containers=containers)


def several_claims(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.claim(name, gpus(make), template=True)
    tenant.pod(name, *[name] * count, template=True)


def several_claims_after_the_pod(tenant: Tenant, name: str, make: str, count: int) -> None:
    """kubectl apply again, as the refusal says, is what the tenant does next."""
    accepted = tenant.pod(name, *[name] * count, template=True)
    tenant.claim(name, gpus(make), template=True)
    if not accepted:
        tenant.pod(name, *[name] * count, template=True)


def resource_by_its_class(tenant: Tenant, name: str, make: str, count: int) -> None:
    """The extended resource that each DeviceClass serves, on a node with the make."""
    where = {"kubernetes.io/hostname": next(node for node, made in NODES.items() if made == make)}
    tenant.pod(name, limits={f"deviceclass.resource.kubernetes.io/{CLASS}": count}, nodeSelector=where)


def resource_of_a_plugin(tenant: Tenant, name: str, make: str, count: int) -> None:
    where = {"kubernetes.io/hostname": next(node for node, made in NODES.items() if made == make)}
    tenant.pod(name, limits={"nvidia.com/gpu": count}, nodeSelector=where)


def class_of_the_administrator(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.claim(name, gpus(make, count, deviceClassName="mine"), template=True)
    tenant.pod(name, name, template=True)


def older_version_of_the_api(tenant: Tenant, name: str, make: str, count: int) -> None:
    served = served_versions(tenant.plane, GROUP)
    tenant.claim(name, gpus(make, count), version="v1beta2" if "v1beta2" in served else "")
    tenant.pod(name, name)


def forged_claim_of_a_pod(tenant: Tenant, name: str, make: str, count: int) -> None:
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    tenant.claim(name, gpus(make, count), annotations=annotations)
    tenant.pod(name, name)


def admin_access(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.claim(name, gpus(make, count, adminAccess=True), template=True)
    tenant.pod(name, name, template=True)


def node_by_name(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.claim(name, gpus(make, count), template=True)
    where = next(node for node, made in NODES.items() if made == make)
    tenant.pod(name, name, template=True, nodeSelector={"kubernetes.io/hostname": where})


def any_gpu_on_a_node(tenant: Tenant, name: str, make: str, count: int) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "count": count}}
    tenant.claim(name, request, template=True)
    where = next(node for node, made in NODES.items() if made == make)
    tenant.pod(name, name, template=True, nodeSelector={"kubernetes.io/hostname": where})


def any_gpu_before_the_template(tenant: Tenant, name: str, make: str, count: int) -> None:
    where = next(node for node, made in NODES.items() if made == make)
    tenant.pod(name, name, template=True, nodeSelector={"kubernetes.io/hostname": where})
    tenant.claim(name, {"name": "gpu", "exactly": {"deviceClassName": CLASS, "count": count}}, template=True)


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
    several_claims,
    several_claims_after_the_pod,
    resource_by_its_class,
    resource_of_a_plugin,
    class_of_the_administrator,
    older_version_of_the_api,
    forged_claim_of_a_pod,
    admin_access,
    node_by_name,
    any_gpu_on_a_node,
    any_gpu_before_the_template,
)
TRIED = {"product": (DENIED, 1), "number": (ALLOWED, MOST + 1), "allowed": (ALLOWED, MOST)}


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Nodes without labels, whose GPUs a DRA driver publishes; webhooks, and schedulers with us and without."""
    if not keeps_extended_resources(plane):
        pytest.skip("The API server drops extendedResourceName. Choose a newer version.")
    add_nodes(plane.api, [node_object(name, None, None, {}) for name in NODES])
    for name, make in NODES.items():
        devices = [device(number, "gpu", make) for number in range(GPUS)]
        plane.api.create(f"{dra_path(plane)}/resourceslices", slice_of(name, devices))
    served = device_class(CLASS, "gpu")
    served["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    plane.api.create(f"{dra_path(plane)}/deviceclasses", served)
    mine = {
        "metadata": {"name": "mine"},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{CLASS}'"}}]},
    }
    plane.api.create(f"{dra_path(plane)}/deviceclasses", mine)
    folder: Path = own_policies(tmp_path_factory.mktemp("p"), {"sec": BOUNDED, "deny": DENYING, "some": BY_LABEL})
    with serving(plane, policies=str(folder)) as running:
        install_webhooks(plane, running)
        header = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        plane.start_scheduler({**header, **QUICK, "profiles": [{"schedulerName": PLAIN}]}, PLAIN)
        start_scheduler(plane, running, change=ASKED_ABOUT_CLAIMS)
        yield running


def dry_run(tenant: Tenant, claim: str) -> bool:
    """Tell whether a pod with a claim would be accepted."""
    entry = {"name": "c0", "resourceClaimName": claim}
    spec = {"resourceClaims": [entry], "containers": [{"name": "main", "image": "x"}]}
    return tenant.send("POST", f"{tenant.pods}?dryRun=All", {"metadata": {"name": "try"}, "spec": spec})


def devices_of(plane: ControlPlane, namespace: str, pod: Object) -> list[str]:
    """Name the makes of the devices of a pod's claims."""
    status = pod.get("status") or {}
    names = [entry.get("resourceClaimName") for entry in pod["spec"].get("resourceClaims") or ()]
    names += [entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    path = f"{dra_path(plane)}/namespaces/{namespace}/resourceclaims"
    claims = {claim["metadata"]["name"]: claim for claim in plane.api.items(path)}
    held = [claims[name] for name in names if name in claims]
    results = [
        one for claim in held for one in claim["status"].get("allocation", {}).get("devices", {}).get("results", ())
    ]
    return [NODES[one["pool"]] for one in results]


STILL_SECONDS = 5
"""Seconds after which pods on which nothing changes have settled."""


class Settled:
    """Tells whether each pod of a namespace is bound or refused, or nothing changes, as where a claim is missing."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane, self._path = plane, f"/api/v1/namespaces/{namespace}/pods"
        self._seen: tuple[object, float] = (None, 0.0)

    def __call__(self) -> bool:
        pods = self._plane.api.items(self._path)
        decided = [bool(pod["spec"].get("nodeName") or refusal(pod)) for pod in pods]
        if decided != self._seen[0]:
            self._seen = decided, time.monotonic()
        return all(decided) or time.monotonic() > self._seen[1] + STILL_SECONDS


def is_denied(makes: list[str]) -> bool:
    return DENIED in makes or len(makes) > MOST


def try_ways(plane: ControlPlane, tenants: Mapping[str, Tenant]) -> tuple[list[str], list[str], list[str]]:
    """Try each way in each namespace: (pods that run with what is denied, allowed ones that do not run, answers)."""
    for tenant in tenants.values():
        for way in WAYS:
            for kind, (make, count) in TRIED.items():
                way(tenant, f"{way.__name__.replace('_', '-')}-{kind}", make, count)
    for tenant in tenants.values():
        eventually(f"pods of {tenant.namespace}", Settled(plane, tenant.namespace), 120)
    running, missing = [], []
    for scheduler, tenant in tenants.items():
        pods = {pod["metadata"]["name"]: pod for pod in plane.api.items(tenant.pods)}
        for name, pod in pods.items():
            makes = devices_of(plane, tenant.namespace, pod)
            if pod["spec"].get("nodeName") and is_denied(makes):
                running.append(f"{scheduler}: {name} has {dict(Counter(makes))}")
        for way in WAYS:
            name = f"{way.__name__.replace('_', '-')}-allowed"
            if not pods.get(name, {}).get("spec", {}).get("nodeName"):
                missing.append(f"{scheduler}: {name}: {refusal(pods[name])[:200] if name in pods else 'refused'}")
    return running, missing, [answer for tenant in tenants.values() for answer in tenant.answers]


@pytest.mark.usefixtures("service")
def test_no_way_of_a_tenant_leads_around_a_policy_and_each_allowed_one_is_open(plane: ControlPlane) -> None:
    """F166: 20 ways, with kube-scheduler alone and with our extender."""
    admin = {"resource.kubernetes.io__admin_access": "true"}
    tenants = {
        scheduler: Tenant(plane, create_namespace(plane, f"held-{scheduler[:5]}", held="bounded", **admin), scheduler)
        for scheduler in (PLAIN, OURS)
    }

    running, missing, answers = try_ways(plane, tenants)

    print(len(running), "denied that run", *running, len(missing), "allowed that do not", *missing, *answers, sep="\n")
    assert running == []
    assert missing == []


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("scheduler", [PLAIN, OURS])
def test_all_devices_of_a_node_are_those_that_the_policy_allows(plane: ControlPlane, scheduler: str) -> None:
    """F166: allocationMode All, under a policy without a bound on the number."""
    namespace = create_namespace(plane, f"all-{scheduler[:5]}", held="denying")
    tenant = Tenant(plane, namespace, scheduler)
    where = {make: next(node for node in reversed(NODES) if NODES[node] == make) for make in (DENIED, ALLOWED)}
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "allocationMode": "All"}}
    selectors = wanted(DENIED, 1)["selectors"]
    few = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "allocationMode": "All", "selectors": selectors}}
    for name, asked, node in (("denied", request, where[DENIED]), ("named", few, where[DENIED])):
        tenant.pod(name, name, template=True, nodeSelector={"kubernetes.io/hostname": node})
        tenant.claim(name, asked, template=True)
    eventually("both are refused", Settled(plane, namespace), 60)

    pods = plane.api.items(tenant.pods)

    assert [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")] == []


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("scheduler", [PLAIN, OURS])
def test_claim_made_before_the_policy_is_judged_with_the_pod(plane: ControlPlane, scheduler: str) -> None:
    """F166: the namespace comes under the policy when the claims are there already."""
    namespace = create_namespace(plane, f"before-{scheduler[:5]}")
    tenant = Tenant(plane, namespace, scheduler)
    for kind, (make, count) in TRIED.items():
        assert tenant.claim(kind, gpus(make, count))
        assert tenant.claim(kind, gpus(make, count), template=True)
    plane.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"held": "bounded"}}})
    eventually("the policy is in force", lambda: not dry_run(tenant, "number"), 30)

    accepted = {(kind, by): tenant.pod(f"{kind}-{by}", kind, template=by == "template")
                for kind in TRIED for by in ("name", "template")}  # fmt: skip
    eventually("they are bound", Settled(plane, namespace), 60)

    assert {kind for (kind, _), open_ in accepted.items() if open_} == {"allowed"}
    assert all(pod["spec"].get("nodeName") for pod in plane.api.items(tenant.pods))


@pytest.mark.usefixtures("service")
def test_policy_that_selects_pods_by_labels_is_seen_to_by_their_review(plane: ControlPlane) -> None:
    """F166: their claims must be known first; a template that is replaced in between is filter's to catch."""
    tenant = Tenant(plane, create_namespace(plane, "some", held="some"), PLAIN)
    for kind, (make, count) in TRIED.items():
        for way in (template_first, pod_before_template, claim_by_name, pod_before_claim, several_claims):
            way(tenant, f"{way.__name__.replace('_', '-')}-{kind}", make, count)
    eventually("pods are bound", Settled(plane, tenant.namespace), 60)

    bound = [pod["metadata"]["name"] for pod in plane.api.items(tenant.pods) if pod["spec"].get("nodeName")]

    assert sorted(bound) == ["claim-by-name-allowed", "several-claims-allowed", "template-first-allowed"]
