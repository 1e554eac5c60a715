# SPDX-License-Identifier: Apache-2.0
"""Logs: one line per decision, JSON for machines or text for a person, written by a thread of its own.

A blocked or full stdout never blocks a request: past 10,000 waiting lines the newest are dropped and counted.
"""

import contextlib
import json
import logging
import logging.handlers
import queue
import sys
import threading
from typing import Any

WAITING_LINES = 10_000
"""LOG-03."""
FINISH_SECONDS = 2.0
"""For the last lines, at exit; guess."""

LOGGER = logging.getLogger("gpu-usher")


class _DroppingHandler(logging.handlers.QueueHandler):
    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class _JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "ts": self.formatTime(record, "%Y-%m-%dT%H:%M:%SZ"),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
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
    LOGGER.handlers = [_DroppingHandler(lines)]
    LOGGER.setLevel(level)
    LOGGER.propagate = False
    logging.getLogger().handlers = LOGGER.handlers  # else logging writes their warnings itself, on the event loop
    writer = Writer(lines, stream)
    writer.start()
    return writer


def event(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log one event with its fields."""
    LOGGER.log(level, message, extra={"fields": fields})
