# SPDX-License-Identifier: Apache-2.0
"""A pod that is already bound is judged as if its own resources on its node were free (F83)."""

from typing import Any

from app.cluster.snapshot import fill
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.kube.existing_pods import existing_pods_of
from app.values.computations import finish
from app.world.state import State
from app.world.world import world_of
from tests.builders import gpus, knowledge, node_document, pod, policies
from tests.kube.test_finished_pods import UNAVAILABLE

PORT = {"ports": [{"containerPort": 80, "hostPort": 80}]}


def bound(**more: Any) -> dict[str, Any]:
    """Make a pod that holds all eight GPUs of `n`, most of its CPU, and one of its ports."""
    holder = pod({**gpus(8), **PORT}, nodeName="n", **more)
    holder["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": "8", "cpu": "3"}
    holder["metadata"]["uid"] = "holder"
    return holder


def explained(*pods: dict[str, Any], nodes: tuple[str, ...] = ("n",), gpus: int = 8) -> Explanation:
    """Explain the first of these pods on nodes with eight GPUs, of which some may be withdrawn, and four CPUs."""
    state = State(knowledge())
    made = [node_document(name, capacity={"nvidia.com/gpu": 8}) for name in nodes]
    for document in made:
        document["status"]["allocatable"] |= {"cpu": "4", "nvidia.com/gpu": str(gpus), "pods": "110"}
    fill(
        state,
        [*({"kind": "Node", **document} for document in made), *({"kind": "Pod", **document} for document in pods)],
    )
    world = world_of(state, policies(), existing_pods=existing_pods_of(pods))
    return finish(explain(pods[0], world, live=True, by_node=True))


def test_pod_does_not_stand_in_its_own_way() -> None:
    """F83: the pod's own GPUs, CPU and port count as free for it."""
    explanation = explained(bound())

    assert explanation.bound is not None
    assert (explanation.bound.node, explanation.bound.fits, explanation.bound.messages) == ("n", True, ())
    assert explanation.fits == 1


def test_node_of_a_bound_pod_is_no_wish_of_its_own() -> None:
    """F83: other nodes are judged as for any pod; they are not refused for not being the pod's node."""
    assert explained(bound(), nodes=("n", "m")).fits == 2


def test_what_others_hold_stays_held() -> None:
    """F83."""
    other = bound()
    other["metadata"] |= {"name": "other", "uid": "other"}

    explanation = explained(bound(), other)

    assert explanation.bound is not None
    assert set(explanation.bound.reasons) == {"InsufficientResource", "HostPortTaken", "InsufficientGPUs"}


def test_node_that_is_gone_is_said_to_be() -> None:
    """F83."""
    explanation = explained(bound(), nodes=("m",))

    assert explanation.bound is not None
    assert (explanation.bound.fits, explanation.bound.reasons) == (False, ("NodeNotKnown",))


def test_unhealthy_device_of_a_running_pod_is_named() -> None:
    """F83: the kubelet reports each device that a container holds; only unhealthy ones are named."""
    devices = [{"resourceID": "GPU-a", "health": "Healthy"}, {"resourceID": "GPU-b", "health": "Unhealthy"}]
    statuses = [{"name": "main", "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": devices}]}]
    holder = bound()
    holder["status"] = {"phase": "Running", "containerStatuses": statuses}

    assert explained(holder).unhealthy == ("nvidia.com/gpu GPU-b",)
    assert explained(bound()).unhealthy == ()


def test_pod_without_a_node_is_not_bound() -> None:
    """F83."""
    assert explained(pod(gpus(1))).bound is None


def refused(**more: Any) -> dict[str, Any]:
    """Write a pod that the kubelet of `n` refused."""
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": f"Pod was rejected: {UNAVAILABLE}"}
    return {**bound(**more), "status": status}


def test_pod_that_the_kubelet_refused_is_judged_as_if_it_were_created_again() -> None:
    """F83: its node binds it no longer, and it holds nothing there, so that it fits on both nodes."""
    explanation = explained(refused(), nodes=("n", "m"))

    assert explanation.ending is not None
    assert (explanation.ending.refused, explanation.ending.node) == (True, "n")
    assert (explanation.fits, explanation.bound) == (2, None)


def test_refused_pod_takes_nothing_from_others() -> None:
    """F83, F40."""
    other = refused()
    other["metadata"] = {**other["metadata"], "name": "other", "uid": "other"}

    assert explained(bound(), other).fits == 1


def test_devices_that_the_plugin_withdrew_are_the_likely_cause() -> None:
    """F83, F70."""
    explanation = explained(refused(), gpus=7)

    assert explanation.ending is not None
    assert "withdrawn 1 of 8 nvidia.com/gpu" in explanation.ending.cause


def test_withdrawn_devices_of_a_resource_that_the_kubelet_does_not_name_are_no_cause() -> None:
    """F83: as a kubelet keeps resources of an earlier MIG layout, with none of their devices."""
    pod = refused()
    pod["status"]["message"] = pod["status"]["message"].replace("nvidia.com/gpu", "nvidia.com/gpu.shared")

    explanation = explained(pod, gpus=7)

    assert explanation.ending is not None
    assert "withdrawn" not in explanation.ending.cause


def test_pod_that_runs_has_no_ending() -> None:
    """F83."""
    assert explained(bound()).ending is None
