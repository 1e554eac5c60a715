# SPDX-License-Identifier: Apache-2.0
"""A pod that has a node and does not start: its explanation begins with what the kubelet says, and what helps."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from app.cli.explain_text import print_explanation
from app.explain.explanation import Explanation
from app.explain.pending_cause import NOT_STARTED, cause_of
from app.explain.pending_pod import explain
from app.values.computations import finish
from tests.builders import pod
from tests.explain.test_placed_by import cluster, stored

IMAGE = "the image of a container cannot be pulled"


def bound(phase: str = "Pending", **status: Any) -> dict[str, Any]:
    """Write a pod that is bound to the node of `cluster`."""
    document = stored(pod(nodeName="h100"))
    return {**document, "status": {**document["status"], "phase": phase, **status}}


def warning(reason: str, message: str, second: int = 0, **more: Any) -> dict[str, Any]:
    """Write an Event of a kubelet, as kubectl shows it."""
    times = {"lastTimestamp": f"2026-11-25T21:04:{second:02}Z"}
    return {"kind": "Event", "type": "Warning", "reason": reason, "message": message, **times,
            "source": {"component": "kubelet", "host": "h100"}, "reportingComponent": "kubelet", **more}  # fmt: skip


def explanation(document: dict[str, Any], *events: dict[str, Any]) -> Explanation:
    return finish(explain(document, cluster(), live=True, events=events))


def printed(answer: Explanation) -> list[str]:
    """Return the lines that the command prints."""
    output = io.StringIO()
    print_explanation(Console(file=output, width=500), answer, details=True)
    return output.getvalue().splitlines()


@pytest.mark.parametrize(
    ("reason", "message", "why"),
    [
        (
            "FailedPrepareDynamicResources",
            "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for claim "
            "team-a/gpu: error preparing devices: GPU has fallen off the bus",
            "the DRA driver on the node could not prepare the devices of the claim",
        ),
        (
            "FailedPrepareDynamicResources",
            "Failed to prepare dynamic resources: DRA driver gpu.nvidia.com is not registered",
            "is not registered with the kubelet",
        ),
        (
            "FailedCreatePodSandBox",
            'Failed to create pod sandbox: rpc error: code = Unknown desc = no runtime for "nvidia" is configured',
            "has no handler of the name",
        ),
        (
            "FailedCreatePodSandBox",
            'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "1f":'
            ' plugin type="bridge" failed (add): no IP addresses available in range set',
            "the network plugin (CNI) of the node could not connect the pod",
        ),
        (
            "FailedCreatePodSandBox",
            "Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            "could not create the pod's sandbox",
        ),
        ("FailedMount", 'MountVolume.SetUp failed for volume "data" : configmap "a" not found', "cannot be mounted"),
        ("FailedAttachVolume", "Multi-Attach error for volume pvc-1", "cannot be attached"),
        ("FailedMapVolume", "MapVolume.SetUpDevice failed", "a block volume of the pod cannot be mapped"),
        ("NetworkNotReady", "network is not ready: cni plugin not initialized", "is not installed, or not ready"),
        ("FailedCreatePodContainer", "unable to ensure pod container exists: no space left", "the pod's cgroup"),
        ("Failed", 'Failed to pull image "x:1": not found', IMAGE),
        ("Failed", "Error: ErrImagePull", IMAGE),
        ("Failed", "Error: ImagePullBackOff", IMAGE),
        ("BackOff", 'Back-off pulling image "x:1"', IMAGE),
        ("Failed", "Error: ErrImageNeverPull", "its imagePullPolicy is Never"),
        ("InspectFailed", 'Failed to apply default image tag "X!": invalid reference format', "cannot be parsed"),
        ("InspectFailed", 'Failed to inspect image "": rpc error: code = Unavailable', "cannot look up the image"),
        ("Failed", "Error: failed to create containerd task: OCI runtime create failed", "could not create or start"),
        ("Failed", "Error: unresolvable CDI devices nvidia.com/gpu=7", "found no CDI specification"),
        ("Failed", "error making pod data directories: mkdir: no space left on device", "the folders of the pod"),
        ("BackOff", "Back-off restarting failed container main in pod p", "ends soon after each start"),
        ("FailedSync", "error determining status: rpc error", "could not learn the state"),
    ],
)
def test_event_of_a_kubelet_is_named_with_its_meaning(reason: str, message: str, why: str) -> None:
    """F83: also by an Event alone, since a kubelet gives a container no waiting reason before the pod has a sandbox."""
    problem, *_ = explanation(bound(), warning(reason, message)).not_started

    assert problem.startswith(f"{reason}: ")
    assert why in problem
    assert "; " in problem


def test_text_begins_with_the_node_and_the_event() -> None:
    """F83: only then follows where the pod would fit if it were created again."""
    event = warning("FailedMount", 'MountVolume.SetUp failed for volume "data" : configmap "a" not found')

    lines = printed(explanation(bound(), event))

    assert lines[0] == "team-a/p is bound to h100, not started"
    assert lines[1].startswith("  FailedMount: a volume of the pod cannot be mounted (MountVolume.SetUp failed")
    assert lines[2] == "created again, it would fit on 1 of 1 node"


def test_best_node_of_a_pod_that_has_claims_alone_is_shown_without_a_resource() -> None:
    """F83: only requests of resources have a unit that the node gives."""
    answer = explanation(stored(pod()))
    [best] = answer.best

    line = printed(replace(answer, best=(replace(best, gives={}),)))[-1]

    assert line.startswith("   10  h100  NVIDIA-H100-80GB-HBM3, driver 570.124.06; Fragmentation 0.125, ")


def test_events_of_a_stage_that_is_over_are_left_out() -> None:
    """F83: a kubelet pulls images only when volumes, claims and the sandbox are there."""
    events = [warning("FailedMount", "timed out", 1), warning("Pulling", 'Pulling image "x:1"', 9, type="Normal")]

    assert explanation(bound(), *events).not_started == (
        "the kubelet of h100 has not said why; where that lasts, read its log",
    )
    later = warning("FailedCreatePodSandBox", "no runtime for nvidia", 10)
    assert "no handler" in explanation(bound(), *events, later).not_started[0]


def test_same_cause_is_said_once_and_the_newest_first() -> None:
    """F83."""
    state = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x:1"'}}
    document = bound(containerStatuses=[{"name": "main", "state": state}])
    events = [warning("Failed", "Error: ErrImagePull", 1), warning("BackOff", 'Back-off pulling image "x:1"', 2)]

    [problem] = explanation(document, *events).not_started
    assert problem.startswith("ImagePullBackOff: ")
    first, second = explanation(
        bound(), warning("FailedMount", "old", 1), warning("NetworkNotReady", "new", 2)
    ).not_started
    assert (first[:15], second[:11]) == ("NetworkNotReady", "FailedMount")


@pytest.mark.parametrize(
    ("event", "told"),
    [
        pytest.param(
            warning("FailedToRetrieveImagePullSecret", "Unable to retrieve some image pull secrets (key)"),
            "FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (key); read the kubelet's log",
            id="a warning that no row explains",
        ),
        pytest.param(
            warning("FailedScheduling", "0/1 nodes are available", reportingComponent="default-scheduler"),
            "the kubelet of h100 has not said why",
            id="of the scheduler, before it was bound",
        ),
        pytest.param(
            {"type": "Normal", "reason": "Scheduled", "eventTime": "2026-11-25T21:04:00.123456Z", "note": "assigned"},
            "the kubelet of h100 has not said why",
            id="of events.k8s.io",
        ),
    ],
)
def test_pod_that_nothing_explains_is_still_said_not_to_have_started(event: dict[str, Any], told: str) -> None:
    """F83."""
    [problem] = explanation(bound(), event).not_started

    assert problem.startswith(told)


def test_events_that_were_not_read_are_pointed_to() -> None:
    """F83: gpu-usher's own accounts may not read Events."""
    [problem] = finish(explain(bound(), cluster(), live=True)).not_started

    assert problem == "its Events, which are not read here, may say why: kubectl describe pod p -n team-a"


