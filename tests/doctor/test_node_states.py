# SPDX-License-Identifier: Apache-2.0
"""Nodes that do not answer, changes that are pending for long, and pods of schedulers that do not run."""

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from app.doctor.cluster_objects import ExaminedCluster
from app.doctor.fleet_checks import Finding, FindingLevel, advice, by_urgency, problem
from app.doctor.node_states import examine_node_states, is_outage, read_ages
from app.kube.objects import NodeObject
from app.kube.pending_pods import PendingPod
from app.kube.records import read_record
from app.nodes.conditions import NotReady, read_not_ready
from app.nodes.reading import read_node
from tests.builders import knowledge, node_document, world_with

NOW = dt.datetime(2026, 11, 27, 3, tzinfo=dt.UTC)
STOPPED = {
    "type": "Ready",
    "status": "Unknown",
    "reason": "NodeStatusUnknown",
    "message": "Kubelet stopped posting node status.",
    "lastTransitionTime": "2026-11-27T02:10:00Z",
}
NETWORK = {
    "type": "Ready",
    "status": "False",
    "reason": "KubeletNotReady",
    "message": "container runtime network not ready: cni plugin not initialized",
    "lastTransitionTime": "2026-11-27T02:10:00Z",
}
NEVER = {**STOPPED, "reason": "NodeStatusNeverUpdated", "message": "Kubelet never posted node status."}
PLEG = {**NETWORK, "message": "PLEG is not healthy: pleg was last seen active 3m41s ago"}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-27T02:11:00Z"}
GPU = (("nvidia.com/gpu", 1),)
STATE, UPGRADE = "nvidia.com/mig.config.state", "nvidia.com/gpu-driver-upgrade-state"


def document(name: str, ready: Any = None, created: str = "2026-11-01T00:00:00Z", **labels: str) -> dict[str, Any]:
    made = node_document(name)
    made["metadata"]["creationTimestamp"] = created
    made["metadata"]["labels"] |= labels
    if ready:
        made["status"]["conditions"] = [ready]
    return made


def examined(*documents: dict[str, Any], pending: tuple[PendingPod, ...] = ()) -> tuple[Finding, ...]:
    world = world_with(*(read_node(one, knowledge()) for one in documents))
    for pod in pending:
        world.state.pending_pods.put(pod.key, pod)
    return examine_node_states(ExaminedCluster(world, now=NOW.timestamp(), since=read_ages(documents)))


def test_nodes_that_stopped_answering_are_one_problem_with_their_gpus_and_the_time() -> None:
    """F87."""
    [finding] = examined(document("a", STOPPED), document("b", STOPPED), document("c"))

    assert (finding.check, finding.level, finding.nodes) == ("NodeNotReady", FindingLevel.Problem, ("a", "b"))
    assert finding.what == (
        "2 GPU nodes with 16 GPUs do not answer since 2026-11-27T02:10:00Z: Kubelet stopped posting node status."
    )


def test_nodes_whose_kubelets_give_other_seconds_are_one_finding() -> None:
    """F87: PLEG (kubernetes/kubernetes#45419) says how long ago it was last active."""
    other = {**PLEG, "message": PLEG["message"].replace("3m41s", "5m2s")}

    [finding] = examined(document("a", PLEG), document("b", other))

    assert finding.what.startswith("2 GPU nodes with 16 GPUs are not Ready since 2026-11-27T02:10:00Z: PLEG")


@pytest.mark.parametrize(
    ("ready", "created", "level"),
    [
        (STOPPED, "2026-11-01T00:00:00Z", FindingLevel.Problem),
        (STOPPED, "2026-11-27T02:55:00Z", FindingLevel.Advice),
        (NETWORK, "2026-11-27T02:09:30Z", FindingLevel.Problem),
        (NETWORK, "2026-11-27T02:55:00Z", FindingLevel.Advice),
        (NEVER, "2026-11-27T02:10:00Z", FindingLevel.Problem),
        (NEVER, "2026-11-27T02:59:00Z", FindingLevel.Advice),
        (NEVER, "", FindingLevel.Advice),
    ],
    ids=["old", "minutes old", "never Ready", "starting", "never posted", "just made", "age unknown"],
)
def test_node_is_starting_only_while_it_is_minutes_old(ready: Any, created: str, level: FindingLevel) -> None:
    """F87."""
    [finding] = examined(document("a", ready, created))

    assert finding.level is level


