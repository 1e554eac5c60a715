# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher certs controller`: keeps two Secrets and the caBundle of our webhooks as the rotation says (TLS-06).

A turn every few seconds, by wall clock, so that a machine that slept is mended at once (TLS-03). Everything that is
written is guarded by the resourceVersion that was read; places are read before the CA that they are to hold, so that
nobody with an older CA in his hands can write over a newer.
"""

import base64
import binascii
import datetime as dt
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.telemetry.logs import event
from app.tls.authority import KeyPair, service_names
from app.tls.ca_rotation import WAIT_SECONDS, TrustedCAs, read_trust, renew_leaf, renew_trust
from app.tls.kube_objects import CONFLICT, KubeClient, Object
from app.tls.lease import Lease
from app.tls.pem import read_bundle, read_certificate
from app.values.errors import ApiError

TURN_SECONDS = 5.0
"""A caBundle that somebody wiped is back within 10 s (fault 45); some seven small reads."""
STUCK_SECONDS = 180.0
"""A loop that ended no turn for so long is stuck: a turn has some nine requests of 10 s at most each (kube.py)."""
CONFLICT_SECONDS = 0.2
"""Before the next try: no storm of two writers; a guess."""
ROTATE = "gpu-usher.io/rotate"
"""Annotation on the CA's Secret that asks for a new CA; gone when there is one."""
CONFIGURATIONS = (
    "mutatingwebhookconfigurations/gpu-usher",
    "mutatingwebhookconfigurations/gpu-usher-cpu-guard",
    "validatingwebhookconfigurations/gpu-usher",
    "validatingwebhookconfigurations/gpu-usher-policies",
)
"""Those of deploy/; one that is not installed is passed over."""
REGISTRATION = "/apis/admissionregistration.k8s.io/v1/"


@dataclass(frozen=True, slots=True)
class Names:
    """What the controller keeps. `configurations`: plural/name of webhook configurations.

    `others`: names and addresses that the certificate is for besides the Service's, as a sidecar's 127.0.0.1.
    """

    namespace: str = "gpu-usher"
    service: str = "gpu-usher"
    others: tuple[str, ...] = ()
    configurations: tuple[str, ...] = CONFIGURATIONS

    def secret(self, name: str) -> str:
        """Give the path of a Secret: gpu-usher-ca has the CA's key, gpu-usher-tls is what replicas mount."""
        return f"/api/v1/namespaces/{self.namespace}/secrets/gpu-usher-{name}"

    @property
    def served(self) -> tuple[str, ...]:
        """List what the certificate is for."""
        return tuple(dict.fromkeys((*service_names(self.service, self.namespace), *self.others)))

    @property
    def lease(self) -> str:
        """Give the path of the Lease."""
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/gpu-usher-certificates"


