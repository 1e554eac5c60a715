# SPDX-License-Identifier: Apache-2.0
"""Which container has which token, in every pod that kustomize and helm render."""

from typing import Any

import pytest

from tests.deploy.rendering import DEPLOY, OVERLAYS, Object, helmed, kustomized

ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a client looks for its account (client-go rest.InClusterConfig)."""
WRITING = {"system:kube-scheduler", "system:volume-scheduler"}
"""Cluster roles that may bind, evict or delete other people's pods."""
RENDERED = pytest.mark.parametrize("tool", ["kustomize", "helm"])


def rendered(tool: str, overlay: str) -> list[Object]:
    if tool == "kustomize":
        return kustomized(overlay)
    return helmed("--values", str(DEPLOY / "chart" / f"values-{overlay}.yaml"))


def pods(objects: list[Object]) -> dict[str, Object]:
    """Give the pod of each Deployment."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"
    }


def writers(objects: list[Object]) -> set[str]:
    """List the accounts that may do what kube-scheduler may."""
    bindings = [each for each in objects if each["kind"] == "ClusterRoleBinding" and each["roleRef"]["name"] in WRITING]
    return {subject["name"] for each in bindings for subject in each["subjects"]}


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def token_volumes(pod: Object) -> set[str]:
    """List the volumes that hold a token of the pod's own account."""
    return {
        volume["name"]
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    }


def mounts(container: Object) -> dict[str, Any]:
    """Give the volume of each path."""
    return {each["mountPath"]: each["name"] for each in container["volumeMounts"]}


@RENDERED
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_container_but_kube_scheduler_has_a_token_that_may_bind_pods(tool: str, overlay: str) -> None:
    """F104: neither mounted into all containers of a pod, nor projected, nor in a Secret of that account."""
    objects = rendered(tool, overlay)
    accounts = writers(objects)
    secrets = [each["metadata"] for each in objects if each.get("type") == "kubernetes.io/service-account-token"]

    assert not accounts & {each["annotations"]["kubernetes.io/service-account.name"] for each in secrets}
    for name, pod in pods(objects).items():
        if pod["serviceAccountName"] not in accounts:
            continue
        holders = {each["name"] for each in containers(pod) if token_volumes(pod) & set(mounts(each).values())}
        assert pod["automountServiceAccountToken"] is False, name
        assert not pod.get("shareProcessNamespace"), name
        assert holders == {"kube-scheduler"}, name


@RENDERED
def test_each_container_of_the_scheduler_finds_its_own_account_at_the_usual_place(tool: str) -> None:
    """F117: neither needs a kubeconfig."""
    objects = rendered(tool, "production")
    pod = pods(objects)["gpu-usher-scheduler"]
    found = {each["name"]: mounts(each)[ACCOUNT_PATH] for each in containers(pod)}
    volumes = {each["name"]: each for each in pod["volumes"]}
    secret = volumes[found["extender"]]["secret"]["secretName"]
    (kept,) = [each for each in objects if each["kind"] == "Secret" and each["metadata"]["name"] == secret]

    assert found == {"extender": "extender-account", "kube-scheduler": "scheduler-account"}
    assert kept["metadata"]["annotations"] == {"kubernetes.io/service-account.name": "gpu-usher-extender"}
    assert kept["type"] == "kubernetes.io/service-account-token"
    assert [list(each) for each in volumes[found["kube-scheduler"]]["projected"]["sources"]] == [
        ["serviceAccountToken"],
        ["configMap"],
        ["downwardAPI"],
    ]


@RENDERED
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_accounts_give_no_token_by_themselves(tool: str, overlay: str) -> None:
    """RBAC-06: a pod that borrows one by mistake has none."""
    accounts = [each for each in rendered(tool, overlay) if each["kind"] == "ServiceAccount"]

    assert accounts
    assert {each["automountServiceAccountToken"] for each in accounts} == {False}
