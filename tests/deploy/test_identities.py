# SPDX-License-Identifier: Apache-2.0
"""The token that each container has, in every pod that kustomize and helm render."""

from typing import Any

import pytest

from tests.deploy.identities import PAGE, page
from tests.deploy.rendering import DEPLOY, OVERLAYS, Object, helmed, kustomized

ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder in which a client looks for its account (client-go rest.InClusterConfig)."""
WRITING = {"system:kube-scheduler", "system:volume-scheduler"}
"""Cluster roles that may bind, evict or delete other people's pods."""
RENDERED = pytest.mark.parametrize("tool", ["kustomize", "helm"])


def rendered(tool: str, overlay: str) -> list[Object]:
    if tool == "kustomize":
        return kustomized(overlay)
    return helmed("--values", str(DEPLOY / "chart" / f"values-{overlay}.yaml"))


def pods(objects: list[Object]) -> dict[str, Object]:
    """Return the pod spec of each Deployment."""
    return {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]
        for document in objects
        if document["kind"] == "Deployment"
    }


def writers(objects: list[Object]) -> set[str]:
    """List the accounts that have the rights of kube-scheduler."""
    bindings = [
        binding
        for binding in objects
        if binding["kind"] == "ClusterRoleBinding" and binding["roleRef"]["name"] in WRITING
    ]
    return {subject["name"] for binding in bindings for subject in binding["subjects"]}


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
    """Return the volume of each mount path."""
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


@RENDERED
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_container_but_kube_scheduler_has_a_token_that_may_bind_pods(tool: str, overlay: str) -> None:
    """F104: neither mounted into all containers of a pod, nor projected, nor in a Secret of that account."""
    objects = rendered(tool, overlay)
    accounts = writers(objects)
    secrets = [
        document["metadata"] for document in objects if document.get("type") == "kubernetes.io/service-account-token"
    ]

    assert not accounts & {metadata["annotations"]["kubernetes.io/service-account.name"] for metadata in secrets}
    for name, pod in pods(objects).items():
        if pod["serviceAccountName"] not in accounts:
            continue
        holders = {
            container["name"] for container in containers(pod) if token_volumes(pod) & set(mounts(container).values())
        }
        assert pod["automountServiceAccountToken"] is False, name
        assert not pod.get("shareProcessNamespace"), name
        assert holders == {"kube-scheduler"}, name


@RENDERED
def test_each_container_of_the_scheduler_finds_its_own_account_at_the_usual_place(tool: str) -> None:
    """F117: neither container needs a kubeconfig."""
    objects = rendered(tool, "production")
    pod = pods(objects)["gpu-usher-scheduler"]
    accounts = {container["name"]: mounts(container)[ACCOUNT_PATH] for container in containers(pod)}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    secret = volumes[accounts["extender"]]["secret"]["secretName"]
    secrets = [document for document in objects if document["kind"] == "Secret"]
    (account_secret,) = [document for document in secrets if document["metadata"]["name"] == secret]

    assert accounts == {"extender": "extender-account", "kube-scheduler": "scheduler-account"}
    assert account_secret["metadata"]["annotations"] == {"kubernetes.io/service-account.name": "gpu-usher-extender"}
    assert account_secret["type"] == "kubernetes.io/service-account-token"
    assert [list(source) for source in volumes[accounts["kube-scheduler"]]["projected"]["sources"]] == [
        ["serviceAccountToken"],
        ["configMap"],
        ["downwardAPI"],
    ]


@RENDERED
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_accounts_give_no_token_by_themselves(tool: str, overlay: str) -> None:
    """RBAC-06: a pod that uses the account by mistake has no token."""
    accounts = [document for document in rendered(tool, overlay) if document["kind"] == "ServiceAccount"]

    assert accounts
    assert {account["automountServiceAccountToken"] for account in accounts} == {False}


def test_tables_of_security_md_are_those_of_the_rendered_rights() -> None:
    """F104: `make generated` writes them."""
    assert page() == PAGE.read_text("utf-8")


@RENDERED
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_service_leads_to_a_pod_that_writes(tool: str, overlay: str) -> None:
    """F104, F139: what parses tenants' pods for the API server and the scheduler has no right to write."""
    objects = rendered(tool, overlay)
    serving = {"gpu-usher", "gpu-usher-extender"}
    selectors = [document["spec"]["selector"] for document in objects if document["kind"] == "Service"]
    writing_verbs = {
        subject["name"]: verbs
        for binding in objects
        for subject in binding.get("subjects", ())
        if (verbs := _writing_verbs(objects, binding))
    }

    assert selectors
    for document in objects:
        if document["kind"] == "Deployment":
            template = document["spec"]["template"]
            account = template["spec"]["serviceAccountName"]
            reached = any(selector.items() <= template["metadata"]["labels"].items() for selector in selectors)
            assert not reached or account not in writing_verbs, (document["metadata"]["name"], writing_verbs[account])
            events = [
                container
                for container in containers(template["spec"])
                if {"name": "GPU_USHER_EVENTS", "value": "true"} in container.get("env", ())
            ]
            assert bool(events) is (account == "gpu-usher-controller")
    assert not serving & writing_verbs.keys()


def _writing_verbs(objects: list[Object], binding: Object) -> set[str]:
    """List the verbs of a bound role of ours that write."""
    role = binding["roleRef"]["name"]
    rules = [
        rule
        for document in objects
        if document["kind"] in ("Role", "ClusterRole") and document["metadata"]["name"] == role
        for rule in document["rules"]
    ]
    return {verb for rule in rules for verb in rule["verbs"]} - {"get", "list", "watch"}
