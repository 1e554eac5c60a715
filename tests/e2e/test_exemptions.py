# SPDX-License-Identifier: Apache-2.0
"""Who may exempt a namespace, on a real kube-apiserver: a tenant who may create and label namespaces may not (F21)."""

import json

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import DEPLOY, eventually

TENANT = ("--as", "tenant", "--as-group", "system:authenticated")
EXEMPTER = ("--as", "exempter", "--as-group", "system:authenticated")
IGNORE = "gpu-usher.io/ignore"
RESERVED = "wants the right to create exemptions.gpu-usher.io"
NAMESPACES = {
    "apiGroups": [""],
    "resources": ["namespaces", "namespaces/status", "namespaces/finalize"],
    "verbs": ["*"],
}
EXEMPTIONS = {"apiGroups": ["gpu-usher.io"], "resources": ["exemptions"], "verbs": ["create"]}


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> ControlPlane:
    """A cluster with the policy of deploy/ and two users who may write namespaces, one of whom may also exempt them."""
    for user, rules in (("tenant", [NAMESPACES]), ("exempter", [NAMESPACES, EXEMPTIONS])):
        role: Object = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}}
        bound = {
            **role,
            "kind": "ClusterRoleBinding",
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "ClusterRole", "name": user, "apiGroup": "rbac.authorization.k8s.io"},
        }
        result = plane.kubectl.create({**role, "rules": rules}, bound)
        assert result.code == 0, result.err
    result = plane.kubectl("apply", "-f", str(DEPLOY / "base" / "exemptions.yaml"))
    assert (result.code, result.warnings) == (0, []), result.err
    create = ("create", "namespace", "gpu-operator", "--dry-run=server", *TENANT)
    eventually("the policy is in force", lambda: plane.kubectl(*create).code != 0)
    return plane


@pytest.fixture(scope="module")
def tenant_namespace(guarded: ControlPlane) -> str:
    """A namespace that the tenant created."""
    result = guarded.kubectl("create", "namespace", "mine", *TENANT)
    assert result.code == 0, result.err
    return "mine"


def labelled(name: str, value: str = "true") -> Object:
    metadata = {"name": name, "labels": {IGNORE: value}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def create(plane: ControlPlane, item: Object, *flags: str) -> KubectlResult:
    return plane.kubectl("create", "-f", "-", "--dry-run=server", *flags, stdin=json.dumps(item))


@pytest.mark.parametrize(
    "name", ["gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin", "nvidia-dra-driver-gpu", "gpu-usher"]
)
def test_tenant_cannot_make_a_namespace_of_an_exempt_name(guarded: ControlPlane, name: str) -> None:
    """F21."""
    result = guarded.kubectl("create", "namespace", name, "--dry-run=server", *TENANT)

    assert (result.code, RESERVED in result.err) == (1, True), result.err
    assert guarded.kubectl("create", "namespace", name, "--dry-run=server").code == 0


def test_tenant_cannot_put_the_label(guarded: ControlPlane, tenant_namespace: str) -> None:
    """F21: neither when it creates the namespace, nor afterwards, nor through a subresource."""
    patch = json.dumps({"metadata": {"labels": {IGNORE: "true"}}})
    path = f"/api/v1/namespaces/{tenant_namespace}/finalize"
    tries = [
        create(guarded, labelled("other"), *TENANT),
        guarded.kubectl("label", "namespace", tenant_namespace, f"{IGNORE}=true", *TENANT),
        guarded.kubectl("label", "namespace", tenant_namespace, "gpu-usher.io/infrastructure=true", *TENANT),
        guarded.kubectl("patch", "namespace", tenant_namespace, "--subresource=status", "-p", patch, *TENANT),
        guarded.kubectl("replace", "--raw", path, "-f", "-", *TENANT, stdin=json.dumps(labelled(tenant_namespace))),
    ]

    assert [(result.code, RESERVED in result.err) for result in tries] == [(1, True)] * 5
    assert IGNORE not in guarded.api.client.get(f"/api/v1/namespaces/{tenant_namespace}").json()["metadata"].get(
        "labels", {}
    )


def test_who_has_the_right_exempts_and_the_exempt_stays_editable(guarded: ControlPlane) -> None:
    """F21: an edit by another user may leave a label as it is."""
    assert create(guarded, labelled("kept"), *EXEMPTER).code == 0
    assert guarded.kubectl("create", "-f", "-", stdin=json.dumps(labelled("kept"))).code == 0

    assert guarded.kubectl("label", "namespace", "kept", "team=a", *TENANT).code == 0
    assert guarded.kubectl("label", "namespace", "kept", f"{IGNORE}-", *TENANT).code == 0
    assert guarded.kubectl("label", "namespace", "kept", f"{IGNORE}=true", *TENANT).code == 1
    assert guarded.kubectl("delete", "namespace", "kept", "--wait=false", *TENANT).code == 0
