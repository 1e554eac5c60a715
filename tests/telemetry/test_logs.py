# SPDX-License-Identifier: Apache-2.0
"""The log: one JSON line per decision with the same fields each time, and no value of a pod that may be secret."""

import io
import json
import logging
import queue
from pathlib import Path
from typing import Any

import pytest

from app.server.service import Service
from app.telemetry.logs import LOGGER, DroppingHandler, OncePerSecond, event, lost_lines, start_logging
from tests.api.client import post, reviewed
from tests.builders import gpus, make_service, pod, review, shipped

FIELDS = {
    "ts", "level", "msg", "replica", "uid", "namespace", "pod", "decision", "reasons", "actions", "asked", "kept",
    "error", "policies", "policy_hash", "generation", "dry_run", "duration_ms",
}  # fmt: skip
SECRET = "hunter2"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return make_service(tmp_path_factory.mktemp("certs"))


class CapturedLog:
    """The lines that were written while the block lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, level: int = logging.INFO) -> None:
        self._stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", self._stream)
        self._listener = start_logging(as_json=True, level=level)

    def lines(self) -> list[dict[str, Any]]:
        """End the logging, and return the lines, each read as JSON."""
        self._listener.stop()
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]


def ask(path: str, body: Any, service: Service) -> None:
    post(path, json.dumps(body).encode(), service)


def odd_pod() -> dict[str, Any]:
    """Write a pod with secrets in all places where people put them, which requests something that is refused."""
    made = pod(gpus("500m", env=[{"name": "TOKEN", "value": SECRET}, {"name": "NVIDIA_X", "value": SECRET}]))
    made["metadata"] |= {"annotations": {"note": SECRET}, "labels": {"app": SECRET}}
    return made


def test_every_decision_has_the_same_fields(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """F94, LOG-01, fault 62: those of admission and of the extender alike."""
    log = CapturedLog(monkeypatch, logging.DEBUG)
    ask("/mutate", review(odd_pod(), dryRun=True), service)
    ask("/validate", review(pod()), service)
    ask("/scheduler/filter", {"Pod": pod(annotations={"products": "H100"}), "NodeNames": ["t4-0", "t4-1"]}, service)
    ask("/scheduler/prioritize", {"Pod": pod(), "NodeNames": ["t4-0"]}, service)

    lines = [line for line in log.lines() if line["msg"] in ("mutate", "validate", "filter", "prioritize")]

    assert [line["msg"] for line in lines] == ["mutate", "validate", "filter", "prioritize"]
    assert all(line.keys() == FIELDS for line in lines)
    assert all(line["duration_ms"] >= 0 and line["ts"].endswith("Z") for line in lines)
    assert {line["policy_hash"] for line in lines} == {shipped().hash[:12]}
    assert {line["generation"] for line in lines} == {service.state.changes.generation}
    assert [line["decision"] for line in lines] == ["denied", "allowed", "none_fits", "answered"]
    assert [line["reasons"] for line in lines] == [{"QuantityFractional": 1}, {}, {"ProductNotAllowed": 2}, {}]
    assert [line["dry_run"] for line in lines] == [True, False, False, False]
    assert [(line["namespace"], line["uid"]) for line in lines] == [("team-a", "r-1")] * 2 + [("team-a", "u-1")] * 2
    assert all("default" in line["policies"] for line in lines)


def test_audit_log_and_ours_say_the_same(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """AUD-01, CFG-04: the API server's audit log has the same policies and the same hash."""
    log = CapturedLog(monkeypatch)
    trail = reviewed(review(pod()), "mutate", service)["auditAnnotations"]

    line = log.lines()[0]

    assert (trail["policy-hash"], trail["policies"].split(",")) == (line["policy_hash"], line["policies"])
    assert trail["decision"] == line["decision"] == "patched"


