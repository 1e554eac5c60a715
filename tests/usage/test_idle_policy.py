# SPDX-License-Identifier: Apache-2.0
"""The policy rule `idle`: what is known at the last poll decides, and what is unknown denies nothing."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.admission.review import ReviewResult, validate
from app.cluster.usage_polling import FORGET_SECONDS, MOST_BELOWS, UsagePoller
from app.demo.sample_fleets import demo_fleet
from app.policy.compiled import PolicySet
from app.server.composition import build
from app.settings import Settings
from app.usage.queries import DAY
from app.values.reasons import Code
from tests.builders import gpus, node_document, pod, policies, policy, setting
from tests.usage.polls import Source, hold, polled, poller_of

FOUR_HOURS = 4 * 3600.0
RULE = policies(policy("p", "admission: {idle: {after: 4h, gpus: 2}}"))


def count(poller: UsagePoller, namespace: str, seconds: float, below: float) -> int:
    """Count the units of a namespace that were idle for so long at the last poll."""
    return sum(idle >= seconds for idle in poller.idle_seconds.get(below, {}).get(namespace, ()))


def judged(idle: Mapping[tuple[str, float, float], int], policy_set: PolicySet = RULE, **made: Any) -> ReviewResult:
    known = {below: {name: (seconds,) * units} for (name, seconds, below), units in idle.items()}
    context = setting(policy_set, idle_seconds=known)
    return validate(made.get("document", pod(gpus(1))), "team-a", {}, context)


def test_who_holds_so_many_idle_gpus_and_asks_for_more_is_refused() -> None:
    """F145: the namespace's own, for the time and the activity that the policy names."""
    verdict = judged({("team-a", FOUR_HOURS, 0.01): 2})

    (refusal,) = verdict.reasons
    assert refusal.code is Code.IdleGPUsHeld
    assert refusal.message == "the namespace holds 2 GPUs that have been idle for 4h; fewer than 2 may be (policy p)"
    for known in (
        {},
        {("team-a", FOUR_HOURS, 0.01): 1},
        {("team-b", FOUR_HOURS, 0.01): 9},
        {("team-a", 60.0, 0.01): 9},
    ):
        assert judged(known).allowed
    assert judged({("team-a", FOUR_HOURS, 0.01): 9}, policies(policy("p", "priority: 1"))).allowed
    assert judged({("team-a", FOUR_HOURS, 0.01): 9}, document=pod(gpus(0))).allowed


@pytest.mark.parametrize(("action", "warned"), [("Warn", True), ("Audit", False)])
def test_rule_can_warn_or_audit_instead(action: str, warned: bool) -> None:
    """F145, F20: the action of the rule, as of any other."""
    rule = policies(policy("p", f"admission: {{idle: {{after: 4h}}}}, actions: {{idle: {action}}}"))
    verdict = judged({("team-a", FOUR_HOURS, 0.01): 1}, rule)

    assert verdict.allowed
    assert any("been idle for 4h" in warning for warning in verdict.warnings) is warned


def test_defaults_are_four_hours_one_percent_and_one_gpu() -> None:
    """F145."""
    assert not judged({("team-a", FOUR_HOURS, 0.01): 1}, policies(policy("p", "admission: {idle: {}}"))).allowed


def test_time_of_one_policy_and_activity_of_another_are_polled_together() -> None:
    """F145: each field is that of the highest policy that sets it."""
    two = policies(policy("a", "priority: 2, admission: {idle: {after: 8h}}"),
                   policy("b", "priority: 1, admission: {idle: {after: 4h, below: 10}}"))  # fmt: skip
    source = Source(hold("a", idle={0.01: 0, 0.1: 8}))
    poller = polled(source, two)

    assert source.asked == [(DAY, (0.01, 0.1))]
    assert count(poller, "team-a", 8 * 3600.0, 0.1) == 1
    assert count(poller, "team-a", 8 * 3600.0 + 1, 0.1) == 0
    assert count(poller, "team-a", 900, 0.01) == 0


