# SPDX-License-Identifier: Apache-2.0
"""The policy rule `idle`: what is known at the last poll decides, and what is unknown denies nothing."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.admission.review import ReviewResult, validate
from app.cluster.idle_polling import FORGET_SECONDS, IdlePoller
from app.cluster.reflector import Clock
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.usage.history import History, Hold, Window
from app.values.errors import SourceError
from app.values.reasons import Code
from tests.builders import gpus, node, pod, policies, policy, setting

FOUR_HOURS = 4 * 3600.0
RULE = policies(policy("p", "admission: {idle: {after: 4h, gpus: 2}}"))


def judged(idle: Mapping[tuple[str, float, float], int], policy_set: PolicySet = RULE, **made: Any) -> ReviewResult:
    context = replace(setting(policy_set), idle_gpus=lambda *asked: idle.get(asked, 0))
    return validate(made.get("document", pod(gpus(1))), "team-a", {}, context)


def test_who_holds_so_many_idle_gpus_and_asks_for_more_is_refused() -> None:
    """F145: the namespace's own, for the time and the activity that the policy names."""
    verdict = judged({("team-a", FOUR_HOURS, 0.01): 2})

    (refusal,) = verdict.reasons
    assert refusal.code is Code.IdleGPUsHeld
    assert refusal.message == "the namespace holds 2 GPUs idle for 4h: wants fewer than 2"
    for idle in ({}, {("team-a", FOUR_HOURS, 0.01): 1}, {("team-b", FOUR_HOURS, 0.01): 9}, {("team-a", 60.0, 0.01): 9}):
        assert judged(idle).allowed
    assert judged({("team-a", FOUR_HOURS, 0.01): 9}, policies(policy("p", "priority: 1"))).allowed
    assert judged({("team-a", FOUR_HOURS, 0.01): 9}, document=pod(gpus(0))).allowed


@pytest.mark.parametrize(("action", "warned"), [("Warn", True), ("Audit", False)])
def test_rule_can_warn_or_audit_instead(action: str, warned: bool) -> None:
    """F145, F20: the action of the rule, as of any other."""
    rule = policies(policy("p", f"admission: {{idle: {{after: 4h}}}}, actions: {{idle: {action}}}"))
    verdict = judged({("team-a", FOUR_HOURS, 0.01): 1}, rule)

    assert verdict.allowed
    assert any("idle for 4h" in warning for warning in verdict.warnings) is warned


def test_defaults_are_four_hours_one_percent_and_one_gpu() -> None:
    """F145."""
    assert not judged({("team-a", FOUR_HOURS, 0.01): 1}, policies(policy("p", "admission: {idle: {}}"))).allowed


def test_time_of_one_policy_and_activity_of_another_are_polled_together() -> None:
    """F145: each field is that of the highest policy that sets it."""
    two = policies(policy("a", "priority: 2, admission: {idle: {after: 8h}}"),
                   policy("b", "priority: 1, admission: {idle: {after: 4h, below: 10}}"))  # fmt: skip
    assert polled(Source(hold("a", known=480, held=480)), two).count("team-a", 8 * 3600.0, 0.1) == 1


class Source:
    """A source with the histories of a test, by their length; None fails."""

    origin = "http://prometheus"

    def __init__(self, *holds: Hold) -> None:
        self.holds: tuple[Hold, ...] | None = holds
        self.asked: list[tuple[float, int | None]] = []

    async def read(self, end: float, seconds: float, window: int | None = None) -> History:
        self.asked.append((seconds, window))
        if self.holds is None:
            raise SourceError("no answer in time")
        return History(end - seconds, end, int(seconds), self.holds)

    async def close(self) -> None:
        pass


def hold(pod_name: str, known: float = 240.0, peak: float | None = 0.0, gpu: str = "", held: float = 240.0) -> Hold:
    window = Window(0, held, known, 0.0, peak)
    return Hold("team-a", pod_name, "n", gpu or f"GPU-{pod_name}", "", "", "A100", False, (window,))


def polled(source: Source, policy_set: PolicySet = RULE, nodes: Mapping[str, Node] | None = None) -> IdlePoller:
    poller = IdlePoller(source, lambda: policy_set, lambda: nodes or {}, Clock(now=lambda: 0.0), lambda: 1e9)
    asyncio.run(poller.poll())
    return poller


def test_only_what_is_idle_for_certain_is_counted() -> None:
    """F145: gaps, unknown activity, pods that came later, and work."""
    source = Source(hold("a"), hold("b"), hold("gap", known=200), hold("unknown", peak=None), hold("late", held=100),
                    hold("works", peak=0.5))  # fmt: skip
    poller = polled(source)

    assert poller.count("team-a", FOUR_HOURS, 0.01) == 2
    assert source.asked == [(FOUR_HOURS, 14400)]
    assert (poller.count("team-b", FOUR_HOURS, 0.01), poller.count("team-a", 60.0, 0.01)) == (0, 0)


def test_gpu_that_is_shared_is_idle_where_nobody_uses_it() -> None:
    """F145: by two pods at once, or by the node."""
    shared = node("n", product="NVIDIA-A10-SHARED", labels={"nvidia.com/gpu.replicas": "4"})

    assert (
        polled(Source(hold("a", gpu="GPU-1"), hold("b", gpu="GPU-1", peak=0.5))).count("team-a", FOUR_HOURS, 0.01) == 0
    )
    assert polled(Source(hold("a")), nodes={"n": shared}).count("team-a", FOUR_HOURS, 0.01) == 1


def test_nothing_is_asked_without_the_rule_and_nothing_is_known_before_the_first_poll() -> None:
    """F145."""
    source = Source(hold("a"))
    unpolled = IdlePoller(source, lambda: RULE, dict, Clock(now=lambda: 0.0))

    assert unpolled.count("team-a", FOUR_HOURS, 0.01) == 0
    polled(source, policies(policy("p", "priority: 1")))
    assert source.asked == []


def test_failed_polls_change_nothing_for_a_while_and_then_all_is_unknown() -> None:
    """F145: a Prometheus that is gone denies nobody for long."""
    source, time = Source(hold("a"), hold("b")), [0.0]
    poller = IdlePoller(source, lambda: RULE, dict, Clock(now=lambda: time[0]), lambda: 1e9)
    asyncio.run(poller.poll())
    source.holds = None
    time[0] = FORGET_SECONDS - 1
    asyncio.run(poller.poll())

    assert poller.count("team-a", FOUR_HOURS, 0.01) == 2
    assert poller.status()["error"] == "no answer in time"
    time[0] = FORGET_SECONDS
    assert poller.count("team-a", FOUR_HOURS, 0.01) == 0
