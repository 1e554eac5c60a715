# SPDX-License-Identifier: Apache-2.0
"""The policies in force, the last error, and the watch that loads edited policies.

Policies come from a directory and from sources in the cluster: `configmap <namespace>/<name>` with texts by key, and
`gpupolicy <name>` with a parsed object. An invalid edit never replaces a valid set; its error stays visible until it is
corrected. A process that starts with an invalid set serves the last good one, which a ConfigMap keeps, or else what is
valid (docs/decisions/0048-start-with-the-last-good-set-of-policies.md). The directory is watched, not its files,
because an inotify watch on a mounted file misses updates of a ConfigMap (1 of 8 seen,
docs/reference/measurements.md#reloading). It is polled as well, which costs a few microseconds.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from app.cluster.files import NO_FILE, is_policy_file, policy_files, shipped_default
from app.cluster.time_slices import in_slices
from app.knowledge.tables import Knowledge
from app.policy.compiled import CompiledPolicy, PolicySet, expired_exceptions, in_force
from app.policy.document import LARGEST_POLICY_BYTES, most_values_in
from app.policy.load import LAST_GOOD, MOUNTED, ReadSource, Source, load_policies
from app.values.computations import finish
from app.values.errors import PolicyError

CONFIGMAP = "configmap"
GPUPOLICY = "gpupolicy"
"""Kinds of sources: the first word of a source's name. They are loaded in this order, after the directory."""
MOST_TEXTS = 256
"""Keys of a ConfigMap. One key per policy is usual, and a set has no more policies than twice that."""
MOST_MARKS = 100_000
"""Characters that separate values, in all texts of a ConfigMap. Policies that fill its 1 MiB have 80,000 (measured on
the shipped ones); as many values take 2 s to read, in steps."""
POLL_SECONDS = 1.0
"""Interval of the polls: an edit is loaded within two seconds even if inotify reports nothing."""
AS_WRITTEN, LAST_GOOD_SET, VALID_ONES = "as written", "last good set", "valid policies alone"
"""What is in force, in words: all sources as they are written; the set before an error; or, of a process that has
started with an error and found no last good set, the sources without errors and the shipped default."""

