# SPDX-License-Identifier: Apache-2.0
"""Logs: one line per decision, JSON for machines or text for a person, written by a thread of its own.

A blocked or full stream never blocks a request: past 10,000 waiting lines the newest are dropped and counted. Of equal
complaints one a second is written and the others are counted, so that one broken thing does not hide the next.
"""

import contextlib
import json
import logging
import logging.handlers
import queue
import socket
import sys
import threading
from datetime import UTC, datetime
from typing import Any

WAITING_LINES = 10_000
"""LOG-03."""
FINISH_SECONDS = 2.0
"""For the last lines, at exit; guess."""

REPEAT_SECONDS = 1.0
COMPLAINTS_KEPT = 1_000
"""LOG-02: one a second of each; so many different ones are told apart (a guess, measured nowhere)."""
VARYING = frozenset({"uid", "namespace", "pod", "duration_ms", "generation"})
"""Fields in which equal complaints may differ."""
REPLICA = socket.gethostname()
"""In a cluster the pod's name."""

LOGGER = logging.getLogger("gpu-usher")


class DroppingHandler(logging.handlers.QueueHandler):
    """Hands lines to the writing thread; `dropped`: how many found no room."""

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class OncePerSecond(logging.Filter):
    """Lets one a second of equal complaints through; its line says how many were not written since the last.

    `suppressed`: how many in all. Only WARNING and above: decisions are not complaints, and each is written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.suppressed = 0
        self._last: dict[Any, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to write a line, and note on it what was not written."""
        if record.levelno < logging.WARNING:
            return True
        fields = getattr(record, "fields", {})
        said = tuple((key, str(value)) for key, value in fields.items() if key not in VARYING)
        key = (record.getMessage(), said, repr(record.exc_info and record.exc_info[1]))
        then, missed = self._last.get(key, (float("-inf"), 0))
        if record.created - then < REPEAT_SECONDS:
            self._last[key] = then, missed + 1
            self.suppressed += 1
            return False
        if key not in self._last and len(self._last) >= COMPLAINTS_KEPT:
            del self._last[next(iter(self._last))]
        self._last[key] = record.created, 0
        if missed:
            record.fields = {**fields, "suppressed": missed}
        return True


class _JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "ts": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "replica": REPLICA,
        }
        fields |= getattr(record, "fields", {})
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=True, default=str)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value!r}" for key, value in getattr(record, "fields", {}).items() if value)
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {record.getMessage()} {fields}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class Writer(logging.handlers.QueueListener):
    """The thread that writes. It can be left behind: where stderr is blocked, waiting for it would be for ever."""

    def finish(self, seconds: float = FINISH_SECONDS) -> bool:
        """Write what waits and end; tells whether that was done in time."""
        with contextlib.suppress(queue.Full):
            self.enqueue_sentinel()
        thread: threading.Thread | None = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()


def start_logging(as_json: bool, level: int = logging.INFO) -> Writer:
    """Send log lines to stderr through a queue, those of libraries too; the writer must be finished at exit."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(_JSONFormatter() if as_json else _TextFormatter())
    lines: queue.Queue[logging.LogRecord] = queue.Queue(WAITING_LINES)
    handler = DroppingHandler(lines)
    handler.addFilter(OncePerSecond())
    LOGGER.handlers = [handler]
    LOGGER.setLevel(level)
    LOGGER.propagate = False
    logging.getLogger().handlers = LOGGER.handlers  # else logging writes their warnings itself, on the event loop
    writer = Writer(lines, stream)
    writer.start()
    return writer


def lost_lines() -> dict[str, int]:
    """Count the lines that were not written, by why: dropped (no room), suppressed (said a moment ago)."""
    dropping = [each for each in LOGGER.handlers if isinstance(each, DroppingHandler)]
    filters = [each for handler in dropping for each in handler.filters if isinstance(each, OncePerSecond)]
    return {
        "dropped": sum(each.dropped for each in dropping),
        "suppressed": sum(each.suppressed for each in filters),
    }


def event(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log one event with its fields."""
    LOGGER.log(level, message, extra={"fields": fields})
