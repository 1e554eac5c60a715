# SPDX-License-Identifier: Apache-2.0
"""Which Events are written: one for a cause that is new, one patch for a cause that goes on, and no more."""

from dataclasses import replace

import pytest

from app.events.planning import (
    NOTE_BYTES,
    RENEW_SECONDS,
    RETRY_SECONDS,
    SAME_REASON_SECONDS,
    SETTLE_SECONDS,
    EventWrite,
    Statement,
    TokenBucket,
    WaitingPod,
    WrittenEvent,
    after,
    cut,
    statements_of,
    writes,
)
from app.explain.pending_cause import PendingCause
from app.kube.pods import ObjectReference

POD = ObjectReference("v1", "Pod", "team", "p", "uid-p")
JOB = ObjectReference("batch/v1", "Job", "team", "j", "uid-j")
NONE = "fits on none of 23 nodes: "
FULL = PendingCause("InsufficientGPUs", "not enough free GPUs", 3, 0, "x", "wait for GPUs", "ask for 2", "2 nodes",
                    headline=NONE + "not enough free GPUs")  # fmt: skip
OLD = PendingCause("DriverTooOld", "driver too old", 5, 0, "", "upgrade the node's driver",
                   headline=NONE + "driver too old")  # fmt: skip
FULL_SAID = Statement("InsufficientGPUs", "not enough free GPUs; ask for 2", "note")


def pod(name: str, cause: PendingCause = FULL, workload: ObjectReference | None = None) -> WaitingPod:
    return WaitingPod(ObjectReference("v1", "Pod", "team", name, f"uid-{name}"), workload, cause)


def test_note_has_the_cause_with_counts_and_the_smallest_change() -> None:
    """F139."""
    (statement,) = statements_of([pod("p")]).values()

    assert statement.reason == "InsufficientGPUs"
    assert statement.note == (
        "Fits on none of 23 nodes: not enough free GPUs. Smallest change that helps: ask for 2 → 2 nodes."
    )


def test_note_without_a_fix_has_the_remedy() -> None:
    """F139."""
    (statement,) = statements_of([pod("p", OLD)]).values()

    assert statement.note == "Fits on none of 23 nodes: driver too old. Upgrade the node's driver."


@pytest.mark.parametrize("reason", ["", "SchedulingGated"])
def test_pod_that_fits_or_is_held_back_on_purpose_gets_no_event(reason: str) -> None:
    """F139."""
    assert statements_of([pod("p", replace(FULL, reason=reason))]) == {}


def test_workload_is_told_once_and_before_its_pods() -> None:
    """F139: what most of its pods wait for, with their number."""
    statements = statements_of([pod("a", OLD, JOB), pod("b", FULL, JOB), pod("c", FULL, JOB), pod("d")])

    assert [reference.name for reference in statements] == ["j", "a", "b", "c", "d"]
    assert statements[JOB].note == f"3 pods wait, such as b: {FULL.note}"
    assert statements[JOB].words == statements_of([pod("b")]).popitem()[1].words


@pytest.mark.parametrize(
    ("statement", "seconds", "written"),
    [
        pytest.param(FULL_SAID, 0, None, id="just written"),
        pytest.param(replace(FULL_SAID, note="other counts"), RENEW_SECONDS - 1, None, id="other counts"),
        pytest.param(FULL_SAID, RENEW_SECONDS, 2, id="the same goes on for long"),
        pytest.param(Statement("DriverTooOld", "w", "n"), SETTLE_SECONDS - 1, None, id="another cause, flapping"),
        pytest.param(Statement("DriverTooOld", "w", "n"), SETTLE_SECONDS, 1, id="another cause"),
        pytest.param(replace(FULL_SAID, words="w"), SAME_REASON_SECONDS - 1, None, id="another fix soon"),
        pytest.param(replace(FULL_SAID, words="w"), SAME_REASON_SECONDS, 1, id="another fix later"),
    ],
)
def test_event_is_renewed_or_new_by_the_rules_of_a_series(
    statement: Statement, seconds: float, written: int | None
) -> None:
    """F139: an EventWrite with count 1 is a new Event."""
    last = WrittenEvent(FULL_SAID, created=100.0, renewed=100.0)

    due = writes({POD: statement}, {POD: last}, 100.0 + seconds)

    assert [write.count for write in due] == ([] if written is None else [written])