class Controller:
    """The one writer. `now` is the wall clock, `clock` seconds of a monotonic one."""

    def __init__(
        self,
        kube: KubeClient,
        names: Names,
        now: Callable[[], dt.datetime],
        clock: Callable[[], float] = time.monotonic,
        wait_seconds: float = WAIT_SECONDS,
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self._kube = kube
        self._names = names
        self._now = now
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._turn_seconds = turn_seconds
        identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._lease = Lease(kube, names.lease, identity, clock)
        self._seen: tuple[bytes, float] | None = None
        self._leading = False
        self._ended = clock()
        self._trouble = "no turn yet"

    def run(self, stop: threading.Event) -> None:
        """Take turns until told to stop, then let go of the Lease."""
        while not stop.is_set():
            stop.wait(self._try_turn())
        if self._leading:
            try:
                self._lease.release()
            except ApiError as error:
                event("lease not released", logging.WARNING, error=str(error))

    def alive(self) -> tuple[bool, str]:
        """Tell whether turns end, whatever becomes of them: a restart mends nothing that the API server lacks."""
        silent = self._clock() - self._ended
        return silent < STUCK_SECONDS, "" if silent < STUCK_SECONDS else f"no turn has ended for {silent:.0f} s"

    def ready(self) -> tuple[bool, str]:
        """Tell whether the last turn found all as it should be, or made it so; waiting for the Lease is fine."""
        return not self._trouble, self._trouble

    def _try_turn(self) -> float:
        """Take a turn, and note how it went; gives the seconds to wait until the next."""
        wait_seconds = self._turn_seconds
        try:
            self._take_turn()
            self._trouble = ""
        except ApiError as error:
            if error.status == CONFLICT:
                event("somebody was faster, reading again", logging.DEBUG, error=str(error))
                wait_seconds = CONFLICT_SECONDS
            else:
                self._seen, self._trouble = None, str(error)
                event("certificates not looked after", logging.ERROR, error=str(error))
        self._ended = self._clock()
        return wait_seconds

    def _take_turn(self) -> None:
        leading = self._lease.hold(self._now())
        if leading != self._leading:
            event("leading" if leading else "not leading, waiting")
            self._leading, self._seen = leading, None
        if leading:
            self.turn()

    def turn(self) -> None:
        """Look at everything once, and write what has to be written.

        Raises ApiError; CONFLICT where somebody else wrote since we read.
        """
        places = {name: self._kube.read(REGISTRATION + name) for name in self._names.configurations}
        served = self._secret("tls")
        kept = self._secret("ca")  # after the places: what we hold is never older than what they hold
        now = self._now()
        leaf, trust = _leaf(served), read_trust(_data(kept, "ca.crt"), _data(kept, "ca.key"))
        asked = ROTATE in (kept["metadata"].get("annotations") or {})
        renewed = renew_trust(trust, leaf, now, asked, _data(served, "ca.crt"))
        if renewed is not trust:
            self._write_trust(kept, renewed)
        published = [self._publish(name, found, renewed) for name, found in places.items() if found is not None]
        published.append(renewed.bundle == _data(served, "ca.crt"))
        seen = self._seen_for(renewed, all(published))
        issued = renew_leaf(leaf, renewed, self._names.served, now, seen, self._wait_seconds)
        if issued is not leaf or not published[-1]:
            self._write_leaf(served, issued, renewed)

    def _secret(self, name: str) -> Object:
        path = self._names.secret(name)
        found = self._kube.read(path)
        if found is None:
            raise ApiError(404, f"{path}: not there: wants deploy/components/self-signed applied")
        return found

    def _seen_for(self, trust: TrustedCAs, everywhere: bool) -> float:
        """Count the seconds for which this process saw the signing CA in every place, without a gap."""
        authority = trust.authority.certificate
        if not everywhere:
            self._seen = None
            return 0.0
        if self._seen is None or self._seen[0] != authority:
            self._seen = (authority, self._clock())
        return self._clock() - self._seen[1]

    def _write_trust(self, kept: Object, trust: TrustedCAs) -> None:
        annotations = {k: v for k, v in (kept["metadata"].get("annotations") or {}).items() if k != ROTATE}
        metadata = {**kept["metadata"], "annotations": annotations}
        data = {"ca.crt": _base64(trust.bundle), "ca.key": _base64(trust.authority.key)}
        self._kube.replace(self._names.secret("ca"), {**kept, "metadata": metadata, "data": data})
        event("trusted CAs written", trusted=1 + len(trust.retired), expires=_end(trust.authority.certificate))

    def _write_leaf(self, served: Object, leaf: KeyPair, trust: TrustedCAs) -> None:
        pem = {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": trust.bundle}
        data = {name: _base64(content) for name, content in pem.items()}
        self._kube.replace(self._names.secret("tls"), {**served, "data": data})
        event("serving certificate written", expires=_end(leaf.certificate), trusted=1 + len(trust.retired))

    def _publish(self, name: str, found: Object, trust: TrustedCAs) -> bool:
        """Put the bundle into a configuration; tells whether it was there already."""
        wanted = _base64(trust.bundle)
        missing = [each for each in found.get("webhooks") or () if each["clientConfig"].get("caBundle") != wanted]
        if missing:
            webhooks = [{"name": each["name"], "clientConfig": {"caBundle": wanted}} for each in missing]
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            self._kube.patch(REGISTRATION + name, {"metadata": version, "webhooks": webhooks})
            event("caBundle written", configuration=name, webhooks=[each["name"] for each in missing])
        return not missing


def _leaf(secret: Object) -> KeyPair | None:
    certificate, key = _data(secret, "tls.crt"), _data(secret, "tls.key")
    return KeyPair(certificate, key) if read_bundle(certificate) and key else None


def _data(secret: Object, name: str) -> bytes:
    """Read a key of a Secret; empty where there is none, or no base64."""
    found: Any = (secret.get("data") or {}).get(name) or ""
    try:
        return base64.b64decode(found)
    except (binascii.Error, ValueError):
        return b""


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _end(certificate: bytes) -> str:
    return f"{read_certificate(certificate).not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
