# SPDX-License-Identifier: Apache-2.0
"""Policies as people edit them: the set in force, the last error, and the watch that takes edits in.

They come from a directory, and from sources in the cluster: `configmap <namespace>/<name>` with texts by key,
`gpupolicy <name>` with an object that came parsed. A bad edit never replaces a good set; it stays visible until it is
mended. The directory is watched, never a file (an inotify watch on a mounted file misses ConfigMap updates: 1 of 8
seen, docs/reference/measurements.md#reloading), and polled besides, because a poll costs a few microseconds and a
missed edit costs trust.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchfiles import awatch

from app.cluster.files import policy_texts, shipped_default
from app.knowledge.tables import Knowledge
from app.policy.calendar import expired_exceptions, in_force
from app.policy.compiled import PolicySet
from app.policy.document import LARGEST_BYTES, most_values_in
from app.policy.load import Read, Source, load_steps
from app.values.errors import PolicyError
from app.values.steps import finish

CONFIGMAP = "configmap"
GPUPOLICY = "gpupolicy"
"""Kinds of sources: the first word of a source's name. They are loaded in this order, after the directory."""
MOST_TEXTS = 256
"""Keys of a ConfigMap; one a policy is usual, and a set has no more policies than twice that."""
MOST_MARKS = 100_000
"""Characters that separate values, in all texts of a ConfigMap: policies that fill its 1 MiB have 80,000 (measured on
the shipped ones), and as many values take 2 s to read, in steps."""
POLL_SECONDS = 1.0
"""An edit is live within two seconds of the swap even where inotify says nothing."""


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What an attempt to load came to: `error` is None where the set was taken."""

    policies: int
    hash: str
    error: str | None


class PolicyBook:
    """The policies in force. `loaded` is as written, `current` as it applies today.

    `_whole`: a set with sources from the cluster in it was good since the start, so that there is one to stay with.
    """

    def __init__(self, directory: Path, knowledge: Knowledge, today: Callable[[], str]) -> None:
        self._directory = directory
        self._knowledge = knowledge
        self._today = today
        self._fallback = shipped_default(knowledge)
        self._texts = policy_texts(directory)
        self._sources: dict[str, Mapping[str, Any]] = {}
        self._known: dict[str, tuple[Source, Read]] = {}
        self._sources_changed = False
        self._whole = False
        self._told = asyncio.Event()
        self.error: str | None = None
        self.loaded = finish(self._read(self._sources, self._known))
        self._day = today()
        self.current = in_force(self.loaded, self._day)

    def load(self) -> LoadOutcome:
        """Read the directory again; a set with any error leaves the last good one in force."""
        return finish(self.load_steps())

    def load_steps(self) -> Generator[None, None, LoadOutcome]:
        """Load in steps; what is as it was is not read again."""
        known = self._known.copy()
        try:
            self._texts = policy_texts(self._directory)
            loaded = yield from self._read(self._sources, known)
        except PolicyError as error:
            self.error = str(error)
            if not self._whole:
                yield from self._take_what_is_good(known)
        else:
            self.error, self._whole = None, self._whole or bool(self._sources)
            self._take(loaded)
        names = {*self._texts, *(name for source in self._sources for name in self._names(source))}
        self._known = {name: each for name, each in known.items() if name in names}
        return LoadOutcome(len(self.loaded.policies), self.current.hash, self.error)

    def _names(self, source: str) -> Iterator[str]:
        """Name what a source is read as: each of its texts, or the one object."""
        content = self._sources.get(source, {})
        return iter([source] if _is_object(source) else [f"{source}: {key}" for key in content])

    def _take_what_is_good(self, known: dict[str, tuple[Source, Read]]) -> Generator[None, None, None]:
        """Take the sources that bring no problem, where there is no last good set to stay with: we have just started.

        What came in while we were down costs its own policies only, not everybody's.
        """
        good: dict[str, Mapping[str, Any]] = {}
        for source, content in sorted(self._sources.items()):
            if not (yield from self._problems({**good, source: content}, known)):
                good[source] = content
        if not (yield from self._problems(good, known)):
            self._take((yield from self._read(good, known)))

    def _read(
        self, sources: Mapping[str, Mapping[str, Any]], known: dict[str, tuple[Source, Read]]
    ) -> Generator[None, None, PolicySet]:
        """Load the directory as last read, then ConfigMaps and GPUPolicies, each by name.

        Raises PolicyError.
        """
        texts, objects = dict(self._texts), {}
        problems: list[str] = []
        for source, content in sorted(sources.items()):
            if _is_object(source):
                objects[source] = content
            elif problem := _oversized(source, content):
                problems.append(problem)
            else:
                texts |= {f"{source}: {key}": text for key, text in sorted(content.items())}
        try:
            loaded = yield from load_steps(texts, objects, self._knowledge, self._fallback, known)
        except PolicyError as error:
            raise PolicyError((*problems, *error.problems)) from error
        if problems:
            raise PolicyError(tuple(problems))
        return loaded

    def check(self, source: str, content: Mapping[str, Any]) -> str | None:
        """Say at once what check_steps says."""
        return finish(self.check_steps(source, content))

    def check_steps(self, source: str, content: Mapping[str, Any]) -> Generator[None, None, str | None]:
        """Say what would be wrong if a source were added or replaced: a ConfigMap's texts or a GPUPolicy object.

        In steps. None if nothing would be; what is wrong without it is not held against it.
        """
        known = self._known.copy()
        others = {name: each for name, each in self._sources.items() if name != source}
        found = yield from self._problems({**others, source: content}, known)
        without = (yield from self._problems(others, known)) if found else ()
        brought = tuple(each for each in found if each not in without)
        return str(PolicyError(brought)) if brought else None

    def _problems(
        self, sources: Mapping[str, Mapping[str, Any]], known: dict[str, tuple[Source, Read]]
    ) -> Generator[None, None, tuple[str, ...]]:
        try:
            yield from self._read(sources, known)
        except PolicyError as error:
            return error.problems
        return ()

    def put_source(self, source: str, content: Mapping[str, Any]) -> None:
        """Take in a source of policies, new or changed; `follow` loads it."""
        if self._sources.get(source) != content:
            self._sources[source] = content
            self._tell()

    def drop_source(self, source: str) -> None:
        """Forget a source of policies."""
        if self._sources.pop(source, None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._sources_changed = True
        self._told.set()

    def turn_page(self) -> bool:
        """Apply what a new day brings (enforceFrom, expired exceptions); tells whether the day changed."""
        if self._today() == self._day:
            return False
        self._take(self.loaded)
        return True

    def expired_exceptions(self) -> tuple[tuple[str, str, str], ...]:
        """List the exceptions that are over: (policy, owner, day)."""
        return expired_exceptions(self.loaded, self._day)

    def _take(self, loaded: PolicySet) -> None:
        self._day = self._today()
        self.loaded, self.current = loaded, in_force(loaded, self._day)

    async def follow(self, on_load: Callable[[LoadOutcome], None]) -> None:
        """Load again whenever the directory or a source changes, for ever; `on_load` hears of every attempt."""
        seen = fingerprint(self._directory)
        async for _ in _wakes(self._directory, self._told):
            now = fingerprint(self._directory)
            if now != seen or self._sources_changed:
                seen, self._sources_changed = now, False
                on_load(await _rested(self.load_steps()))


def _is_object(source: str) -> bool:
    return source.split(" ")[0] == GPUPOLICY


def _oversized(source: str, content: Mapping[str, Any]) -> str | None:
    """Bound a ConfigMap as a whole, which is more than the limits of its texts."""
    if len(content) > MOST_TEXTS:
        return f"{source}: {len(content)} keys, wants at most {MOST_TEXTS}: use several ConfigMaps"
    size = sum(map(len, content.values()))
    if size > LARGEST_BYTES:
        return f"{source}: {size} characters, wants at most {LARGEST_BYTES}: use several ConfigMaps"
    if sum(map(most_values_in, content.values())) > MOST_MARKS:
        return f"{source}: more than {MOST_MARKS} lines, commas, colons and brackets: use several ConfigMaps"
    return None


async def _rested(steps: Generator[None, None, LoadOutcome]) -> LoadOutcome:
    """Load while requests are answered between the steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            taken: LoadOutcome = end.value
            return taken
        await asyncio.sleep(0)


async def _wakes(directory: Path, told: asyncio.Event) -> AsyncIterator[None]:
    """Yield whenever something may have changed: told by inotify or through `told`, or by the clock."""
    stop = asyncio.Event()

    async def listen() -> None:
        async for _ in awatch(directory, stop_event=stop, debounce=50, step=20):
            told.set()

    listener = asyncio.create_task(listen())
    try:
        while True:
            yield
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):  # wait_for swallows a cancellation that meets the event
                    await told.wait()
            told.clear()
    finally:
        stop.set()
        listener.cancel()


def fingerprint(directory: Path) -> tuple[object, ...]:
    """Tell one content of a directory from another without reading it: names, sizes, times, and what links lead to."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        return tuple((entry.name, os.path.realpath(entry.path), *_stamp(entry)) for entry in entries)
    except OSError as error:
        return ("unreadable", error.errno)


def _stamp(entry: os.DirEntry[str]) -> tuple[int, int, int]:
    try:
        found = entry.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
