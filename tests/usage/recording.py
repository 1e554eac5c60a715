# SPDX-License-Identifier: Apache-2.0
"""A history that is recorded from exporters, with a clock that the test sets."""

import asyncio
from typing import Any

from app.cluster.exporter_history import ExporterHistory
from app.usage.history import History, idle_seconds
from tests.builders import knowledge
from tests.usage.made_week import (
    ENGINE,
)

DCGM, USAGE = knowledge().dcgm, knowledge().usage_metrics
LABELS = {"UUID": "GPU-1", "Hostname": "n", "namespace": "team", "pod": "p", "modelName": "A100"}
NEW = 1_800_000_000
"""A time at which a slot begins, for histories of a test."""


class Recording:
    """A history with a clock that the test sets."""

    def __init__(self, at: float = NEW) -> None:
        self.now = at
        self.unrecorded = 0
        self.history = ExporterHistory("http://e", DCGM, USAGE, self.drop, lambda: self.now)

    def drop(self, count: int) -> None:
        self.unrecorded += count

    def look(self, *values: float, metric: str = ENGINE, seconds: float = 60, **labels: Any) -> None:
        """Take a look at one pod's GPU, as several exporters tell of it, and let time pass."""
        self.history.take([(metric, {**LABELS, **labels}, value) for value in values])
        self.now += seconds

    def read(self, seconds: float, window: int | None = None) -> History:
        return asyncio.run(self.history.read(self.now, seconds, window))

    def idle(self, seconds: float = 3600, window: int | None = 3600) -> float:
        """Give for how long the one GPU has been idle."""
        history = self.read(seconds, window)
        return idle_seconds(history.holds, history)
