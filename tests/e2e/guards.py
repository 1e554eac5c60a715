# SPDX-License-Identifier: Apache-2.0
"""A service with one policy for each guard, and pods that try to reach a GPU without the scheduler."""

import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cluster.files import shipped_policies
from tests.builders import container, policy
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.stage import OURS, Service, create_namespace, eventually, install_webhooks, plain_pod, serving

GPU, VISIBLE = "nvidia.com/gpu", "NVIDIA_VISIBLE_DEVICES"
WAIVER = "{match: {podSelector: {matchLabels: {waived: 'yes'}}}, owner: ops, reason: a test, expires: 2099-01-01}"
GUARDS = {
    "deny": f"admission: {{visibleDevices: Deny, privileged: Deny, bypass: Deny}}, exceptions: [{WAIVER}]",
    "strip": "admission: {visibleDevices: Strip}",
    "void": "admission: {visibleDevices: Void}",
    "few": "admission: {maxGPUsPerPod: 4}",
    "scheduler": f"admission: {{schedulerName: {OURS}, privileged: Deny, bypass: Deny}}",
}
"""Policies by the value of the namespace label `guard`; without the label the shipped policy warns."""


@contextmanager
def serving_with_guards(plane: ControlPlane, folder: Path) -> Iterator[Service]:
    """Run the service with the shipped policies and a policy for each guard, on a cluster of one GPU node."""
    policies = shutil.copytree(shipped_policies(), folder / "policies")
    for name, spec in GUARDS.items():
        match = f"match: {{namespaceSelector: {{matchLabels: {{guard: {name}}}}}}}"
        (policies / f"guard-{name}.yaml").write_text(policy(f"guard-{name}", f"priority: 9, {match}, {spec}"), "utf-8")
    add_nodes(plane.api, [node_object("h100")])
    plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    with serving(plane, policies=str(policies)) as running:
        install_webhooks(plane, running)
        yield running


def guarded_namespace(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """Make a namespace with the guard that the test is parametrized by; without one the shipped policy warns."""
    made = create_namespace(plane, f"guards-{zlib.crc32(request.node.name.encode()):08x}")
    if getattr(request, "param", "warn") != "warn":
        put_guard(plane, service, made, request.param)
    return made


def put_guard(plane: ControlPlane, service: Service, namespace: str, guard: str) -> None:
    assert plane.kubectl("label", "namespace", namespace, f"guard={guard}").code == 0
    eventually("the service knows the label", lambda: f"guard-{guard}" in str(service.explain(plain_pod(namespace))))


DENIED = 'Error from server (Forbidden): error when creating "STDIN": admission webhook "mutate.gpu-usher.io" denied'
ALL = [{"name": VISIBLE, "value": "all"}]


def in_every_container(namespace: str, fields: Object, **more: Any) -> Object:
    """Make a pod whose init container, sidecar and main container have these fields and ask for no GPU."""
    before = [container(name="before", **fields), container(name="side", restartPolicy="Always", **fields)]
    return plain_pod(namespace, initContainers=before, containers=[container(**fields)], **more)


def stored_field(plane: ControlPlane, pod: Object, field: str = "env") -> list[Any] | None:
    """List a field of every container, as stored; None where there is no such pod."""
    answer = plane.api.client.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/p")
    if answer.is_error:
        return None
    spec = answer.json()["spec"]
    return [document.get(field) for document in (*spec.get("initContainers", []), *spec["containers"])]