def test_pod_that_runs_has_started_whatever_its_events_say() -> None:
    """F83: Events are kept for an hour."""
    assert explanation(bound("Running"), warning("FailedMount", "timed out")).not_started == ()
    assert explanation(stored(pod()), warning("FailedMount", "timed out")).place == ""


@pytest.mark.parametrize(
    ("phase", "reason", "why"),
    [
        ("Pending", "ImagePullBackOff", IMAGE),
        ("Pending", "ErrImageNeverPull", "its imagePullPolicy is Never"),
        ("Pending", "CreateContainerConfigError", "a ConfigMap, a Secret or a key of one"),
        ("Running", "CrashLoopBackOff", "a container ends soon after each start"),
    ],
)
def test_bound_pod_whose_container_waits_says_why(phase: str, reason: str, why: str) -> None:
    """F83."""
    state = {"waiting": {"reason": reason, "message": "as the kubelet says"}}
    answer = explanation(bound(phase, containerStatuses=[{"name": "main", "state": state}]))

    assert why in " ".join(answer.not_started)
    assert answer.place == ("bound to h100, not started" if phase == "Pending" else "bound to h100")


def test_cause_of_a_bound_pod_is_why_it_has_not_started() -> None:
    """F83: the aggregated API has one sentence, which said that such a pod fits."""
    cause = cause_of(explanation(bound(), warning("FailedMount", "timed out")))

    assert cause.reason == NOT_STARTED
    assert cause.note.startswith("bound to h100, not started: FailedMount: a volume of the pod cannot be mounted")


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        (
            "DeletionByDeviceTaintManager",
            "Device Taint manager: deleting due to NoExecute taint",
            "a device of its claims has a taint NoExecute",
        ),
        ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", "its node has a taint NoExecute"),
        ("EvictionByEvictionAPI", "Eviction API: evicting", "as kubectl drain and cluster autoscalers do"),
        ("PreemptionByScheduler", "default-scheduler: preempting", "makes room for a pod of higher priority"),
        ("DeletionByPodGC", "PodGC: node no longer exists", "its node is gone"),
        ("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.", "the kubelet ends it"),
        ("DeletionByKueue", "quota is taken back", "DeletionByKueue: quota is taken back"),
    ],
)
def test_pod_that_is_being_ended_is_told_by_whom(reason: str, message: str, told: str) -> None:
    """F83: while its containers still end."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}

    notes = "\n".join(explanation(bound("Running", conditions=[target])).notes)

    assert f"it is being ended: {reason}: " in notes
    assert told in notes
    assert "being ended" not in str(explanation(bound("Running", conditions=[{**target, "status": "False"}])).notes)


RUNC = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
HOOK = f"{RUNC}error running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as legacy\n"


@pytest.mark.parametrize(
    ("message", "shown", "why"),
    [
        (f"{HOOK}nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver",
         "unsatisfied condition: cuda>=12.8", "requires a newer CUDA"),
        (f"{HOOK}nvidia-container-cli: requirement error: unsatisfied condition: brand = tesla",
         "unsatisfied condition: brand = tesla", "another driver or GPU"),
        (f"{HOOK}nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
         "driver/library version mismatch", "former kernel module"),
        (f"{HOOK}nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
         "driver not loaded", "is not loaded"),
        (f"{HOOK}nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared"
         " object file", "libnvidia-ml.so.1", "finds no driver"),
        (f"{HOOK}nvidia-container-cli: device error: GPU-1f: unknown device: unknown", ": unknown device", "no longer"),
        (f"{RUNC}exec /usr/bin/python: exec format error: unknown", "exec format error", "another CPU architecture"),
        (f"{RUNC}something that no row knows went wrong in the very last step of all: EINVAL", "step of all: EINVAL",
         "could not start a container"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backing_off", [True, False])
def test_start_error_is_told_by_its_decisive_part(message: str, shown: str, why: str, backing_off: bool) -> None:
    """F83: also between two starts, where the waiting reason is CrashLoopBackOff and the cause stands in lastState."""
    last = {"terminated": {"reason": "StartError", "message": message, "exitCode": 128}}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"} if backing_off else {
        "reason": "RunContainerError", "message": message}  # fmt: skip
    document = bound(containerStatuses=[{"name": "main", "state": {"waiting": waiting}, "lastState": last}])

    problem = explanation(document).not_started[0]

    assert shown in problem
    assert why in problem
    assert "kubectl logs" not in problem


def test_container_that_ran_before_it_ended_keeps_its_own_words() -> None:
    """F83: what ended after it had started has logs."""
    last = {"terminated": {"reason": "Error", "exitCode": 1}}
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    document = bound(containerStatuses=[{"name": "main", "state": state, "lastState": last}])

    assert "kubectl logs --previous" in explanation(document).not_started[0]
