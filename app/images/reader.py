# SPDX-License-Identifier: Apache-2.0
"""Reads the images that pods name, in the background, and puts what they carry into the index.

No request waits for it. A tag is looked up again after a time, and after a failure a reference is asked for again after
a growing one. Everything is bounded: references, bytes, readings at once, and seconds (app/images/registry.py).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest
from math import inf
from typing import Any

from app.cluster.reflector import Clock
from app.images.documents import read_reference
from app.images.registry import Registries
from app.knowledge.image_configs import ImageFacts
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.values.errors import SourceError
from app.world.image_index import ImageIndex

MOST_REFERENCES = 10_000
"""References that are kept, the oldest goes first. A cluster's GPU pods name some hundred."""
MOST_AT_ONCE = 4
"""Images that are read at once, a guess that no registry limits."""
LOOK_SECONDS = 0.5
"""Between two looks at what is wanted and what is due."""
RESOLVE_SECONDS = 3_600.0
"""After which a tag is looked up again, by a HEAD. Docker Hub counts no HEAD as a pull."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 30.0, 3_600.0
"""After the first failure, and the longest; the time doubles with each."""
SILENT = frozenset({"unreachable", "timeout", "http_error"})
"""Outcomes that are no fault of the image or of the operator's file, but of a registry that does not answer."""


@dataclass(slots=True)
class _Entry:
    """A reference: what was read of it, when it is due again, and its failures since."""

    facts: ImageFacts | None = None
    due: float = 0.0
    failures: int = 0


@dataclass(slots=True)
class RegistryState:
    """Since when a registry does not answer, by the clock, None if it does; `problem` is its last error."""

    failing_since: float | None = None
    problem: str = ""


class ImageReader:
    """Reads what the index wants, and keeps `most` references. `registries` is the state of each that was asked."""

    def __init__(
        self,
        source: Registries,
        index: ImageIndex,
        metrics: Metrics,
        clock: Clock | None = None,
        resolve_seconds: float = RESOLVE_SECONDS,
        most: int = MOST_REFERENCES,
    ) -> None:
        self.registries: dict[str, RegistryState] = {}
        self._source = source
        self._index = index
        self._metrics = metrics
        self._clock = clock or Clock()
        self._resolve_seconds = resolve_seconds
        self._most = most
        self._entries: dict[str, _Entry] = {}
        self._in_hand = 0
        index.reading = True

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    for image in self.take():
                        tasks.create_task(self.read(image))
                    await self._clock.sleep(LOOK_SECONDS)
        finally:
            await self._source.close()

    def take(self) -> list[str]:
        """Take the next images to read: what is new, then what is due first; at most MOST_AT_ONCE are in hand."""
        free, now = MOST_AT_ONCE - self._in_hand, self._clock.now()
        for image in [*self._index.wanted][:free]:
            del self._index.wanted[image]
            if image not in self._entries:
                while len(self._entries) >= self._most:
                    oldest = next(iter(self._entries))
                    del self._entries[oldest]
                    self._index.put(oldest, None)
                self._entries[image] = _Entry()
        due = (image for image, entry in self._entries.items() if entry.due <= now)
        taken = nsmallest(free, due, key=lambda image: self._entries[image].due)
        for image in taken:
            self._entries[image].due = inf
        self._in_hand += len(taken)
        return taken

    async def read(self, image: str) -> None:
        """Read one image, and put what it carries into the index; what was known before stays after a failure."""
        entry = self._entries[image]
        try:
            facts = await self._source.read(image, entry.facts)
        except SourceError as error:
            self._note(image, error.outcome, str(error))
            delay = min(RETRY_SECONDS * 2**entry.failures, LONGEST_RETRY_SECONDS)
            entry.failures = min(entry.failures + 1, 16)
            if error.outcome == "not_allowed":
                self._entries.pop(image, None)
        else:
            self._note(image, "unchanged" if facts is entry.facts else "read")
            entry.failures, delay = 0, inf if "@sha256:" in image else self._resolve_seconds
            entry.facts = facts
            if self._entries.get(image) is entry:
                self._index.put(image, facts)
        finally:
            self._in_hand -= 1
        entry.due = self._clock.now() + delay * (1 + self._clock.chance() / 10)

    def _note(self, image: str, outcome: str, problem: str = "") -> None:
        """Count a reading, and log a registry that begins to fail or answers again, and each image at fault."""
        self._metrics.image_readings.labels(outcome).inc()
        if outcome == "not_allowed":
            return
        registry = read_reference(image).registry
        state = self.registries.setdefault(registry, RegistryState())
        state.problem = problem
        if outcome not in SILENT:
            if state.failing_since is not None:
                event("registry answers again", registry=registry)
            state.failing_since = None
            if problem:
                event("image not read, it is judged by its name", 30, image=image[:200], error=problem)
        elif state.failing_since is None:
            event(
                "registry does not answer, its images are judged by their names", 30, registry=registry, error=problem
            )
            state.failing_since = self._clock.now()

    def measure(self) -> None:
        """Set the gauges of silence."""
        for registry, state in self.status()["registries"].items():
            self._metrics.registry_silence.labels(registry).set(state["failing_seconds"] or 0)

    def status(self) -> Mapping[str, Any]:
        """Return the part of /statusz about images."""
        now = self._clock.now()
        return {
            "references": len(self._entries),
            "known": sum(entry.facts is not None for entry in self._entries.values()),
            "registries": {
                name: {
                    "failing_seconds": None if state.failing_since is None else int(now - state.failing_since),
                    "problem": state.problem or None,
                }
                for name, state in self.registries.items()
            },
        }
