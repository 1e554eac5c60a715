# SPDX-License-Identifier: Apache-2.0
"""Memory budgets of shared GPUs on the real scheduler: a burst of pods exceeds none of them."""

import json
import random
from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import ControlPlane, Scheduler
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.crowd import DrawnPod
from tests.e2e.settling import QUICK, Run, create, read_outcome, settle
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    read_pod,
    refusal,
    scheduler_configuration,
    serving,
    wait_for_node,
)
from tests.e2e.verdicts import false_refusals, over_committed, read_nodes, untrue_messages, wrong_bindings
from tests.placement.twin import Wish

PODS = 60
SHARES, MEMORY_MIB = 10, 23028
MEMORIES = ("2Gi", "3Gi", "4Gi", "6Gi", "9000Mi")
"""Ten shares of 23,028 MiB: memory ends long before the shares do."""
ONE_NODE = {"pair": "one"}
REFUSING = "hold-the-binding"


def shared_node(name: str, strategy: str = "time-slicing", **labels: str) -> Object:
    """Write a node of one A10 in ten shares."""
    shared = {"nvidia.com/gpu.sharing-strategy": strategy, "nvidia.com/gpu.replicas": str(SHARES)}
    features = {"nvidia.com/gpu.memory": str(MEMORY_MIB), "nvidia.com/gpu.count": "1"}
    offers = {"nvidia.com/gpu": SHARES}
    return node_object(name, "NVIDIA-A10-SHARED", "550.54.15", offers, labels={**shared, **features, **labels})


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane) -> int:
    """Register three nodes of time-slices, one of which is alone with the label of a selector."""
    made = [shared_node("slices-0"), shared_node("slices-1"), shared_node("slices-2", **ONE_NODE)]
    add_nodes(plane.api, made)
    return len(made)


@pytest.fixture
def stage(plane: ControlPlane, fleet: int, request: pytest.FixtureRequest) -> Iterator[tuple[Service, Scheduler, str]]:
    """A service, a scheduler, and a namespace; the pods are deleted afterwards."""
    namespace = create_namespace(plane, f"plain-{abs(hash(request.node.name)) % 10**6}")
    with serving(plane, namespace) as service:
        eventually("all nodes are known", lambda: service.health()["caches"]["nodes"]["objects"] == fleet)
        configuration = scheduler_configuration(service)
        yield service, plane.start_scheduler({**configuration, **QUICK}, "gpu-usher-scheduler"), namespace
        plane.stop("gpu-usher-scheduler")
        plane.api.delete(f"/api/v1/namespaces/{namespace}/pods")
        eventually("the pods are gone", lambda: not plane.api.items("/api/v1/pods"))


def draw_burst(namespace: str) -> list[DrawnPod]:
    """Draw the burst: each pod takes one share, and most declare how much memory they will use."""
    draw = random.Random(65)
    wishes = [Wish(memory=draw.choice(MEMORIES) if draw.random() < 0.95 else None) for _ in range(PODS)]
    return [DrawnPod(f"burst-{index}", "plain", False, wish, namespace=namespace) for index, wish in enumerate(wishes)]


def test_burst_runs_no_budget_over(plane: ControlPlane, stage: tuple[Service, Scheduler, str]) -> None:
    """P21, P46, F65: the memory of a pod is promised until its binding is seen, and there is no false refusal.

    See docs/reference/sharing-and-memory.md#memory-budgets.
    """
    service, scheduler, namespace = stage
    burst = draw_burst(namespace)
    run = Run(read_nodes(plane.api.items("/api/v1/nodes")), {pod.name: pod for pod in burst})

    assert create(plane.api, burst) == {}
    settle(plane, scheduler)
    read_outcome(plane.api, run)

    print(f"{len(run.cluster.bound)} bound, {len(run.cluster.refused)} refused")
    assert over_committed(run.cluster) == []
    assert wrong_bindings(run.cluster) == []
    assert false_refusals(run.cluster) == []
    assert list(untrue_messages(run.cluster)) == []
    assert len(run.cluster.refused) > PODS / 4
    assert service.metric("gpu_usher_vram_overrun_nodes") == 0


def test_pod_that_fails_to_bind_and_asks_again_counts_once(
    plane: ControlPlane, stage: tuple[Service, Scheduler, str]
) -> None:
    """Fault 34: a second filter call replaces the promise. A smaller pod fits beside it, and no further one does.

    See docs/reference/sharing-and-memory.md#memory-budgets.
    """
    service, _, namespace = stage
    hold_bindings(plane, "large")
    large, small, late = (
        memory_pod(namespace, *arguments) for arguments in (("large", "16Gi"), ("small", "6Gi"), ("late", "1Gi"))
    )
    create_pod(plane, large)
    eventually("it has asked again", lambda: service.calls("filter") >= 3)
    assert not read_pod(plane, large)["spec"].get("nodeName")

    create_pod(plane, small)
    assert wait_for_node(plane, small) == "slices-2"
    create_pod(plane, late)
    eventually("the late one is refused", lambda: "memory of the shared GPUs" in refusal(read_pod(plane, late)))

    plane.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", REFUSING)
    assert wait_for_node(plane, large) == "slices-2"
    assert not read_pod(plane, late)["spec"].get("nodeName")


def memory_pod(namespace: str, name: str, memory: str, node: str | None = None) -> Object:
    """Write a pod that takes one share of the node that ONE_NODE selects, or of `node`, which it then names itself."""
    place = {"nodeName": node} if node else {"nodeSelector": ONE_NODE}
    return gpu_pod(name, namespace, annotations={"gpu-memory": memory}, **place)


def hold_bindings(plane: ControlPlane, name: str) -> None:
    """Have the API server refuse the binding of a pod, and wait until it does."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": f"object.metadata.name != '{name}'", "message": "held"}],
    }
    group = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": REFUSING}}
    bound = {"policyName": REFUSING, "validationActions": ["Deny"]}
    for kind, content in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", bound)):
        result = plane.kubectl("apply", "-f", "-", stdin=json.dumps({**group, "kind": kind, "spec": content}))
        assert result.code == 0, result.err
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "nowhere"}}
    path = f"/api/v1/namespaces/default/pods/{name}/binding?dryRun=All"
    eventually("bindings are held", lambda: "held" in plane.api.try_create(path, binding).text)