def test_renewal_keeps_the_words_that_are_stored() -> None:
    """F139: of a stored Event only the series may change, and its name is that of its words."""
    last = WrittenEvent(FULL_SAID, created=0.0, renewed=0.0, count=4)

    (write,) = writes({POD: replace(FULL_SAID, note="other counts")}, {POD: last}, RENEW_SECONDS)

    assert write == EventWrite(POD, FULL_SAID, 5)
    assert after(write, last, RENEW_SECONDS, 5) == replace(last, renewed=RENEW_SECONDS, count=5)


def test_refused_event_is_tried_again_after_a_while() -> None:
    """F139."""
    refused = {POD: WrittenEvent(FULL_SAID, 0.0, 0.0, refused=True)}

    assert not writes({POD: FULL_SAID}, refused, RETRY_SECONDS - 1)
    assert writes({POD: FULL_SAID}, refused, RETRY_SECONDS) == [EventWrite(POD, FULL_SAID)]


def test_new_events_come_before_those_to_renew() -> None:
    """F139: where the limit of rate allows few."""
    other = ObjectReference("v1", "Pod", "team", "q", "uid-q")
    last = {POD: WrittenEvent(FULL_SAID, 0.0, 0.0)}

    due = writes({POD: FULL_SAID, other: FULL_SAID}, last, RENEW_SECONDS)

    assert [write.regarding.name for write in due] == ["q", "p"]


def test_workload_comes_before_pods_that_wait_for_longer() -> None:
    """F139: but for pods that wait for half an hour longer, so that many workloads do not put them off for ever."""
    late = replace(pod("late", FULL, JOB), since=2000.0)
    early, very_early = replace(pod("early"), since=300.0), replace(pod("very-early"), since=100.0)

    due = writes(statements_of([early, very_early, late]), {}, 2000.0)

    assert [write.regarding.name for write in due] == ["very-early", "j", "early", "late"]


def test_causes_that_change_all_the_time_put_nobody_off() -> None:
    """F139: with room for one Event in SETTLE_SECONDS and four pods, each gets its turn, the flapping ones too."""
    written: dict[ObjectReference, WrittenEvent] = {}
    told: list[str] = []
    for turn in range(8):
        now = turn * SETTLE_SECONDS
        flapping = [pod(name, (FULL, OLD)[turn % 2]) for name in ("a", "b", "c")]
        due = writes(statements_of([*flapping, pod("steady")]), written, now)
        for write in due[:1]:
            written[write.regarding] = after(write, written.get(write.regarding), now, 1)
            told.append(write.regarding.name)

    assert told[:4] == ["a", "b", "c", "steady"]
    assert set(told[4:]) == {"a", "b", "c"}


@pytest.mark.parametrize("text", ["é" * 600, "a" * 1025, "a" * 1024, "short"])
def test_note_is_cut_at_its_limit_in_bytes(text: str) -> None:
    """F139."""
    shown = cut(text, NOTE_BYTES)

    assert len(shown.encode()) <= NOTE_BYTES
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]))
    assert (shown == text) == (len(text.encode()) <= NOTE_BYTES)


def test_bucket_gives_its_burst_and_then_its_rate() -> None:
    """F139."""
    bucket = TokenBucket(0.0, 0.0)

    assert bucket.refilled(1.0, rate=5.0, burst=10.0).tokens == 5.0
    assert bucket.refilled(60.0, rate=5.0, burst=10.0).taken() == TokenBucket(9.0, 60.0)


@pytest.mark.parametrize(("tokens", "seconds"), [(10.0, 0.0), (1.0, 0.0), (0.5, 0.1), (0.0, 0.2), (-2.0, 0.6)])
def test_what_was_taken_before_it_was_there_is_waited_for(tokens: float, seconds: float) -> None:
    """F139: a look-up of a workload may be several requests."""
    assert TokenBucket(tokens, 7.0).seconds_to_next(rate=5.0) == pytest.approx(seconds)
