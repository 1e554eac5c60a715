# SPDX-License-Identifier: Apache-2.0
"""What the API server sends of pods that a kubelet or an operator placed, and of resizes of running pods (F21, F22)."""

import json
from collections.abc import Iterator

import pytest

from tests.builders import policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import Service, create_namespace, install_webhooks, own_policies, plain_pod, read_pod, serving

GUARDS = "priority: 9, admission: {visibleDevices: Deny, privileged: Deny, bypass: Deny, perGPU: {maxCPU: '4'}}"
GPU = "nvidia.com/gpu"
OPERATOR, BINDER = "nvidia-operator-validator", "kai-binder"
RIGHTS = {
    OPERATOR: {"apiGroups": ["nvidia.com"], "resources": ["clusterpolicies/finalizers"], "verbs": ["update"]},
    BINDER: {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
}
"""NVIDIA/gpu-operator assets/state-operator-validation/0210_clusterrole.yaml, and what a binder of pods needs."""
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with every guard enforced."""
    folder = own_policies(tmp_path_factory.mktemp("guards"), {"guards": policy("guards", GUARDS)})
    with serving(plane, policies=str(folder)) as running:
        install_webhooks(plane, running)
        yield running


@pytest.fixture(scope="module")
def nvidia(plane: ControlPlane, service: Service) -> str:
    """A namespace that is not exempt, with accounts of an operator, a binder and a tenant."""
    assert service.ready()
    name = create_namespace(plane, "nvidia")
    author = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    plane.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": "author"}, "rules": [author]})
    kubelets = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:nodes"}
    bind_role(plane, f"{RBAC}/namespaces/{name}/rolebindings", "author", kubelets)
    for account in (OPERATOR, BINDER, "tenant"):
        subject = {"kind": "ServiceAccount", "name": account, "namespace": name}
        plane.api.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": account}})
        bind_role(plane, f"{RBAC}/namespaces/{name}/rolebindings", "author", subject)
        if account in RIGHTS:
            role = {"metadata": {"name": account}, "rules": [RIGHTS[account]]}
            plane.api.create(f"{RBAC}/clusterroles", role)
            bind_role(plane, f"{RBAC}/clusterrolebindings", account, subject)
    return name


def bind_role(plane: ControlPlane, path: str, role: str, subject: Object) -> None:
    """Bind a ClusterRole to an account, in a namespace or everywhere."""
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    metadata = {"name": f"{role}-{subject['name'].replace(':', '-')}"}
    plane.api.create(path, {"metadata": metadata, "roleRef": reference, "subjects": [subject]})


def validator(namespace: str, app: str, **container: object) -> Object:
    """Write a pod as an operator writes its own, on a node that it chose."""
    main = {"name": "main", "image": "x:1", **container}
    metadata = {"generateName": f"{app}-", "namespace": namespace, "labels": {"app": app}}
    spec = {"nodeName": "node-a", "automountServiceAccountToken": False, "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def create_as(plane: ControlPlane, user: str, pod: Object, *words: str) -> KubectlResult:
    """Create a pod by a dry run, as this user would."""
    return plane.kubectl(
        "create", "-f", "-", "--dry-run=server", "-o", "json", f"--as={user}", *words, stdin=json.dumps(pod)
    )


GPU_LIMIT = {"resources": {"limits": {GPU: 1}}}
ALL_DEVICES = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], "securityContext": {"privileged": True}}
CASES = [
    pytest.param("nvidia-device-plugin-validator", GPU_LIMIT, OPERATOR, id="plugin validator"),
    pytest.param("nvidia-cuda-validator", ALL_DEVICES, OPERATOR, id="CUDA validator"),
    pytest.param("kai-resource-reservation", GPU_LIMIT, BINDER, id="reservation of KAI"),
]


@pytest.mark.parametrize(("app", "container", "account"), CASES)
def test_operators_own_pod_is_left_alone_and_a_tenants_copy_is_refused(
    plane: ControlPlane, nvidia: str, app: str, container: Object, account: str
) -> None:
    """F21: the label is in both; the right that tells them apart is in no role of a tenant."""
    pod = validator(nvidia, app, **container)

    own, copy = (create_as(plane, f"system:serviceaccount:{nvidia}:{who}", pod) for who in (account, "tenant"))

    assert (own.code, own.warnings, "affinity" in own.out) == (0, [], False), own.err
    assert (copy.code, "denied the request: gpu-usher" in copy.err) == (1, True), copy.err


def test_annotation_of_a_mirror_pod_counts_only_where_a_kubelet_writes_it(plane: ControlPlane, nvidia: str) -> None:
    """F22."""
    plane.api.create("/api/v1/nodes", {"metadata": {"name": "node-a"}})
    uid = plane.api.get("/api/v1/nodes/node-a")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid, "controller": True}
    pod = validator(nvidia, "edge", **GPU_LIMIT)
    pod["metadata"] |= {"annotations": {"kubernetes.io/config.mirror": "0123"}, "ownerReferences": [owner]}

    kubelet = create_as(plane, "system:node:node-a", pod, "--as-group=system:nodes")
    tenant = create_as(plane, f"system:serviceaccount:{nvidia}:tenant", pod)

    assert (kubelet.code, "affinity" in kubelet.out) == (0, False), kubelet.err
    assert (tenant.code, "spec.nodeName is set" in tenant.err) == (1, True), tenant.err


@pytest.mark.parametrize(("cpu", "allowed"), [("4", True), ("5", False), ("64", False)])
def test_resize_beyond_the_policy_is_refused(plane: ControlPlane, nvidia: str, cpu: str, allowed: bool) -> None:
    """kubectl patch --subresource resize from one CPU, under a policy of at most four for each GPU."""
    pod = plain_pod(nvidia, {GPU: 1, "cpu": "1"}, f"resized-{cpu}")
    assert plane.kubectl.create(pod).code == 0
    patch = f'{{"spec": {{"containers": [{{"name": "main", "resources": {{"requests": {{"cpu": "{cpu}"}}, ' + (
        f'"limits": {{"cpu": "{cpu}"}}}}}}]}}}}'
    )

    name = pod["metadata"]["name"]
    answer = plane.kubectl("patch", "pod", name, "-n", nvidia, "--subresource", "resize", "--patch", patch)

    assert (answer.code == 0) is allowed, answer.err
    assert ("requests more cpu than 4 for each of 1 GPU" in answer.err) is not allowed
    requests = read_pod(plane, pod)["spec"]["containers"][0]["resources"]["requests"]
    assert requests["cpu"] == (cpu if allowed else "1")
