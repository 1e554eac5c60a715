# SPDX-License-Identifier: Apache-2.0
"""Pods that a kubelet refused, or that have ended: their statuses as kubelets write them, and what we make of them."""

from typing import Any

import pytest

from app.kube.finished_pods import REJECTED, Ending, read_finished_pod
from app.kube.gpu_usage import read_bound_requests, read_gpu_usage
from app.kube.pod_object import pod_object
from tests.builders import knowledge, pod

UNAVAILABLE = (
    "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
    "Requested: 5, Available: 3, which is unexpected"
)
BY_HAND = [{"manager": "kubectl-create", "fieldsV1": {"f:spec": {"f:containers": {}, "f:nodeName": {}}}}]
BY_A_SCHEDULER = [{"manager": "kubectl-create", "fieldsV1": {"f:spec": {"f:containers": {}}}}]


def failed(reason: str = "", message: str = "", phase: str = "Failed", **metadata: Any) -> dict[str, Any]:
    """Write a GPU pod of node `n` that has ended."""
    document = pod(nodeName="n")
    document["metadata"] |= metadata
    return {**document, "status": {"phase": phase, "reason": reason, "message": message}}


def ending(document: dict[str, Any]) -> Ending:
    finished = read_finished_pod(pod_object(document), knowledge())
    assert finished is not None
    return finished.ending


@pytest.mark.parametrize(
    ("reason", "message", "refused", "words"),
    [
        ("UnexpectedAdmissionError", UNAVAILABLE, True, "fewer free devices"),
        ("UnexpectedAdmissionError", "cannot allocate unregistered device nvidia.com/gpu", True, "had registered"),
        ("UnexpectedAdmissionError", "no healthy devices present; cannot allocate", True, "no healthy device"),
        ("UnexpectedAdmissionError", "previously allocated devices are no longer healthy; c", True, "before a restart"),
        ("UnexpectedAdmissionError", "Allocate failed due to rpc error: code = Unknown", True, "refused the request"),
        ("UnexpectedAdmissionError", "Update plugin resources failed due to", True, "no reason of its own"),
        ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 9, used: 1, capacity: 4", True, "too little"),
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu", True, "too little was left"),
        ("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match", True, "labels did not match"),
        ("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports", True, "held a port"),
        ("TaintToleration", "Predicate TaintToleration failed", True, "NoExecute"),
        ("TopologyAffinityError", "Resources cannot be allocated with Topology locality", True, "no NUMA node"),
        ("NodeShutdown", "Pod was rejected as the node is shutting down.", True, "shutting down"),
        ("Terminated", "Pod was terminated in response to imminent node shutdown.", False, "while the pod ran"),
        ("Evicted", "The node had condition: [DiskPressure]. ", True, "when the pod arrived"),
        ("Evicted", "The node was low on resource: memory. ", False, "the kubelet ended it"),
        ("Preempting", "Preempted in order to admit critical pod", False, "critical pod"),
        ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", False, "activeDeadline"),
        ("", "", False, "a container ended with an error"),
        ("SomethingNew", "of a later version", True, ""),
    ],
)
def test_reason_of_a_kubelet_is_told(reason: str, message: str, refused: bool, words: str) -> None:
    """F83: what happened, whether the pod ever ran, and what it means; a reason that nobody knows is only repeated."""
    ended = ending(failed(reason, REJECTED + message if refused else message))

    assert (ended.phase, ended.node, ended.refused) == ("Failed", "n", refused)
    assert (ended.reason, ended.message) == (reason, message)
    assert words in ended.why
    assert bool(words) == bool(ended.why)
    assert "delete it" in ended.remedy


def test_refusal_of_an_older_kubelet_is_one_too() -> None:
    """F83: what the message begins with has changed; the reason tells as well."""
    assert ending(failed("UnexpectedAdmissionError", f"Pod {UNAVAILABLE}")).refused


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        (BY_HAND, "kubectl-create wrote spec.nodeName, so that no scheduler was asked"),
        (BY_A_SCHEDULER, "somebody wrote spec.nodeName, two schedulers count on the same node, or"),
        (None, "somebody wrote spec.nodeName, two schedulers count on the same node, or"),
    ],
    ids=["by hand", "by a scheduler", "not known"],
)
def test_whoever_wrote_the_node_is_named(fields: Any, cause: str) -> None:
    """F83, F13: a scheduler's binding leaves spec.nodeName without an owner in managedFields."""
    assert cause in ending(failed("UnexpectedAdmissionError", UNAVAILABLE, managedFields=fields)).cause


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([{"kind": "ReplicaSet", "controller": True}], "its ReplicaSet creates another"),
        ([{"kind": "Pool"}], "no controller creates another: create it again"),
        (None, "no controller creates another: create it again"),
    ],
)
def test_controller_that_makes_another_is_named(owners: Any, words: str) -> None:
    """F83."""
    assert words in ending(failed("UnexpectedAdmissionError", UNAVAILABLE, ownerReferences=owners)).remedy


def test_pod_that_runs_has_not_ended() -> None:
    """F83."""
    assert read_finished_pod(pod_object(failed(phase="Running")), knowledge()) is None
    assert read_finished_pod(pod_object(pod()), knowledge()) is None


def test_pod_that_succeeded_needs_no_reason() -> None:
    """F83."""
    assert ending(failed(phase="Succeeded")) == Ending("Succeeded", "n")


def test_refused_pod_holds_no_gpu() -> None:
    """F40: neither GPUs nor CPU of its node count as used by it."""
    refused = failed("UnexpectedAdmissionError", UNAVAILABLE)

    assert read_gpu_usage(pod_object(refused), knowledge()) is None
    assert read_bound_requests(pod_object(refused)) is None
    assert read_gpu_usage(pod_object({**refused, "status": {"phase": "Running"}}), knowledge()) is not None