def test_activities_that_are_asked_about_are_bounded() -> None:
    """F145: by more nothing is idle, and none denies."""
    many = [
        policy(f"p{below}", f"priority: {below}, admission: {{idle: {{below: {below}}}}}") for below in range(2, 20)
    ]
    source = Source()
    polled(source, policies(*many))

    assert [(belows[0], belows[1], len(belows)) for _, belows in source.asked] == [(0.01, 0.02, MOST_BELOWS + 1)]


def test_gpu_that_is_shared_is_idle_where_nobody_uses_it() -> None:
    """F145: by two pods at once, or by the node; a sharer that has released it says nothing."""
    shared = node_document("n", product="NVIDIA-A10-SHARED", labels={"nvidia.com/gpu.replicas": "4"})
    one: dict[str, Any] = {"device": ("GPU-1", ""), "shared": True}
    busy = Source(hold("a", idle=4, **one), hold("b", **one))
    gone = Source(hold("a", idle=4, **one), hold("b", **one, held_now=False))

    assert count(polled(busy), "team-a", FOUR_HOURS, 0.01) == 0
    assert count(polled(gone), "team-a", FOUR_HOURS, 0.01) == 1
    poller = polled(Source(hold("a", idle=4)), nodes=[shared])
    assert count(poller, "team-a", FOUR_HOURS, 0.01) == 1
    summary = poller.reading().summary
    assert summary is not None
    assert [row.unit for row in summary.workloads] == ["shared GPU"]


def test_one_poll_reads_a_day_or_as_far_back_as_a_policy_looks() -> None:
    """F145, F147: one answer for all who ask, and a tenth more than a policy looks, for minutes without a sample."""
    source = Source(hold("a", idle=4))
    polled(source)
    polled(source, policies(policy("p", "admission: {idle: {after: 48h}}")))

    assert source.asked == [(DAY, (0.01,)), (2 * DAY / 0.9, (0.01,))]


def test_nothing_is_known_before_the_first_poll_nor_for_an_activity_that_was_not_asked() -> None:
    """F145."""
    source = Source(hold("a", idle=4))

    assert count(poller_of(source), "team-a", FOUR_HOURS, 0.01) == 0
    assert count(polled(source), "team-a", FOUR_HOURS, 0.02) == 0


def test_failed_polls_change_nothing_for_a_while_and_then_all_is_unknown() -> None:
    """F145, F147: a Prometheus that is gone denies nobody for long."""
    source, time = Source(hold("a", idle=4), hold("b", idle=4)), [0.0]
    poller = poller_of(source, now=lambda: time[0])
    asyncio.run(poller.poll())
    source.holds = None
    time[0] = FORGET_SECONDS - 1
    asyncio.run(poller.poll())

    assert count(poller, "team-a", FOUR_HOURS, 0.01) == 2
    assert poller.status()["error"] == "no answer in time"
    time[0] = FORGET_SECONDS
    assert count(poller, "team-a", FOUR_HOURS, 0.01) == 0
    assert poller.reading().summary is None
    assert poller.reading().age_seconds == FORGET_SECONDS


def test_without_a_source_the_policy_is_not_judged_and_says_so(tmp_path: Path) -> None:
    """F145: exporters alone have no history; the log, /statusz and the page Use name the policy."""
    snapshot = tmp_path / "now.json"
    snapshot.write_text(json.dumps({"kind": "List", "items": demo_fleet()}), "utf-8")
    built = build(Settings(snapshots=(snapshot,), certs=tmp_path, dcgm_exporters=("http://127.0.0.1:1",)))
    assert (built.usage.reading().asked, built.usage.reading().problem) == (False, None)
    poller = UsagePoller(None, lambda: RULE, built.state)
    asyncio.run(poller.poll())

    problem = "admission.idle of p is not judged and refuses no pod: start serve with --prometheus URL"
    assert (poller.reading().problem, poller.status()["error"], count(poller, "team-a", 1.0, 1.0)) == (
        problem,
        problem,
        0,
    )
