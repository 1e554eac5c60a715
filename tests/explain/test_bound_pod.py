# SPDX-License-Identifier: Apache-2.0
"""A pod that is already bound is judged as if its own resources on its node were free (F83)."""

from typing import Any

from app.cluster.snapshot import fill
from app.cluster.state import State
from app.cluster.view import view
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.intree.existing_pods import existing_pods_of
from app.values.steps import finish
from tests.builders import gpus, knowledge, node_document, pod, policies

PORT = {"ports": [{"containerPort": 80, "hostPort": 80}]}


def bound(**more: Any) -> dict[str, Any]:
    """Make a pod that holds all eight GPUs of `n`, most of its CPU, and one of its ports."""
    holder = pod({**gpus(8), **PORT}, nodeName="n", **more)
    holder["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": "8", "cpu": "3"}
    holder["metadata"]["uid"] = "holder"
    return holder


def explained(*pods: dict[str, Any], nodes: tuple[str, ...] = ("n",)) -> Explanation:
    """Explain the first of these pods on nodes with eight GPUs and four CPUs."""
    state = State(knowledge())
    made = [node_document(name) for name in nodes]
    for document in made:
        document["status"]["allocatable"] |= {"cpu": "4", "nvidia.com/gpu": "8", "pods": "110"}
    fill(
        state,
        [*({"kind": "Node", **document} for document in made), *({"kind": "Pod", **document} for document in pods)],
    )
    world = view(state, policies(), neighbours=existing_pods_of(pods))
    return finish(explain(pods[0], world, live=True, by_node=True))


def test_pod_does_not_stand_in_its_own_way() -> None:
    """F83: the pod's own GPUs, CPU and port count as free for it."""
    explanation = explained(bound())

    assert explanation.bound is not None
    assert (explanation.bound.node, explanation.bound.fits, explanation.bound.messages) == ("n", True, ())
    assert explanation.fits == 1


def test_node_of_a_bound_pod_is_no_wish_of_its_own() -> None:
    """F83: other nodes are judged as for any pod; they are not refused for not being the pod's node."""
    explanation = explained(bound(), nodes=("n", "m"))

    assert explanation.fits == 2


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


def test_pod_without_a_node_is_not_bound() -> None:
    """F83."""
    assert explained(pod(gpus(1))).bound is None
