# SPDX-License-Identifier: Apache-2.0
"""Tells of policies where people look, and keeps the last good set, by the process that writes Events.

A GPUPolicy gets a condition `Accepted`, a ConfigMap with an error an Event, and the ConfigMap LAST_GOOD the texts of a
set that is whole and in force. A replica that starts with an error serves those
(docs/decisions/0048-start-with-the-last-good-set-of-policies.md).
"""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.cluster.apiserver import ApiServer
from app.cluster.policy_watch import ObjectStatus, PolicyBook
from app.cluster.watched_kinds import policy_of
from app.events.limited_client import LimitedClient
from app.events.planning import NOTE_BYTES, Statement, cut
from app.kube.api_kinds import API_KINDS
from app.kube.pods import ObjectReference
from app.policy.load import LAST_GOOD, MOUNTED
from app.policy.schema import GROUP, STORAGE_VERSION, VERSIONS
from app.telemetry.logs import event
from app.telemetry.logs import now as wall_clock
from app.values.errors import NOT_FOUND, ApiError
from app.values.json_members import Object

LOOK_SECONDS = 2.0
"""Interval at which it is looked whether the policies have changed."""
REPEAT_SECONDS = 60.0
"""After so long what is written is compared again with what is stored, and what has failed is tried again."""
MOST_BYTES = 900_000
"""Of the texts in the ConfigMap of the last good set; the API server takes 1 MiB, with its names and annotations."""
HASH = "gpu-usher.io/policy-hash"
REASON = "PolicyNotAccepted"
ACCEPTED = "Accepted"
_NO_KEY = re.compile(r"[^-._a-zA-Z0-9]+")
_NEWER_VERSION = re.compile(rf"""(apiVersion["']?\s*:\s*["']?{GROUP}/)(?:{"|".join(VERSIONS[1:])})\b""")
_CONFIG_MAP = re.compile(r"configmap [^/]*/([^:]+): ")


class PolicyReporter:
    """Writes what the book says, while `leading` says that this process holds the Lease for Events."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        book: PolicyBook,
        leading: Callable[[], bool],
        policy_error: Callable[[], str | None],
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.statements: dict[ObjectReference, Statement] = {}
        self._client = LimitedClient(server, clock, rest)
        self._config_maps = API_KINDS["ConfigMap"].path(namespace)
        self._namespace = namespace
        self._book = book
        self._leading = leading
        self._policy_error = policy_error
        self._clock = clock
        self._rest = rest
        self._reported: object = None
        self._reported_at = float("-inf")

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            if self._leading():
                await self.look()
            await self._rest(LOOK_SECONDS)

    async def look(self) -> None:
        """Write what has changed since the last look, and compare all of it with what is stored now and then."""
        book, error = self._book, self._policy_error()
        present = book.current.hash, error, book.object_statuses()
        if present == self._reported and self._clock() - self._reported_at < REPEAT_SECONDS:
            return
        self._reported, self._reported_at = present, self._clock()
        for step in (self._keep_last_good, self._tell_config_maps, self._tell_objects):
            try:
                await step()
            except ApiError as failure:
                event("policies not reported", logging.WARNING, error=str(failure))

    async def _keep_last_good(self) -> None:
        """Keep a whole set that is in force. Raises ApiError."""
        texts, digest = self._book.whole_set(), self._book.loaded.hash
        if texts is None or self._policy_error() is not None:
            return
        data = config_map_data(texts)
        if sum(len(text.encode()) for text in data.values()) > MOST_BYTES:
            event("last good policies not kept", logging.WARNING, error=f"more than {MOST_BYTES} bytes")
            return
        path = f"{self._config_maps}/{LAST_GOOD}"
        stored = await self._read(path)
        if stored is None:
            raise ApiError(NOT_FOUND, f"{path}: not there: wants deploy/components/events applied")
        held = stored.get("data") or {}
        if held == data:
            return
        change = {"metadata": {"annotations": {HASH: digest}}, "data": dict.fromkeys(held) | data}
        await self._merge(path, change)
        event("last good policies kept", policies=len(self._book.loaded.policies), hash=digest[:12])

    async def _tell_config_maps(self) -> None:
        """Make a statement of each ConfigMap that has an error, for the writer of Events. Raises ApiError."""
        statements = {}
        for name, problems in config_map_problems(self._book.error or "").items():
            stored = await self._read(f"{self._config_maps}/{name}") or {}
            uid = (stored.get("metadata") or {}).get("uid", "")
            words = f"{'; '.join(problems)}; in force: {self._book.serving}"
            reference = ObjectReference("v1", "ConfigMap", self._namespace, name, uid)
            statements[reference] = Statement(REASON, words, cut(words, NOTE_BYTES))
        self.statements = statements

    async def _tell_objects(self) -> None:
        """Write the status of the GPUPolicies that has changed. Raises ApiError."""
        statuses, digest = self._book.object_statuses(), self._book.current.hash
        if not statuses:
            return
        for path in (API_KINDS["GPUPolicy"].path(version=version) for version in VERSIONS):
            if (listed := await self._read(path)) is not None:
                break
        for item in (listed or {}).get("items") or ():
            name = item["metadata"].get("name", "")
            if (status := statuses.get(name)) is None or policy_of(name, item.get("spec")) != status.content:
                continue  # not read yet; the next look has it
            written = status_document(item, status, digest, f"{wall_clock():%Y-%m-%dT%H:%M:%SZ}")
            if written is not None:
                await self._merge(f"{path}/{name}/status", {"status": written})

    async def _read(self, path: str) -> Object | None:
        await self._client.wait_for_turn(float("inf"))
        return await self._client.read(path)

    async def _merge(self, path: str, change: Mapping[str, Any]) -> None:
        await self._client.wait_for_turn(float("inf"))
        await self._client.merge(path, change)


def config_map_data(texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts by name as the data of a ConfigMap; a name that is no valid key is rewritten, and gets a digest.

    The texts name the storage version, so that replicas of the former release can read them after a rollback.
    """
    return {_key(name): _NEWER_VERSION.sub(rf"\g<1>{STORAGE_VERSION}", text) for name, text in texts.items()}


def _key(name: str) -> str:
    key = _NO_KEY.sub(".", name)
    return key if key == name else f"{key[:200]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def config_map_problems(error: str) -> dict[str, list[str]]:
    """Return the problems of each ConfigMap, without those of GPUPolicies; files are of the one that is mounted."""
    problems: dict[str, list[str]] = {}
    for problem in error.splitlines():
        if not problem.startswith("gpupolicy "):
            named = _CONFIG_MAP.match(problem)
            problems.setdefault(named[1] if named else MOUNTED, []).append(problem)
    return problems


def status_document(item: Object, status: ObjectStatus, digest: str, timestamp: str) -> Object | None:
    """Write the status of a GPUPolicy; None where it is stored already. `digest` is the hash of the set in force."""
    condition = {
        "type": ACCEPTED,
        "status": "True" if status.accepted else "False",
        "reason": status.reason,
        "message": cut(status.message, NOTE_BYTES),
        "observedGeneration": item["metadata"].get("generation", 0),
    }
    stored = item.get("status") or {}
    last: Object = next((known for known in stored.get("conditions") or () if known.get("type") == ACCEPTED), {})
    if stored.get("hash") == digest[:12] and condition.items() <= last.items():
        return None
    changed = last.get("status") != condition["status"]
    since = timestamp if changed else last.get("lastTransitionTime", timestamp)
    return {"hash": digest[:12], "conditions": [{**condition, "lastTransitionTime": since}]}
