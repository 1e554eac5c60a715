# SPDX-License-Identifier: Apache-2.0
"""Idle holders where a pod waits for them: explain names them first, doctor names groups and namespaces."""

from dataclasses import replace
from typing import Any

from app.doctor.fleet_checks import Finding
from app.doctor.held_gpus import examine_held, read_held_gpus
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.usage.table import GPUUse, idle_pods, with_sharing
from app.values.computations import finish
from app.world.world import world_of
from tests.builders import gpus, knowledge, node_document, pod, shipped, state_of
from tests.usage.polls import hold

NINE_HOURS = 9 * 3600.0
JOB = {"batch.kubernetes.io/job-name": "train"}


def named(name: str, amount: int, namespace: str = "vision", labels: dict[str, str] | None = None, **spec: Any) -> Any:
    """Write a pod that asks for GPUs."""
    document = pod(gpus(amount), **spec)
    metadata = {"name": name, "namespace": namespace, "uid": name, "labels": labels or {}}
    return {**document, "metadata": metadata, "status": {"phase": "Running" if "nodeName" in spec else "Pending"}}


HOLDERS = [
    named("ablation-a", 4, nodeName="a100-2", priority=100),
    named("works", 2, nodeName="a100-2"),
    named("unknown", 2, nodeName="a100-2"),
]


def explained(idle: dict[str, float]) -> Explanation:
    state = state_of([node_document("a100-2"), *HOLDERS])
    return finish(explain(named("waits", 1), replace(world_of(state, shipped()), idle=idle)))


def test_idle_holder_comes_first_and_is_said_to_be_idle() -> None:
    """F144: even before one of lower priority; who is not known to be idle is not said to be."""
    step = explained({"vision/ablation-a": NINE_HOURS}).fixes[0].edits[0]
    without = explained({}).fixes[0].edits[0]

    words = "free 1 nvidia.com/gpu on a100-2, held by vision/ablation-a (priority 100, idle for 9 h)"
    assert (step.text, [(one.pod, one.idle_hours) for one in step.evicts]) == (words, [("vision/ablation-a", 9.0)])
    assert "idle" not in without.text
    assert [(one.pod, one.idle_hours) for one in without.evicts] == [("vision/unknown", None)]


def test_pod_is_idle_where_all_its_gpus_are() -> None:
    """F144: for the shortest time of them."""
    holds = (hold("a", idle=4, device=("GPU-1", "")), hold("a", idle=2, device=("GPU-2", "")),
             hold("b", idle=4, device=("GPU-3", "")), hold("b", device=("GPU-4", "")),
             hold("gone", idle={}, held_now=False))  # fmt: skip
    assert idle_pods(with_sharing(GPUUse(0, 4 * 3600, 60, holds))) == {"team-a/a": 7200.0}


def findings(pods: list[Any], idle: dict[str, float] | None = None) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine_held(read_held_gpus(pods, knowledge(), idle))}


def test_group_that_holds_six_of_eight_and_waits_is_named() -> None:
    """F144: a whole group, a group that holds nothing, and pods without a group are not."""
    placed = [named(f"train-{number}", 1, labels=JOB, nodeName=f"n{number // 3}") for number in range(6)]
    waiting = [named(f"train-{number}", 1, labels=JOB) for number in (6, 7)]
    finding = findings([*placed, *waiting])["PartlyPlacedGroup"]

    assert finding.what == "6 of 8 pods hold 6 GPU units, and 2 wait"
    assert finding.objects == ("Group vision/batch.kubernetes.io/job-name=train",)
    assert finding.nodes == ("n0", "n1")
    for some in (placed, waiting, [named("a", 1, nodeName="n"), named("b", 1)]):
        assert "PartlyPlacedGroup" not in findings(some)


def test_namespace_that_waits_beside_its_own_idle_gpus_is_named() -> None:
    """F144: another namespace's idle GPUs, and pods that are gone, say nothing."""
    idle = {"vision/ablation-a": NINE_HOURS, "nlp/other": NINE_HOURS, "vision/gone": NINE_HOURS}
    finding = findings([*HOLDERS, named("waits", 1)], idle)["IdleWhileWaiting"]

    words = "1 pod waits for GPUs in vision, where idle GPUs are held by vision/ablation-a (9 h)"
    assert (finding.what, finding.objects, finding.nodes) == (words, ("Namespace vision",), ("a100-2",))
    assert findings([*HOLDERS, named("waits", 1)]) == {}
    assert findings(HOLDERS, idle) == {}
    assert findings([*HOLDERS, named("waits", 1, "search")], idle) == {}


def test_pod_that_the_api_would_refuse_is_passed_over() -> None:
    """F144."""
    broken = named("broken", 1)
    broken["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "x"}
    assert findings([broken, *HOLDERS]) == {}
