# SPDX-License-Identifier: Apache-2.0
"""Ways of a tenant with the role `edit` to GPUs by claims, around a policy that denies a product and bounds the number.

Each way is tried with a denied product, with too many GPUs, and with what is allowed (test_claim_policies.py).
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.e2e.offers import GROUP, dra_version, served_versions
from tests.e2e.settling import QUICK
from tests.e2e.stage import OURS, create_namespace, eventually, refusal

PLAIN = "plain-scheduler"
PLAIN_CONFIGURATION: Object = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    **QUICK,
    "profiles": [{"schedulerName": PLAIN}],
}
"""kube-scheduler without our extender."""
CLASS = "gpu.nvidia.com"
OWN_CLASS: Object = {
    "metadata": {"name": "mine"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{CLASS}'"}}]},
}
"""A DeviceClass of the administrator's, beside those of the driver."""
DENIED, ALLOWED = "h100", "a100"
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
ADMIN_ACCESS = {"resource.kubernetes.io__admin_access": "true"}
"""The label of a namespace whose claims may have adminAccess, as create_namespace takes it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes of a cluster with a make of GPU each."""

    nodes: Mapping[str, str]

    def place(self, make: str) -> Mapping[str, Any]:
        """Select the first of the nodes with GPUs of a make."""
        return {"kubernetes.io/hostname": next(node for node, made in self.nodes.items() if made == make)}


EDIT = ("system:aggregate-to-edit", "system:aggregate-to-view")
"""What the role `edit` has, which a controller puts together that does not run here."""


class Tenant:
    """A service account with the role `edit` in one namespace, whose pods name one scheduler."""

    def __init__(self, plane: ControlPlane, namespace: str, scheduler: str, fleet: Fleet) -> None:
        self.plane, self.namespace, self.scheduler, self.fleet = plane, namespace, scheduler, fleet
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
        containers = [
            {"image": "x", **container}
            for container in spec.pop("containers", [{"name": "main", "resources": resources}])
        ]
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
        {"name": f"m{number}", "resources": {"claims": [{"name": "c0", "request": f"r{number}"}]}}
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
    limits = {f"deviceclass.resource.kubernetes.io/{CLASS}": count}
    tenant.pod(name, limits=limits, nodeSelector=tenant.fleet.place(make))


def resource_of_a_plugin(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.pod(name, limits={"nvidia.com/gpu": count}, nodeSelector=tenant.fleet.place(make))


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
    tenant.pod(name, name, template=True, nodeSelector=tenant.fleet.place(make))


def any_gpu_on_a_node(tenant: Tenant, name: str, make: str, count: int) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "count": count}}
    tenant.claim(name, request, template=True)
    tenant.pod(name, name, template=True, nodeSelector=tenant.fleet.place(make))


def any_gpu_before_the_template(tenant: Tenant, name: str, make: str, count: int) -> None:
    tenant.pod(name, name, template=True, nodeSelector=tenant.fleet.place(make))
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


def devices_of(tenant: Tenant, pod: Object) -> list[str]:
    """Name the makes of the devices of a pod's claims."""
    status = pod.get("status") or {}
    names = [entry.get("resourceClaimName") for entry in pod["spec"].get("resourceClaims") or ()]
    names += [entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    claims = {claim["metadata"]["name"]: claim for claim in tenant.plane.api.items(tenant.path(template=False))}
    held = [claims[name] for name in names if name in claims]
    results = [
        one for claim in held for one in claim["status"].get("allocation", {}).get("devices", {}).get("results", ())
    ]
    return [tenant.fleet.nodes[one["pool"]] for one in results]


STILL_SECONDS = 5
"""Seconds after which pods on which nothing changes have settled."""


class Settled:
    """Tells whether each pod of a tenant is bound or refused, or nothing changes, as where a claim is missing."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._seen: tuple[object, float] = (None, 0.0)

    def __call__(self) -> bool:
        pods = self._tenant.plane.api.items(self._tenant.pods)
        decided = [bool(pod["spec"].get("nodeName") or refusal(pod)) for pod in pods]
        if decided != self._seen[0]:
            self._seen = decided, time.monotonic()
        return all(decided) or time.monotonic() > self._seen[1] + STILL_SECONDS


def tenants_of(plane: ControlPlane, fleet: Fleet) -> Mapping[str, Tenant]:
    """Make a tenant for each scheduler, without our extender and with it, in a namespace that the policy holds for."""
    return {
        name: Tenant(plane, create_namespace(plane, f"held-{name[:5]}", held="bounded", **ADMIN_ACCESS), name, fleet)
        for name in (PLAIN, OURS)
    }


def is_denied(makes: list[str]) -> bool:
    return DENIED in makes or len(makes) > MOST


def try_ways(tenants: Mapping[str, Tenant]) -> tuple[list[str], list[str], list[str]]:
    """Try all ways of each tenant: (pods that run with what is denied, allowed ones that do not run, answers)."""
    for tenant in tenants.values():
        for way in WAYS:
            for kind, (make, count) in TRIED.items():
                way(tenant, f"{way.__name__.replace('_', '-')}-{kind}", make, count)
    for tenant in tenants.values():
        eventually(f"pods of {tenant.namespace}", Settled(tenant), 120)
    running, missing = [], []
    for scheduler, tenant in tenants.items():
        pods = {pod["metadata"]["name"]: pod for pod in tenant.plane.api.items(tenant.pods)}
        for name, pod in pods.items():
            makes = devices_of(tenant, pod)
            if pod["spec"].get("nodeName") and is_denied(makes):
                running.append(f"{scheduler}: {name} has {dict(Counter(makes))}")
        for way in WAYS:
            name = f"{way.__name__.replace('_', '-')}-allowed"
            if name not in pods or not pods[name]["spec"].get("nodeName"):
                status = (refusal(pods[name]) or str(pods[name]["status"]))[:400] if name in pods else "refused"
                missing.append(f"{scheduler}: {name}: {status}")
    return running, missing, [answer for tenant in tenants.values() for answer in tenant.answers]
