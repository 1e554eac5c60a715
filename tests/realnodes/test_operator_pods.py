# SPDX-License-Identifier: Apache-2.0
"""The pods by which NVIDIA's GPU Operator validates a node, in each state of an upgrade, on a real kubelet (F10, F21).

The operator is in a namespace that is not exempt. The pods have the shape of NVIDIA/gpu-operator validator/manifests,
with the image of the tests; their creator has the operator's account and rights.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.nodes.conditions import MIG_STATE, PLUGIN, UPGRADE_STATE
from tests.admission.test_pods_with_a_node import MIG_STATES, UPGRADE_STATES
from tests.builders import policy
from tests.controlplane.kubectl import Object
from tests.e2e.stage import (
    Service,
    create_namespace,
    eventually,
    install_webhooks,
    own_policies,
    pods_of,
    remove_webhooks,
    serving,
)
from tests.e2e.test_pods_with_a_node import OPERATOR, RBAC, RIGHTS, bind_role
from tests.realnodes.cluster import Cluster
from tests.realnodes.seen_devices import container_pod, delete_pod, wait_for_phase

GPU = "nvidia.com/gpu"
PRODUCTION = Path("deploy/components/guards/guards.yaml").read_text("utf-8")
ENFORCED = policy("all", "priority: 9, admission: {visibleDevices: Deny, privileged: Deny, bypass: Deny}")
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "shipped": {},
    "every guard enforced": {"guards": PRODUCTION, "all": ENFORCED},
}
DENYING = policy("no-h100", "placement: {products: {deny: [H100]}}")
STATES = (
    *((UPGRADE_STATE, state) for state in UPGRADE_STATES[::3]),
    *((MIG_STATE, state) for state in MIG_STATES[:1]),
    (PLUGIN, "paused-for-driver-upgrade"),
)
"""Some of each label; admission writes none of them (tests/admission/test_pods_with_a_node.py)."""


@pytest.fixture(scope="module")
def nvidia(cluster: Cluster) -> str:
    """A namespace with the operator's account, which may create pods there."""
    plane = cluster.plane
    name = create_namespace(plane, "nvidia")
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": name}
    plane.api.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": OPERATOR}})
    author = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    plane.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": OPERATOR}, "rules": [RIGHTS[OPERATOR], author]})
    bind_role(plane, f"{RBAC}/clusterrolebindings", OPERATOR, subject)
    return name


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def service(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """The service in one configuration, with a policy besides that denies a product."""
    texts = {**CONFIGURATIONS[request.param], "no-h100": DENYING}
    with serving(cluster.plane, policies=str(own_policies(tmp_path_factory.mktemp("own"), texts))) as running:
        install_webhooks(cluster.plane, running)
        yield running
        remove_webhooks(cluster.plane)


def validator(namespace: str, app: str, node: str, limits: dict[str, Any] | None, **container: Any) -> Object:
    """Write a validation pod on a node."""
    pod = container_pod(app, namespace, limits, nodeName=node, tolerations=[{"key": GPU, "operator": "Exists"}])
    pod["metadata"]["labels"] = {"app": app}
    pod["spec"]["containers"][0] |= container
    return pod


def is_decided(pod: Object) -> bool:
    """Tell whether the kubelet has started the pod or refused it."""
    return bool(pod["status"]["phase"] != "Pending")


def set_label(cluster: Cluster, node: str, key: str, value: str | None) -> None:
    cluster.plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {key: value}}})


def test_no_validation_is_refused_in_any_state_of_a_node(cluster: Cluster, service: Service, nvidia: str) -> None:
    """Neither by admission nor by the kubelet, in each of these states, for two pods."""
    assert service.ready()
    node, user = cluster.nodes["node-1"].name, f"--as=system:serviceaccount:{nvidia}:{OPERATOR}"
    all_devices: Object = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    pods = (
        validator(nvidia, "nvidia-device-plugin-validator", node, {GPU: 1}),
        validator(nvidia, "nvidia-cuda-validator", node, None, **all_devices, securityContext={"privileged": True}),
    )
    refused = []
    for key, value in STATES:
        set_label(cluster, node, key, value)
        for pod in pods:
            answer = cluster.plane.kubectl("create", "-f", "-", user, stdin=json.dumps(pod))
            if answer.code:
                refused.append((key, value, answer.err))
        eventually("the kubelet decides", lambda: all(map(is_decided, pods_of(cluster.plane, nvidia))))
        statuses = [pod["status"] for pod in pods_of(cluster.plane, nvidia)]
        refused += [(key, value, str(status)) for status in statuses if status["phase"] == "Failed"]
        cluster.plane.api.delete(f"/api/v1/namespaces/{nvidia}/pods")
        eventually("they are gone", lambda: not pods_of(cluster.plane, nvidia))
        set_label(cluster, node, key, None)

    assert refused == []


def test_tenants_pod_on_a_denied_product_is_refused(cluster: Cluster, service: Service, nvidia: str) -> None:
    """A foreign scheduler's name, spec.nodeName and a toleration of everything end at the kubelet, or at the guard."""
    assert service.ready()
    node, namespace = cluster.nodes["node-1"].name, nvidia
    pod = container_pod(
        "tenant", namespace, {GPU: 1}, nodeName=node, schedulerName="volcano", tolerations=[{"operator": "Exists"}]
    )

    answer = cluster.plane.kubectl.create(pod)

    if answer.code:
        assert "spec.nodeName is set" in answer.err
    else:
        status = wait_for_phase(cluster, pod, "Failed")["status"]
        assert status["reason"] == "NodeAffinity"
        delete_pod(cluster, pod)
