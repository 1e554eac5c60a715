# SPDX-License-Identifier: Apache-2.0
"""A healthy cluster as the doctor reads it, and the changes that break one thing in it."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from app.doctor.cluster_checks import examine_cluster
from app.doctor.cluster_objects import Certificate, ExaminedCluster
from app.doctor.fleet_checks import FindingLevel
from app.nodes.model import Node
from tests.builders import node, pod, world_with

BASE = Path(__file__).parent.parent.parent / "deploy" / "base"
MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
GPU = "nvidia.com/gpu"
Object = dict[str, Any]
Break = Callable[[dict[str, list[Object]]], object]


def configurations() -> dict[str, list[Object]]:
    """Read the webhook configurations as installed, each webhook with a CA bundle."""
    configurations = [
        configuration
        for configuration in yaml.safe_load_all((BASE / "webhooks.yaml").read_text("utf-8"))
        if configuration
    ]
    for webhook in (webhook for configuration in configurations for webhook in configuration["webhooks"]):
        webhook["clientConfig"]["caBundle"] = "Q0E="
    return {configuration["kind"]: [configuration] for configuration in configurations}


def exemptions() -> dict[str, list[Object]]:
    """Read the policy about exempt namespaces, as installed."""
    return {
        document["kind"]: [document] for document in yaml.safe_load_all((BASE / "exemptions.yaml").read_text("utf-8"))
    }


def daemon(name: str, ready: int = 1) -> Object:
    return {
        "metadata": {"name": name, "namespace": "gpu-operator"},
        "status": {"desiredNumberScheduled": 1, "numberReady": ready},
    }


def deployment(name: str, available: int = 3, image: str = "gpu-usher:0.2.0", replicas: int = 3) -> Object:
    labels = {"app.kubernetes.io/name": "gpu-usher", "app.kubernetes.io/component": "admission"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": image}]}}
    return {
        "metadata": {"name": name, "namespace": "gpu-usher"},
        "spec": {"replicas": replicas, "template": template},
        "status": {"availableReplicas": available},
    }


def endpoint_slice(*ready: bool | None, ports: int = 1) -> Object:
    """Build the EndpointSlice of our Service with one endpoint for each value of its condition."""
    return {
        "metadata": {"name": "gpu-usher-x", "labels": {"kubernetes.io/service-name": "gpu-usher"}},
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": value}} for value in ready],
        "ports": [{"name": "https", "port": 8443}] * ports,
    }


def namespace(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}}


def rule(group: str, resources: list[str], *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}


RULES = (
    rule("", ["nodes", "pods", "namespaces"], "get", "list", "watch"),
    rule("", ["configmaps"], "get", "list", "watch"),
    rule("node.k8s.io", ["runtimeclasses"], "get", "list", "watch"),
    rule("", ["resourcequotas", "limitranges", "serviceaccounts"], "get", "list", "watch"),
    rule("scheduling.k8s.io", ["priorityclasses"], "get", "list", "watch"),
    rule("authorization.k8s.io", ["selfsubjectaccessreviews"], "create"),
)


@cache
def objects() -> dict[str, list[Object]]:
    """Return a healthy cluster's objects by kind, which are read once and must be copied."""
    return {
        **configurations(),
        "Namespace": [namespace("kube-system"), namespace("gpu-usher"), namespace("team-a")],
        "Pod": [pod()],
        **exemptions(),
        "RuntimeClass": [{"metadata": {"name": "nvidia"}}],
        "DaemonSet": [daemon("nvidia-device-plugin-daemonset"), daemon("gpu-feature-discovery")],
        "Deployment": [deployment("gpu-usher")],
        "Service": [yaml.safe_load((BASE / "service.yaml").read_text("utf-8"))],
        "EndpointSlice": [endpoint_slice(True, True, True)],
    }


def examined(*nodes: Node, **more: Any) -> ExaminedCluster:
    """Examine a snapshot of these nodes alone."""
    return ExaminedCluster(world_with(*nodes), **more)


def cluster(broken: Break = lambda _: None, **more: Any) -> ExaminedCluster:
    changed = copy.deepcopy(objects())
    broken(changed)
    nodes = more.pop("nodes", (node("gpu"), node("cpu", product=None, driver=None, offers={})))
    made = ExaminedCluster(
        world_with(*nodes, policies=more.pop("policies", None)),
        objects={kind: tuple(items) for kind, items in changed.items()},
        version="v1.36.3",
        ahead_seconds=0.4,
        certificates=(Certificate("Secret gpu-usher-tls", 0.5, "2026-01-08"),),
        rules=RULES,
    )
    return replace(made, **more)


def levels_by_check(examined: ExaminedCluster) -> dict[str, FindingLevel]:
    return {finding.check: finding.level for finding in examine_cluster(examined)}


def change_webhook(change: Object, kind: str = MUTATING, index: int = 0) -> Break:
    return lambda objects: objects[kind][0]["webhooks"][index].update(change)


def change_client_config(change: Object) -> Break:
    return lambda objects: objects[MUTATING][0]["webhooks"][0]["clientConfig"].update(change)


def put(kind: str, *items: Object) -> Break:
    return lambda objects: objects.update({kind: list(items)})


def add(kind: str, item: Object) -> Break:
    return lambda objects: objects.setdefault(kind, []).append(item)


def foreign_webhook(name: str, never: bool = True, resource: str = "pods", kind: str = MUTATING) -> Break:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource]}]
    policy = "Never" if never else "IfNeeded"
    webhook = {"name": f"{name}.example.com", "rules": rules, "reinvocationPolicy": policy}
    return add(kind, {"metadata": {"name": name}, "webhooks": [webhook]})


def node_pool(requirements: list[Object], taints: list[Object] | None = None, **labels: str) -> Break:
    spec = {"requirements": requirements, "taints": taints or []}
    return put(
        "NodePool", {"metadata": {"name": "p"}, "spec": {"template": {"metadata": {"labels": labels}, "spec": spec}}}
    )


def job(resources: Object) -> Break:
    template = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    spec = {"pytorchReplicaSpecs": {"Worker": {"template": template}}}
    return put("PyTorchJob", {"metadata": {"name": "j", "namespace": "team-a"}, "spec": spec})


TAINT = [{"key": GPU, "effect": "NoSchedule"}]
NAMED = {"key": "karpenter.k8s.aws/instance-gpu-name", "operator": "In", "values": ["h100"]}
FAMILY = {"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["p5"]}
NO_GPU = {"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "DoesNotExist"}

P, A = FindingLevel.Problem, FindingLevel.Advice


def scheduler(version: str) -> Break:
    image = f"registry.k8s.io/kube-scheduler:{version}"
    return add("Deployment", deployment("gpu-usher-scheduler", image=image))
