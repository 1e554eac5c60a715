# SPDX-License-Identifier: Apache-2.0
"""The NetworkPolicy, judged as Kubernetes judges it: every pod of ours, the ports that are called, and nothing else.

The test evaluates the rules itself; no network that enforces them is tried.
"""

import os
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import DEPLOY, OVERLAYS, Object, helmed, kustomized
from tests.deploy.test_hardening import DEPLOYMENTS, containers, deployment

FILE = DEPLOY / "components" / "network-policy" / "networkpolicy.yaml"
NAME = "kubernetes.io/metadata.name"
"""The label that every namespace carries (Kubernetes 1.21 and newer)."""


def policies() -> list[Object]:
    return list(yaml.safe_load_all(FILE.read_text("utf-8")))


def policies_of(folder: str) -> list[Object]:
    """List the policies that select the pods of a Deployment."""
    labels = deployment(folder)["spec"]["template"]["metadata"]["labels"]
    return [policy for policy in policies() if selects(policy["spec"]["podSelector"], labels)]


def allows(direction: str, port: int, namespace: str, protocol: str = "TCP", folder: str = "base") -> bool:
    """Tell whether a connection with a pod of a namespace is allowed (networking.k8s.io/v1: rules are a union)."""
    peer = "from" if direction == "ingress" else "to"
    return any(
        any(port_rule["port"] == port and port_rule["protocol"] == protocol for port_rule in rule["ports"])
        and (
            peer not in rule
            or any(selects(allowed_peer["namespaceSelector"], {NAME: namespace}) for allowed_peer in rule[peer])
        )
        for policy in policies_of(folder)
        for rule in policy["spec"].get(direction, ())
    )


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Match labels as a LabelSelector of matchLabels does."""
    assert set(selector) == {"matchLabels"}
    return set(selector["matchLabels"].items()) <= set(labels.items())


def ports(direction: str) -> set[int]:
    """List the ports that the rules name."""
    return {port["port"] for rule in rules(direction) for port in rule["ports"]}


def rules(direction: str) -> list[Object]:
    """List the rules of all policies."""
    return [rule for policy in policies() for rule in policy["spec"].get(direction, ())]


def container_ports() -> set[int]:
    """List what the pods of all Deployments listen on."""
    all_containers: Any = chain.from_iterable(containers(folder) for folder in DEPLOYMENTS)
    return {port["containerPort"] for container in all_containers for port in container.get("ports", ())}


@pytest.mark.parametrize("folder", DEPLOYMENTS)
def test_policy_is_for_every_pod_of_ours(folder: str) -> None:
    """F105, NET-01."""
    selecting = policies_of(folder)

    assert {direction for policy in selecting for direction in policy["spec"]["policyTypes"]} == {"Ingress", "Egress"}
    assert {policy["metadata"]["namespace"] for policy in policies()} == {deployment(folder)["metadata"]["namespace"]}


def test_every_port_that_is_let_in_is_listened_on_and_no_other() -> None:
    """F105, NET-01: a rule without ports would allow every port."""
    assert all(rule.get("ports") for rule in rules("ingress"))
    assert ports("ingress") == container_ports() == {8443, 8080, 10259}


@pytest.mark.parametrize(
    ("port", "namespace", "allowed"),
    [
        (8443, "anywhere", True),
        (8080, "monitoring", True),
        (10259, "monitoring", True),
        (8080, "team-a", False),
        (10259, "team-a", False),
        (8081, "monitoring", False),
    ],
)
def test_webhook_port_is_for_the_api_server_and_metrics_for_monitoring(
    port: int, namespace: str, allowed: bool
) -> None:
    """F105, NET-01: the API server is no pod of a namespace, so its port is open to all and protected by TLS."""
    assert allows("ingress", port, namespace) is allowed


@pytest.mark.parametrize(
    ("port", "protocol", "namespace", "allowed"),
    [
        (443, "TCP", "anywhere", True),
        (6443, "TCP", "anywhere", True),
        (53, "UDP", "kube-system", True),
        (53, "TCP", "kube-system", True),
        (53, "UDP", "team-a", False),
        (80, "TCP", "anywhere", False),
        (9090, "TCP", "monitoring", False),
        (9400, "TCP", "gpu-operator", False),
        (4318, "TCP", "monitoring", False),
    ],
)
def test_we_may_call_the_api_server_and_dns_alone(port: int, protocol: str, namespace: str, allowed: bool) -> None:
    """F105, NET-01: who uses Prometheus, exporters or a trace collector adds a rule for them."""
    assert allows("egress", port, namespace, protocol) is allowed


def test_nothing_else_is_open() -> None:
    """F105: every rule has ports, and every peer is a namespace."""
    every = rules("egress") + rules("ingress")

    assert all(rule.get("ports") for rule in every)
    assert ports("egress") == {443, 6443, 53}
    assert all(
        set(peer) == {"namespaceSelector"} for rule in every for peer in rule.get("from") or rule.get("to") or ()
    )


def test_ports_that_flags_want_are_named_where_they_are_to_be_added() -> None:
    """F105: the flags are `--prometheus`, `--dcgm-exporters` and `--tracing`."""
    egress = FILE.read_text("utf-8").partition("\n---\n")[0]
    last = [line for line in egress.splitlines() if line.strip().startswith("#")][-1]

    assert all(word in last for word in ("--prometheus", "--dcgm-exporters", "--tracing", "9090", "9400", "4318"))


@pytest.mark.parametrize("folder", DEPLOYMENTS)
def test_only_the_webhooks_replicas_let_anybody_in_to_the_webhook(folder: str) -> None:
    """F105: the extender listens on loopback, and the certificate controller serves nobody."""
    assert allows("ingress", 8443, "anywhere", folder=folder) is (folder == "base")
    assert not allows("ingress", 8080, "team-a", folder=folder)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_policies_are_part_of_production(overlay: str) -> None:
    """F105: the development overlay does not have them."""
    network_policies = [document for document in kustomized(overlay) if document["kind"] == "NetworkPolicy"]

    assert [policy["spec"] for policy in network_policies] == (
        [policy["spec"] for policy in policies()] if overlay.startswith("production") else []
    )


def test_patch_of_the_readme_lets_in_the_control_plane_alone(tmp_path: Path) -> None:
    """F105: the README's patch is applied by kustomize; the rule for metrics stays."""
    blocks = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "README.md").read_text("utf-8"), re.DOTALL)
    (text,) = [block for block in blocks if "gpu-usher-webhook" in block]
    production = os.path.relpath(DEPLOY / "overlays" / "production", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(text.replace("deploy/overlays/production", production), "utf-8")

    by_name = {(document["kind"], document["metadata"]["name"]): document for document in kustomized(tmp_path)}

    assert by_name["NetworkPolicy", "gpu-usher-webhook"]["spec"]["ingress"] == [
        {"ports": [{"port": 8443, "protocol": "TCP"}], "from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]}
    ]
    assert by_name["NetworkPolicy", "gpu-usher"]["spec"] == policies()[0]["spec"]


def test_chart_gives_the_same_policies_where_asked_to() -> None:
    """F105, F113: they are off by default."""
    enabled = [
        document for document in helmed("--set=networkPolicy.enabled=true") if document["kind"] == "NetworkPolicy"
    ]
    default = [document for document in helmed() if document["kind"] == "NetworkPolicy"]

    assert [policy["spec"] for policy in enabled] == [policy["spec"] for policy in policies()]
    assert default == []


def test_values_of_the_chart_fit_the_policies_to_a_cluster() -> None:
    """F105, F115: the values are the namespace of Prometheus and the addresses of the API server."""
    values = "networkPolicy.enabled=true,networkPolicy.monitoringNamespace=observability"
    ingress_rules = [
        document["spec"]["ingress"]
        for document in helmed(f"--set={values}", "--set=networkPolicy.controlPlane={10.0.0.0/28,2001:db8::/64}")
        if document["kind"] == "NetworkPolicy"
    ]

    (metrics,), (webhook,) = ingress_rules
    assert metrics["from"] == [{"namespaceSelector": {"matchLabels": {NAME: "observability"}}}]
    assert webhook["from"] == [{"ipBlock": {"cidr": "10.0.0.0/28"}}, {"ipBlock": {"cidr": "2001:db8::/64"}}]