Texts = Mapping[str, str]
Sources = Mapping[str, Mapping[str, Any]]
Parsed = dict[str, tuple[Source, ReadSource]]
ReadSteps = Callable[[Texts, Sources, Parsed], Generator[None, None, PolicySet]]


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The result of an attempt to load policies. `error` is None if the set was loaded."""

    policies: int
    hash: str
    error: str | None


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """What has become of a GPUPolicy: `content` is what was read of it, `reason` and `message` say why."""

    content: Mapping[str, Any]
    accepted: bool
    reason: str
    message: str


Checked = tuple[str | None, tuple[CompiledPolicy, ...]]
"""The problems of an edit, None if it has none, and its policies."""


class PolicyBook:
    """The policies in force. `loaded` is the set as written, `current` as it applies today.

    With `live`, sources from a cluster are still to come, and an invalid set at the start is served around instead of
    raised. `serving` says in words what is in force. `awaiting_last_good` is true from such a start until the last good
    set was looked for. `_has_good_set` is true once a whole set has been loaded; an invalid edit then leaves the last
    valid set in force.
    """

    def __init__(self, directory: Path, knowledge: Knowledge, today: Callable[[], str], live: bool = False) -> None:
        self._directory = directory
        self._today = today
        self._read: ReadSteps = partial(read_sources, knowledge, shipped_default(knowledge))
        self._problems = partial(_problems, self._read)
        self._read_fingerprint = fingerprint(directory)
        self._texts, self._unreadable = policy_files(directory)
        self._sources: dict[str, Mapping[str, Any]] = {}
        self._parsed: Parsed = {}
        self._last_good: Texts = {}
        self._sources_changed = False
        self._has_good_set, self._all_listed, self._config_maps_listed = not live, not live, False
        self._wake_up = asyncio.Event()
        self.error: str | None = None
        self.awaiting_last_good = False
        self.serving = AS_WRITTEN
        try:
            self.loaded = finish(self._read_all(self._parsed))
        except PolicyError as error:
            if not live or not directory.is_dir():
                raise
            self.error, self.awaiting_last_good = str(error), True
            self.loaded, self.serving = finish(read_around(self._read, self._texts, {}, {}, self._parsed))
        self._day = today()
        self.current = in_force(self.loaded, self._day)

    def load(self) -> Generator[None, None, LoadOutcome]:
        """Load all policies again, without parsing unchanged ones; a set with an error leaves the last valid one."""
        parsed, looked_for = self._parsed.copy(), self._config_maps_listed
        self._sources_changed = False
        self._read_fingerprint = fingerprint(self._directory)
        self._texts, self._unreadable = policy_files(self._directory)
        try:
            loaded = yield from self._read_all(parsed)
        except PolicyError as error:
            self.error = str(error)
            if self._has_good_set:
                self.serving = LAST_GOOD_SET
            else:
                steps = read_around(self._read, self._texts, self._sources, self._last_good, parsed)
                loaded, self.serving = yield from steps
                self._set_current(loaded)
        else:
            self.error, self.serving = None, AS_WRITTEN
            self._has_good_set = self._has_good_set or self._all_listed
            self._set_current(loaded)
        self.awaiting_last_good = self.awaiting_last_good and self.error is not None and not looked_for
        names = {*self._texts, *(name for source in self._sources for name in self._names(source))}
        self._parsed = {name: document for name, document in parsed.items() if name in names}
        return LoadOutcome(len(self.loaded.policies), self.current.hash, self.error)

    def _names(self, source: str) -> Iterator[str]:
        """Return the names under which a source is parsed: one for each of its texts, or that of the object."""
        content = self._sources.get(source, {})
        return iter([source] if _is_object(source) else [f"{source}: {key}" for key in content])

    def _read_all(self, parsed: Parsed) -> Generator[None, None, PolicySet]:
        """Load the directory as last read and all sources. Raises PolicyError, also for a file that cannot be read."""
        problems = self._unreadable
        try:
            loaded = yield from self._read(self._texts, self._sources, parsed)
        except PolicyError as error:
            raise PolicyError((*problems, *error.problems)) from error
        if problems:
            raise PolicyError(problems)
        return loaded

    def check(self, source: str, content: Mapping[str, Any]) -> Generator[None, None, Checked]:
        """Return the problems that a new or changed source would cause, and the policies that it holds.

        A source is a ConfigMap's texts or a GPUPolicy.

        The texts of the ConfigMap that is mounted as the directory replace those of the directory. None if it would
        cause no problem. Problems that exist without the source are not counted.
        """
        parsed = self._parsed.copy()
        others = {name: other for name, other in self._sources.items() if name != source}
        if source.startswith(CONFIGMAP) and source.endswith(f"/{MOUNTED}"):
            files = {key: text for key, text in content.items() if is_policy_file(key)}
            problem = _oversized(source, files) if files else f"{source}: {NO_FILE}"
            if problem:
                return problem, ()
            problems = yield from self._problems(files, others, parsed)
            without = (yield from self._problems({}, others, parsed)) if problems else ()
        else:
            files = {}
            problems = yield from self._problems(self._texts, {**others, source: content}, parsed)
            without = (yield from self._problems(self._texts, others, parsed)) if problems else ()
        caused = tuple(
            f"{source}: {problem}" if problem.split(":")[0] in files else problem
            for problem in problems
            if problem not in without
        )
        names = files or ([source] if _is_object(source) else [f"{source}: {key}" for key in content])
        read = [parsed[name][1] for name in names if name in parsed]
        policies = tuple(policy for result in read if not isinstance(result, PolicyError) for policy in result)
        return (str(PolicyError(caused)) if caused else None), policies

    def whole_set(self) -> dict[str, str] | None:
        """Return the texts of all sources by name, GPUPolicies as JSON; None unless all are listed and in force."""
        if self.error or not self._all_listed or self._sources_changed:
            return None
        texts = dict(self._texts)
        for source, content in self._sources.items():
            if _is_object(source):
                texts[source] = json.dumps(content)
            else:
                texts |= {f"{source}: {key}": text for key, text in content.items()}
        return texts

    def object_statuses(self) -> dict[str, ObjectStatus]:
        """Return what has become of each GPUPolicy, by its name."""
        problems = self.error.splitlines() if self.error else []
        in_force_now = {policy.name: policy.spec for policy in self.loaded.policies}
        statuses = {}
        for source, content in self._sources.items():
            if not _is_object(source) or source not in self._parsed or self._parsed[source][0] != content:
                continue
            own = [problem for problem in problems if problem.startswith(f"{source}: ")]
            read = self._parsed[source][1]
            if own:
                status = ObjectStatus(content, False, "Invalid", "; ".join(own))
            elif not isinstance(read, PolicyError) and all(
                in_force_now.get(policy.name) == policy.spec for policy in read
            ):
                status = ObjectStatus(content, True, "InForce", "the policy is in force")
            else:
                reason = f"the policy is valid, but waits until the set is: {problems[0] if problems else ''}"
                status = ObjectStatus(content, False, "SetInvalid", reason)
            statuses[source.removeprefix(f"{GPUPOLICY} ")] = status
        return statuses

    def put_config_map(self, key: str, texts: Texts) -> None:
        """Take in a ConfigMap of our namespace: a source of policies, or the last good set.

        The one that is mounted as the directory is read there, whatever label it has.
        """
        name = key.rpartition("/")[2]
        if name == LAST_GOOD:
            self._last_good = texts
            if self.error and not self._has_good_set:
                self._sources_have_changed()
        elif name != MOUNTED:
            self.put_source(f"{CONFIGMAP} {key}", texts)

    def config_maps_listed(self) -> None:
        """Note that the ConfigMaps were listed, and with them the last good set if there is one."""
        self._config_maps_listed = True
        if self.awaiting_last_good:
            self._sources_have_changed()

    def all_listed(self) -> None:
        """Note that every kind of source was listed: a set that loads from now on is a whole one."""
        self._all_listed = True
        self._has_good_set = self._has_good_set or (self.error is None and not self._sources_changed)

    def put_source(self, source: str, content: Mapping[str, Any]) -> None:
        """Add or change a source of policies; `follow` loads it."""
        if self._sources.get(source) != content:
            self._sources[source] = content
            self._sources_have_changed()

    def drop_source(self, source: str) -> None:
        """Remove a source of policies; `follow` loads the others."""
        if self._sources.pop(source, None) is not None:
            self._sources_have_changed()

    def _sources_have_changed(self) -> None:
        self._sources_changed = True
        self._wake_up.set()

    def apply_new_day(self) -> bool:
        """Apply what depends on the day (enforceFrom, expired exceptions); tell whether the day changed."""
        if self._today() == self._day:
            return False
        self._set_current(self.loaded)
        return True

    def expired_exceptions(self) -> tuple[tuple[str, str, str], ...]:
        """Return the expired exceptions: (policy, owner, day)."""
        return expired_exceptions(self.loaded, self._day)

    def _set_current(self, loaded: PolicySet) -> None:
        self._day = self._today()
        self.loaded, self.current = loaded, in_force(loaded, self._day)

    async def follow(self, on_load: Callable[[LoadOutcome], None]) -> None:
        """Load again whenever the directory or a source changes; `on_load` is called after every attempt.

        An edit since the last load counts, also one from before this call.
        """
        async for _ in _wake_ups(self._directory, self._wake_up):
            if fingerprint(self._directory) != self._read_fingerprint or self._sources_changed:
                on_load(await in_slices(self.load()))


def read_sources(
    knowledge: Knowledge, fallback: CompiledPolicy | None, directory: Texts, sources: Sources, parsed: Parsed
) -> Generator[None, None, PolicySet]:
    """Load the texts of the directory, then ConfigMaps and GPUPolicies, sorted by name.

    Raises PolicyError.
    """
    texts, objects = dict(directory), {}
    problems: list[str] = []
    for source, content in sorted(sources.items()):
        if _is_object(source):
            objects[source] = content
        elif problem := _oversized(source, content):
            problems.append(problem)
        else:
            texts |= {f"{source}: {key}": text for key, text in sorted(content.items())}
    try:
        loaded = yield from load_policies(texts, knowledge, fallback, objects, parsed)
    except PolicyError as error:
        raise PolicyError((*problems, *error.problems)) from error
    if problems:
        raise PolicyError(tuple(problems))
    return loaded


def read_around(
    read: ReadSteps, texts: Texts, sources: Sources, last_good: Texts, parsed: Parsed
) -> Generator[None, None, tuple[PolicySet, str]]:
    """Load what can be served of a set with errors, and say in words what that is: the last good set, if there is one.

    Without one, each file and source that brings an error is left out; pods that no other matches get the default.
    """
    if last_good and not (yield from _problems(read, last_good, {}, {})):
        return (yield from read(last_good, {}, {})), LAST_GOOD_SET
    parts: list[tuple[Texts, Sources]] = [({name: text}, {}) for name, text in texts.items()]
    parts += [({}, {source: content}) for source, content in sorted(sources.items())]
    valid: tuple[Texts, Sources] = {}, {}
    for own_texts, own_sources in parts:
        more = {**valid[0], **own_texts}, {**valid[1], **own_sources}
        if not (yield from _problems(read, own_texts, own_sources, parsed)) and not (
            yield from _problems(read, *more, parsed)
        ):
            valid = more
    return (yield from read(*valid, parsed)), VALID_ONES


def _problems(
    read: ReadSteps, texts: Texts, sources: Sources, parsed: Parsed
) -> Generator[None, None, tuple[str, ...]]:
    try:
        yield from read(texts, sources, parsed)
    except PolicyError as error:
        return error.problems
    return ()


def _is_object(source: str) -> bool:
    return source.split(" ")[0] == GPUPOLICY


def _oversized(source: str, content: Mapping[str, Any]) -> str | None:
    """Return the problem of a ConfigMap that is too large as a whole, beyond the limits of its texts."""
    if len(content) > MOST_TEXTS:
        return f"{source}: {len(content)} keys, wants at most {MOST_TEXTS}: use several ConfigMaps"
    size = sum(map(len, content.values()))
    if size > LARGEST_POLICY_BYTES:
        return f"{source}: {size} characters, wants at most {LARGEST_POLICY_BYTES}: use several ConfigMaps"
    if sum(map(most_values_in, content.values())) > MOST_MARKS:
        return f"{source}: more than {MOST_MARKS} lines, commas, colons and brackets: use several ConfigMaps"
    return None


async def _wake_ups(directory: Path, wake_up: asyncio.Event) -> AsyncIterator[None]:
    """Yield when something may have changed: on inotify, on `wake_up`, and at least every POLL_SECONDS."""
    stop = asyncio.Event()

    async def listen() -> None:
        from watchfiles import awatch  # only a server watches files

        async for _ in awatch(directory, stop_event=stop, debounce=50, step=20):
            wake_up.set()

    listener = asyncio.create_task(listen())
    try:
        while True:
            yield
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):  # wait_for can lose a cancellation that meets the event
                    await wake_up.wait()
            wake_up.clear()
    finally:
        stop.set()
        listener.cancel()


def fingerprint(directory: Path) -> tuple[object, ...]:
    """Return a value that changes with a directory's content: names, sizes, times, and the targets of links."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        return tuple((entry.name, os.path.realpath(entry.path), *_stamp(entry)) for entry in entries)
    except OSError as error:
        return ("unreadable", error.errno)


def _stamp(entry: os.DirEntry[str]) -> tuple[int, int, int]:
    try:
        stat = entry.stat()
    except OSError:
        return (0, 0, 0)
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