def test_a_line_has_no_value_of_environment_label_or_annotation(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F94, LOG-01: this holds for every decision, and for a pod that cannot be read."""
    log = CapturedLog(monkeypatch, logging.DEBUG)
    for verb in ("mutate", "validate"):
        ask(f"/{verb}", review(odd_pod()), service)
    fine = odd_pod()
    fine["spec"]["containers"][0]["resources"] = gpus(1)["resources"]
    ask("/mutate", review(fine), service)
    ask("/scheduler/filter", {"Pod": fine, "NodeNames": ["t4-0", "none"]}, service)

    lines = log.lines()

    assert len(lines) == 4
    assert SECRET not in json.dumps(lines)


def test_what_changes_nothing_is_silent_and_a_refusal_is_not(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-02: an admission without a change is logged at debug."""
    log = CapturedLog(monkeypatch)
    ask("/validate", review(pod()), service)
    ask("/scheduler/filter", {"Pod": pod(), "NodeNames": ["h200-0"]}, service)
    ask("/validate", review(pod(gpus("500m"))), service)

    assert [(line["msg"], line["decision"]) for line in log.lines()] == [("validate", "denied")]


def test_pod_without_a_name_is_called_by_what_its_name_will_begin_with(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 35: a Job's pod has no name yet when it is reviewed."""
    made = pod(gpus("500m"))
    made["metadata"] = {"generateName": "train-"}
    log = CapturedLog(monkeypatch)

    ask("/mutate", review(made), service)

    assert [line["pod"] for line in log.lines()] == ["train-"]


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", 'quote"', "\u2028", "\u202egnp.exe", "\ud83d\ude00"])
def test_a_name_cannot_break_a_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """LOG-04, fault 33: every value goes through the JSON encoder, as ASCII."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    listener = start_logging(as_json=True)
    event("denied", pod=name)
    listener.stop()

    text = stream.getvalue()

    assert text.count("\n") == 1
    assert text.isascii()
    assert text.strip().isprintable()
    assert json.loads(text)["pod"] == name.encode("utf-16", "surrogatepass").decode("utf-16")


def test_equal_complaints_are_written_once_a_second_and_counted() -> None:
    """LOG-02: the next line that is written has the number of those that were not."""
    once = OncePerSecond()

    def complain(at: float, error: str = "no route", level: int = logging.ERROR) -> bool | None:
        record = logging.LogRecord("gpu-usher", level, "", 0, "lost", None, None)
        record.created, record.fields = at, {"error": error, "pod": f"p{at}"}
        complaints.append(record)
        return bool(once.filter(record))

    complaints: list[logging.LogRecord] = []

    assert [complain(0.0), complain(0.1), complain(0.9), complain(0.9, "other")] == [True, False, False, True]
    assert [complain(1.1), complain(1.2), complain(2.5)] == [True, False, True]
    assert [complain(2.6, level=logging.INFO), complain(2.6, level=logging.INFO)] == [True, True]
    assert once.suppressed == 3
    assert [getattr(record, "fields", {}).get("suppressed") for record in complaints] == [
        None, None, None, None, 2, None, 1, None, None,
    ]  # fmt: skip


def test_complaints_that_are_all_different_do_not_pile_up() -> None:
    """Fault 50."""
    once = OncePerSecond()
    for number in range(3_000):
        record = logging.LogRecord("gpu-usher", logging.ERROR, "", 0, f"lost {number}", None, None)
        assert once.filter(record)

    assert len(once._last) <= 1_000


def test_line_that_finds_no_room_is_dropped_and_counted() -> None:
    """LOG-03, fault 49: nothing waits for a log that nobody reads."""
    LOGGER.handlers = [DroppingHandler(queue.Queue(1))]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)

    for number in range(5):
        event(f"line {number}")

    assert lost_lines() == {"dropped": 4, "suppressed": 0}


def test_lost_lines_are_counted_once(tmp_path: Path) -> None:
    """A counter never decreases, though the log may be started anew."""
    metrics = make_service(tmp_path).metrics
    for total in (3, 5, 0, 1):
        metrics.lines_lost({"dropped": total})

    assert metrics.registry.get_sample_value("gpu_usher_log_lines_lost_total", {"why": "dropped"}) == 6
