# SPDX-License-Identifier: Apache-2.0
"""A Lease: at most one controller works at a time, as long as clocks run; its writes are guarded besides.

The rule is client-go's (tools/leaderelection): a holder counts as gone when its record has not changed for the lease
duration by *our* monotonic clock, so that wall clocks are never compared.
"""

import datetime as dt
from collections.abc import Callable

from app.cluster.apiserver import ApiServer
from app.values.errors import CONFLICT, NOT_FOUND, ApiError
from app.values.json_members import Object

DURATION_SECONDS = 15
"""client-go's LeaseDuration; the holder renews the Lease every turn, some 5 s."""


class Lease:
    """One Lease object, which deploy/components/events brings. `clock` returns monotonic seconds."""

    def __init__(self, server: ApiServer, path: str, identity: str, clock: Callable[[], float]) -> None:
        self._server = server
        self._path = path
        self._identity = identity
        self._clock = clock
        self._seen_record: tuple[object, object] = (None, None)
        self._seen_at = clock()

    async def hold(self, now: dt.datetime) -> bool:
        """Acquire or renew the Lease; tell whether we hold it.

        Raises ApiError, also if the Lease does not exist.
        """
        lease = await self._server.read(self._path)
        if lease is None:
            raise ApiError(NOT_FOUND, f"{self._path}: not there: wants deploy/components/events applied")
        spec = lease.get("spec") or {}
        holder, record = spec.get("holderIdentity"), (spec.get("holderIdentity"), spec.get("renewTime"))
        if record != self._seen_record:
            self._seen_record, self._seen_at = record, self._clock()
        duration = spec.get("leaseDurationSeconds") or DURATION_SECONDS
        if holder and holder != self._identity and self._clock() < self._seen_at + duration:
            return False
        return await self._write(lease, self._claim(spec, now))

    async def release(self) -> None:
        """Release the Lease, so that another controller may take over at once.

        Raises ApiError.
        """
        lease = await self._server.read(self._path)
        if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
            await self._write(lease, {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1})

    def _claim(self, spec: Object, now: dt.datetime) -> Object:
        timestamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        acquired = spec.get("holderIdentity") != self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": timestamp,
            "acquireTime": timestamp if acquired else spec.get("acquireTime"),
            "leaseTransitions": (spec.get("leaseTransitions") or 0) + acquired,
        }

    async def _write(self, lease: Object, spec: Object) -> bool:
        try:
            await self._server.replace(self._path, {**lease, "spec": spec})
        except ApiError as error:
            if error.status == CONFLICT:
                return False
            raise
        return True
