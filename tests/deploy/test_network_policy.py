# SPDX-License-Identifier: Apache-2.0
"""The NetworkPolicy, judged as Kubernetes judges it: every pod of ours, the ports that are called, and nothing else.

How far that goes: the rules' words are evaluated here; no network that enforces them is asked.
"""

from itertools import chain
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import DEPLOY, Object, helmed
from tests.deploy.test_hardening import DEPLOYMENTS, containers, deployment

FILE = DEPLOY / "components" / "network-policy" / "networkpolicy.yaml"
NAME = "kubernetes.io/metadata.name"
"""The label that every namespace carries (Kubernetes 1.21 and newer)."""


def policy() -> Object:
    found: Object = yaml.safe_load(FILE.read_text("utf-8"))
    return found


def allows(direction: str, port: int, namespace: str, protocol: str = "TCP") -> bool:
    """Tell whether a connection with a pod of a namespace is allowed (networking.k8s.io/v1: rules are a union)."""
    peer = "from" if direction == "ingress" else "to"
    return any(
        any(each["port"] == port and each["protocol"] == protocol for each in rule["ports"])
        and (peer not in rule or any(selects(each["namespaceSelector"], {NAME: namespace}) for each in rule[peer]))
        for rule in policy()["spec"][direction]
    )


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Match labels as a LabelSelector of matchLabels does."""
    assert set(selector) == {"matchLabels"}
    return set(selector["matchLabels"].items()) <= set(labels.items())


def ports(direction: str) -> set[int]:
    """List the ports that the rules name."""
    return {each["port"] for rule in policy()["spec"][direction] for each in rule["ports"]}


def container_ports() -> set[int]:
    """List what the pods of all Deployments listen on."""
    found: Any = chain.from_iterable(containers(folder) for folder in DEPLOYMENTS)
    return {port["containerPort"] for each in found for port in each.get("ports", ())}


@pytest.mark.parametrize("folder", DEPLOYMENTS)
def test_policy_is_for_every_pod_of_ours(folder: str) -> None:
    """F105, NET-01."""
    template = deployment(folder)["spec"]["template"]["metadata"]

    assert selects(policy()["spec"]["podSelector"], template["labels"])
    assert policy()["metadata"]["namespace"] == deployment(folder)["metadata"]["namespace"]
    assert policy()["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_every_port_that_is_let_in_is_listened_on_and_no_other() -> None:
    """F105, NET-01: a rule without ports would let all of them in."""
    assert all(rule.get("ports") for rule in policy()["spec"]["ingress"])
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
    """F105, NET-01: the API server is no pod and has no namespace, so its port is for all; TLS guards it."""
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
    """F105, NET-01: Prometheus, exporters and a collector of traces are for who switches them on to add."""
    assert allows("egress", port, namespace, protocol) is allowed


def test_nothing_else_is_open() -> None:
    """F105: no rule without ports, no peer but a namespace."""
    rules = policy()["spec"]["egress"] + policy()["spec"]["ingress"]

    assert all(rule.get("ports") for rule in rules)
    assert ports("egress") == {443, 6443, 53}
    assert all(set(peer) == {"namespaceSelector"} for rule in rules for peer in rule.get("from", rule.get("to", ())))


def test_ports_that_flags_want_are_named_where_they_are_to_be_added() -> None:
    """F105: of `--prometheus`, `--dcgm-exporters` and `--tracing`."""
    last = [line for line in FILE.read_text("utf-8").splitlines() if line.strip().startswith("#")][-1]

    assert all(each in last for each in ("--prometheus", "--dcgm-exporters", "--tracing", "9090", "9400", "4318"))


def test_chart_gives_the_same_policy_where_asked_to() -> None:
    """F105, F113: off unless asked."""
    asked = [each for each in helmed("--set=networkPolicy.enabled=true") if each["kind"] == "NetworkPolicy"]
    unasked = [each for each in helmed() if each["kind"] == "NetworkPolicy"]

    assert [each["spec"] for each in asked] == [policy()["spec"]]
    assert unasked == []
