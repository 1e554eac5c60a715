# SPDX-License-Identifier: Apache-2.0
"""Reads the images that pods name, in the background, and puts what they carry into the index.

No request waits for it. What is read is kept by reference and shared by digest; a tag is looked up again after a time,
and a registry that failed is asked again after a growing one. Everything is bounded: references, bytes, readings at
once, and seconds (app/images/registry.py).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from app.cluster.reflector import Clock
from app.images.documents import read_reference
from app.images.registry import Registries
from app.knowledge.image_configs import ImageFacts
from app.telemetry.logs import event
from app.telemetry.metrics import Metrics
from app.values.errors import BadInput, RegistryError
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
LASTING = frozenset(
    {"address", "not_allowed", "not_found", "unauthorized", "malformed", "too_large", "digest", "redirect"}
)
"""Outcomes that are a fault of the image or of the operator's file, and not of a registry that does not answer."""
MOST_REGISTRIES = 100
"""Registries whose state is kept; only those that the operator lists are asked."""


@dataclass(slots=True)
class _Entry:
    """A reference: what was read of it, when it is due again (infinity for a digest), and failures since."""

    facts: ImageFacts | None = None
    due: float = 0.0
    failures: int = 0


@dataclass(slots=True)
class RegistryState:
    """When a registry last answered and since when it does not, in seconds of the clock; `problem` says why."""

    answered: float | None = None
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
        self._by_digest: WeakValueDictionary[str, ImageFacts] = WeakValueDictionary()
        self._in_hand: set[str] = set()
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
        """Take the next images to read: what is wanted, then what is due; at most MOST_AT_ONCE are in hand."""
        free, now = MOST_AT_ONCE - len(self._in_hand), self._clock.now()
        taken: list[str] = []
        while self._index.wanted and len(taken) < free:
            image = next(iter(self._index.wanted))
            del self._index.wanted[image]
            if image not in self._entries and image not in self._in_hand:
                self._make_room()
                self._entries[image] = _Entry()
                taken.append(image)
        if len(taken) < free:
            due = (name for name, entry in self._entries.items() if entry.due <= now)
            taken += [name for name in due if name not in self._in_hand and name not in taken][: free - len(taken)]
        self._in_hand.update(taken)
        return taken

    def _make_room(self) -> None:
        while len(self._entries) >= self._most:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            self._index.put(oldest, None)

    async def read(self, image: str) -> None:
        """Read one image, and put what it carries into the index; what was known before stays after a failure."""
        entry = self._entries[image]
        try:
            facts = await self._source.read(image, entry.facts.digest if entry.facts else "")
            self._note(image, "read" if facts else "unchanged", "")
            if facts is not None:
                entry.facts = self._by_digest.setdefault(facts.digest, facts)
                if self._entries.get(image) is entry:
                    self._index.put(image, entry.facts)
            entry.failures = 0
            pinned = "@sha256:" in image
            entry.due = (
                float("inf") if pinned else self._clock.now() + self._resolve_seconds * (1 + self._clock.chance() / 10)
            )
        except RegistryError as error:
            self._note(image, error.outcome, str(error))
            delay = min(RETRY_SECONDS * 2**entry.failures, LONGEST_RETRY_SECONDS)
            entry.failures = min(entry.failures + 1, 16)
            entry.due = self._clock.now() + delay * (1 + self._clock.chance() / 10)
        finally:
            self._in_hand.discard(image)

    def _note(self, image: str, outcome: str, problem: str) -> None:
        """Count a reading, and log a registry that begins to fail or answers again, and each image at fault."""
        self._metrics.image_readings.labels(outcome).inc()
        try:
            registry = read_reference(image).registry
        except BadInput:
            return
        now = self._clock.now()
        if outcome == "not_allowed" or (registry not in self.registries and len(self.registries) >= MOST_REGISTRIES):
            return
        state = self.registries.setdefault(registry, RegistryState())
        if not problem or outcome in LASTING:
            if state.failing_since is not None:
                event("registry answers again", registry=registry)
            state.answered, state.failing_since, state.problem = now, None, ""
        elif state.failing_since is None:
            event(
                "registry does not answer, its images are judged by their names", 30, registry=registry, error=problem
            )
            state.failing_since = now
        if problem and outcome in LASTING:
            event("image not read, it is judged by its name", 30, image=image[:200], error=problem)
        if problem:
            state.problem = problem

    def measure(self) -> None:
        """Set the gauges."""
        now = self._clock.now()
        since = [state.failing_since for state in self.registries.values() if state.failing_since is not None]
        self._metrics.image_references.set(sum(entry.facts is not None for entry in self._entries.values()))
        self._metrics.registry_silence.set(now - min(since) if since else 0.0)

    def status(self) -> Mapping[str, Any]:
        """Return the part of /statusz about images."""
        now = self._clock.now()
        return {
            "references": len(self._entries),
            "known": sum(entry.facts is not None for entry in self._entries.values()),
            "registries": {
                name: {
                    "answered_seconds_ago": None if state.answered is None else int(now - state.answered),
                    "failing_seconds": None if state.failing_since is None else int(now - state.failing_since),
                    "problem": state.problem or None,
                }
                for name, state in self.registries.items()
            },
        }
