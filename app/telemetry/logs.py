# SPDX-License-Identifier: Apache-2.0
"""Logs: one line per decision, JSON for machines or text for people, written by a thread.

A blocked or full stream never blocks a request: above MOST_QUEUED_LINES new lines are dropped and counted. Of equal
warnings one per second is written and the others are counted, so that one fault does not hide the next.
"""

import contextlib
import datetime as dt
import json
import logging
import logging.handlers
import queue
import socket
import sys
import threading
from datetime import UTC, datetime
from typing import Any


def now() -> dt.datetime:
    """Return the time of the wall clock, in UTC."""
    return dt.datetime.now(dt.UTC)


def today() -> str:
    """Return the day in UTC, as YYYY-MM-DD."""
    return now().date().isoformat()


MOST_QUEUED_LINES = 10_000
"""Lines that wait for the writing thread; further ones are dropped and counted (LOG-03)."""
FINISH_SECONDS = 2.0
"""For writing the last lines at exit; a guess."""

REPEAT_SECONDS = 1.0
"""Of equal warnings one is written in this time (LOG-02)."""
WARNINGS_REMEMBERED = 1_000
"""Distinct warnings that are remembered, to recognise equal ones. A guess, not measured."""
VARYING = frozenset({"uid", "namespace", "pod", "duration_ms", "generation"})
"""Fields that may differ between equal warnings."""
REPLICA = socket.gethostname()
"""The host name; in a cluster it is the pod's name."""

LOGGER = logging.getLogger("gpu-usher")


class DroppingHandler(logging.handlers.QueueHandler):
    """Passes lines to the writing thread. `dropped` counts lines that found no room."""

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class OncePerSecond(logging.Filter):
    """Passes one of equal warnings per second; its line tells how many were suppressed since the last one.

    `suppressed` is their total. Only lines of WARNING and above are counted; every decision is written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.suppressed = 0
        self._last: dict[Any, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to write a line, and add the number of suppressed ones to it."""
        if record.levelno < logging.WARNING:
            return True
        fields = getattr(record, "fields", {})
        constant = tuple((key, str(value)) for key, value in fields.items() if key not in VARYING)
        key = (record.getMessage(), constant, repr(record.exc_info and record.exc_info[1]))
        written_at, missed = self._last.get(key, (float("-inf"), 0))
        if record.created - written_at < REPEAT_SECONDS:
            self._last[key] = written_at, missed + 1
            self.suppressed += 1
            return False
        if key not in self._last and len(self._last) >= WARNINGS_REMEMBERED:
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
    """The thread that writes lines. The process may end without it: a blocked stderr would hold it for ever."""

    def finish(self, seconds: float = FINISH_SECONDS) -> bool:
        """Write the queued lines and end; tell whether that was done within `seconds`."""
        with contextlib.suppress(queue.Full):
            self.enqueue_sentinel()
        thread: threading.Thread | None = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()


def start_logging(as_json: bool, level: int = logging.INFO) -> Writer:
    """Send log lines, also of libraries, to stderr through a queue; `finish` must be called on the writer at exit."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(_JSONFormatter() if as_json else _TextFormatter())
    lines: queue.Queue[logging.LogRecord] = queue.Queue(MOST_QUEUED_LINES)
    handler = DroppingHandler(lines)
    handler.addFilter(OncePerSecond())
    LOGGER.handlers = [handler]
    LOGGER.setLevel(level)
    LOGGER.propagate = False
    logging.getLogger().handlers = LOGGER.handlers  # otherwise logging writes library warnings on the event loop
    writer = Writer(lines, stream)
    writer.start()
    return writer


def lost_lines() -> dict[str, int]:
    """Return the number of lines that were not written: dropped (no room) and suppressed (equal to a recent one)."""
    queue_handlers = [handler for handler in LOGGER.handlers if isinstance(handler, DroppingHandler)]
    filters = [item for handler in queue_handlers for item in handler.filters if isinstance(item, OncePerSecond)]
    return {
        "dropped": sum(handler.dropped for handler in queue_handlers),
        "suppressed": sum(once_per_second.suppressed for once_per_second in filters),
    }


def event(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log one event with its fields."""
    LOGGER.log(level, message, extra={"fields": fields})
