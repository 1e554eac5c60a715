# SPDX-License-Identifier: Apache-2.0
"""The policy rule `idle`: what is known at the last poll decides, what is unknown denies nothing, and polling rests."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.admission.review import ReviewResult, validate
from app.cluster.usage_polling import FORGET_SECONDS, REST_SECONDS, WORK_SECONDS, UsagePoller, pausing
from app.demo.sample_fleets import demo_fleet
from app.policy.compiled import PolicySet
from app.server.composition import build
from app.settings import Settings
from app.usage.reading import DAY
from app.usage.table import POINTS_OF_A_POLL, poll_window
from app.values.reasons import Code
from tests.builders import gpus, node_document, pod, policies, policy, setting
from tests.usage.polls import WINDOW, Source, hold, idle, polled, poller_of

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
    poller = polled(Source(hold("a", *idle(32, peak=0.05))), two)

    assert count(poller, "team-a", 8 * 3600.0, 0.1) == 1
    assert count(poller, "team-a", 8 * 3600.0 + 1, 0.1) == 0
    assert count(poller, "team-a", WINDOW, 0.01) == 0


def test_only_what_is_idle_for_certain_is_counted() -> None:
    """F145: gaps, unknown activity, pods that came later, and work."""
    gap = [window if window.number != 90 else window._replace(known=12.0) for window in idle(16)]
    source = Source(hold("a", *idle(16)), hold("b", *idle(16)), hold("gap", *gap), hold("late", *idle(15)),
                    hold("unknown", *idle(16, peak=None)), hold("works", *idle(16, peak=0.5)))  # fmt: skip
    poller = polled(source)

    assert count(poller, "team-a", FOUR_HOURS, 0.01) == 2
    assert count(poller, "team-a", FOUR_HOURS - WINDOW, 0.01) == 3
    assert count(poller, "team-b", FOUR_HOURS, 0.01) == 0


def test_gpu_that_is_shared_is_idle_where_nobody_uses_it() -> None:
    """F145: by two pods at once, or by the node."""
    shared = node_document("n", product="NVIDIA-A10-SHARED", labels={"nvidia.com/gpu.replicas": "4"})
    busy = Source(hold("a", *idle(16), gpu="GPU-1"), hold("b", *idle(16, peak=0.5), gpu="GPU-1"))

    assert count(polled(busy), "team-a", FOUR_HOURS, 0.01) == 0
    poller = polled(Source(hold("a", *idle(16))), nodes=[shared])
    assert count(poller, "team-a", FOUR_HOURS, 0.01) == 1
    summary = poller.reading().summary
    assert summary is not None
    assert [unit.shared for unit in summary.units["n"]] == [True]


def test_one_poll_reads_a_day_or_as_far_back_as_a_policy_looks() -> None:
    """F145, F147: one history for all who ask, and in no other than whole windows."""
    source = Source(hold("a", *idle(16)))
    polled(source)
    polled(source, policies(policy("p", "admission: {idle: {after: 48h}}")))

    assert source.asked == [(DAY, WINDOW), (2 * DAY, WINDOW)]


def test_windows_of_a_poll_are_longer_in_a_large_fleet() -> None:
    """F147: a poll has at most so many points, whatever the fleet's size, up to a window a day."""
    windows = [poll_window(units, DAY) for units in (0, 1_000, 2_000, 8_000, 200_000)]

    assert windows == [900, 900, 1800, 7200, 86_400]
    assert all(units * DAY / poll_window(units, DAY) <= POINTS_OF_A_POLL for units in range(1, 99_000, 700))


def test_nothing_is_known_before_the_first_poll_nor_for_an_activity_that_was_not_asked() -> None:
    """F145."""
    source = Source(hold("a", *idle(16)))

    assert count(poller_of(source), "team-a", FOUR_HOURS, 0.01) == 0
    assert count(polled(source), "team-a", FOUR_HOURS, 0.02) == 0


def test_failed_polls_change_nothing_for_a_while_and_then_all_is_unknown() -> None:
    """F145, F147: a Prometheus that is gone denies nobody for long."""
    source, time = Source(hold("a", *idle(16)), hold("b", *idle(16))), [0.0]
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


def test_thread_rests_after_each_piece_of_work_and_loses_no_item() -> None:
    """F145: four items of a third of the work before the rest, and one that takes longer by itself."""
    parts = [0.3, 0.3, 0.3, 0.3, 5.0, 0.3]
    done: list[float] = []
    rests: list[tuple[int, float]] = []

    for part in pausing(parts, lambda: sum(done), lambda seconds: rests.append((len(done), seconds))):
        done.append(part * WORK_SECONDS)

    assert done == [part * WORK_SECONDS for part in parts]
    assert rests == [(4, REST_SECONDS), (5, REST_SECONDS)]