@pytest.mark.parametrize(
    ("ready", "taints", "never"),
    [(STOPPED, [UNREACHABLE], False), (NEVER, [UNREACHABLE], True), (None, [UNREACHABLE], False), (None, [], None)],
    ids=["stopped", "never", "taint alone", "no word"],
)
def test_unreachable_node_was_ready_unless_its_kubelet_never_wrote(ready: Any, taints: Any, never: bool | None) -> None:
    """F87: the taint alone says that the node was there (kubernetes pkg/controller/nodelifecycle)."""
    made = document("a", ready)
    made["spec"] = {"taints": taints}

    state = read_not_ready(read_record(NodeObject, made))

    assert (state.never if state else None) is never
    if taints and ready is None:
        assert state == NotReady(False, "2026-11-27T02:11:00Z", "", False, "2026-11-01T00:00:00Z")


def managed(made: dict[str, Any], label: str, time: str) -> dict[str, Any]:
    made["metadata"]["managedFields"] = [{"time": time, "fieldsV1": {"f:metadata": {"f:labels": {f"f:{label}": {}}}}}]
    return made


@pytest.mark.parametrize(
    ("time", "level"),
    [
        ("2026-11-27T02:50:00Z", None),
        ("2026-11-27T02:44:00Z", FindingLevel.Advice),
        ("2026-11-27T01:59:00Z", FindingLevel.Problem),
    ],
    ids=["10 min", "16 min", "an hour"],
)
@pytest.mark.parametrize(
    ("label", "value", "check"),
    [
        (STATE, "pending", "MIGReconfiguring"),
        (STATE, "rebooting", "MIGReconfiguring"),
        (UPGRADE, "wait-for-jobs-required", "DriverUpgrading"),
        (UPGRADE, "validation-required", "DriverUpgrading"),
    ],
)
def test_change_that_is_pending_for_long_is_told_by_age(
    label: str, value: str, check: str, time: str, level: FindingLevel | None
) -> None:
    """F87: a label has no time; its writer has."""
    findings = examined(managed(document("a", **{label: value}), label, time))

    assert [(finding.check, finding.level) for finding in findings] == ([(check, level)] if level else [])


def test_start_that_the_upgrade_notes_is_its_age() -> None:
    """F87: NVIDIA/k8s-operator-libs pkg/upgrade/consts.go."""
    made = document("a", **{UPGRADE: "wait-for-jobs-required"})
    start = str(int((NOW - dt.timedelta(hours=5)).timestamp()))
    key = "nvidia.com/gpu-driver-upgrade-wait-for-pod-completion-start-time"
    made["metadata"]["annotations"] = {key: start}

    [finding] = examined(made)

    assert "wait-for-jobs-required for 5 h or longer" in finding.what


def test_nodes_that_wait_for_an_upgrade_are_advice_with_their_number() -> None:
    """F87: NVIDIA/gpu-operator#2509; pods run on there."""
    [finding] = examined(document("a", **{UPGRADE: "upgrade-required"}), document("b", **{UPGRADE: "upgrade-done"}))

    assert (finding.check, finding.level, finding.nodes) == ("DriverUpgradeRequired", FindingLevel.Advice, ("a",))


def test_pods_whose_scheduler_has_not_looked_at_them_name_it() -> None:
    """F87."""
    waiting = PendingPod("team", "a", GPU, "2026-11-27T02:00:00Z", unseen_by="volcano")
    fresh = PendingPod("team", "b", GPU, "2026-11-27T02:59:30Z", unseen_by="other")

    [finding] = examined(pending=(waiting, fresh))

    assert (finding.check, finding.objects) == ("SchedulerAbsent", ("Pod team/a",))
    assert finding.what.startswith("1 GPU pod names scheduler volcano, which has not looked at")


def test_outage_of_half_of_the_nodes_is_before_what_follows_from_it() -> None:
    """F87; one node of many is after what stops all pods."""
    documents = [document("a", STOPPED), document("b")]
    nodes = [read_node(one, knowledge()) for one in documents]
    findings = examined(*documents)
    stops = problem("NoReadyEndpoint", "", "")

    assert is_outage(findings, nodes)
    assert not is_outage(findings, [*nodes, read_node(document("c"), knowledge())])
    young = [replace(one, level=FindingLevel.Advice) for one in findings]
    for silent in (findings, young):
        assert by_urgency([stops, *silent], "NodeNotReady")[0].check == "NodeNotReady"
    assert by_urgency([stops, *findings])[0].check == "NoReadyEndpoint"
    assert [one.check for one in by_urgency([stops, advice("ReplicasUnavailable", "", ""), *young])] == [
        "NoReadyEndpoint", "NodeNotReady", "ReplicasUnavailable"
    ]  # fmt: skip
