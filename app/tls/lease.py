# SPDX-License-Identifier: Apache-2.0
"""A Lease: at most one of us works at a time, as long as clocks run; what is written is guarded besides.

The rule is client-go's (tools/leaderelection): a holder counts as gone when its record has not changed for a lease's
duration of *our* monotonic clock, so that no two wall clocks are compared.
"""

import datetime as dt
from collections.abc import Callable

from app.tls.kube_objects import CONFLICT, KubeClient, Object
from app.values.errors import ApiError

DURATION_SECONDS = 15
"""client-go's LeaseDuration; a holder renews it every turn, some 5 s."""


class Lease:
    """One Lease object, which must be there. `clock`: seconds, monotonic."""

    def __init__(self, kube: KubeClient, path: str, identity: str, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._path = path
        self._identity = identity
        self._clock = clock
        self._record: tuple[object, object] = (None, None)
        self._noticed = clock()

    def hold(self, now: dt.datetime) -> bool:
        """Take or renew the Lease; tells whether it is ours.

        Raises ApiError, also where there is no such object.
        """
        found = self._kube.read(self._path)
        if found is None:
            raise ApiError(404, f"{self._path}: not there: wants deploy/components/self-signed applied")
        spec = found.get("spec") or {}
        holder, record = spec.get("holderIdentity"), (spec.get("holderIdentity"), spec.get("renewTime"))
        if record != self._record:
            self._record, self._noticed = record, self._clock()
        patience = spec.get("leaseDurationSeconds") or DURATION_SECONDS
        if holder and holder != self._identity and self._clock() < self._noticed + patience:
            return False
        return self._write(found, self._claim(spec, now))

    def release(self) -> None:
        """Let another take over at once; that it cannot be said is no harm.

        Raises ApiError.
        """
        found = self._kube.read(self._path)
        if found is not None and (found.get("spec") or {}).get("holderIdentity") == self._identity:
            self._write(found, {**found["spec"], "holderIdentity": "", "leaseDurationSeconds": 1})

    def _claim(self, spec: Object, now: dt.datetime) -> Object:
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        taken = spec.get("holderIdentity") != self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": stamp,
            "acquireTime": stamp if taken else spec.get("acquireTime"),
            "leaseTransitions": (spec.get("leaseTransitions") or 0) + taken,
        }

    def _write(self, found: Object, spec: Object) -> bool:
        try:
            self._kube.replace(self._path, {**found, "spec": spec})
        except ApiError as error:
            if error.status == CONFLICT:
                return False
            raise
        return True
