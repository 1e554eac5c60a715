# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher certs controller`: keeps two Secrets and the caBundle of our webhooks and API up to date.

A turn runs every few seconds by wall clock, so that a machine that slept is up to date at once. Every write is
guarded by the resourceVersion that was read. Webhooks are read before the CA, so that a controller with an outdated CA
cannot overwrite a newer one.

A turn in which nothing has changed makes nine requests: it reads the Lease, the four webhook configurations, the
APIService and the two Secrets, and renews the Lease. A turn that changes all of these makes seven more. The first
request that fails ends a turn.
"""

import base64
import binascii
import datetime as dt
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from app.cluster.apiserver import MERGE, ApiServer
from app.telemetry.logs import event
from app.tls.authority import KeyPair, service_names
from app.tls.ca_rotation import WAIT_SECONDS, TrustedCAs, read_trust, renew_leaf, renew_trust
from app.tls.lease import Lease
from app.tls.pem import read_bundle, read_certificate
from app.values.errors import CONFLICT, NOT_FOUND, ApiError
from app.values.json_members import Object

TURN_SECONDS = 5.0
"""Interval of turns. Half of the 10 s within which a deleted caBundle is written again."""
STUCK_SECONDS = 180.0
"""Without a finished turn for so long the loop counts as stuck. The longest turn takes less: 16 requests that each take
just under OBJECT_SECONDS of cluster/apiserver.py take 160 s."""
CONFLICT_SECONDS = 0.2
"""Before the next try after a conflict, so that two writers do not retry in a loop; a guess."""
ROTATE = "gpu-usher.io/rotate"
"""Annotation on the CA's Secret that requests a new CA; it is removed when there is one."""
CONFIGURATIONS = (
    "mutatingwebhookconfigurations/gpu-usher",
    "mutatingwebhookconfigurations/gpu-usher-cpu-guard",
    "mutatingwebhookconfigurations/gpu-usher-queued-jobs",
    "validatingwebhookconfigurations/gpu-usher",
    "validatingwebhookconfigurations/gpu-usher-policies",
)
"""The webhook configurations of deploy/; one that is not installed is skipped."""
REGISTRATION = "/apis/admissionregistration.k8s.io/v1/"
API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.explain.gpu-usher.io"
"""The aggregated API of deploy/components/explain-api; skipped where it is not installed."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the objects that the controller keeps. `configurations` are plural/name of webhook configurations.

    `others` are names and addresses of the certificate besides the Service's, for example 127.0.0.1 of a sidecar.
    """

    namespace: str = "gpu-usher"
    service: str = "gpu-usher"
    others: tuple[str, ...] = ()
    configurations: tuple[str, ...] = CONFIGURATIONS

    def secret(self, name: str) -> str:
        """Return the path of a Secret: gpu-usher-ca has the CA's key, replicas mount gpu-usher-tls."""
        return f"/api/v1/namespaces/{self.namespace}/secrets/gpu-usher-{name}"

    @property
    def served(self) -> tuple[str, ...]:
        """The names and addresses of the certificate."""
        return tuple(dict.fromkeys((*service_names(self.service, self.namespace), *self.others)))

    @property
    def lease(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/gpu-usher-certificates"


class Controller:
    """Keeps a cluster's certificates while it holds the Lease. `now` is the wall clock, `clock` a monotonic one."""

    stuck_seconds = STUCK_SECONDS

    def __init__(
        self,
        server: ApiServer,
        names: Names,
        now: Callable[[], dt.datetime],
        clock: Callable[[], float] = time.monotonic,
        wait_seconds: float = WAIT_SECONDS,
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self._server = server
        self._names = names
        self._now = now
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._turn_seconds = turn_seconds
        identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._lease = Lease(server, names.lease, identity, clock)
        self._seen: tuple[bytes, float] | None = None
        self._leading = False

    async def try_turn(self) -> tuple[str | None, float]:
        """Take a turn; return its problem and the seconds to the next. Waiting for the Lease counts as success."""
        try:
            leading = await self._lease.hold(self._now())
            if leading != self._leading:
                event("leading" if leading else "not leading, waiting")
                self._leading, self._seen = leading, None
            if leading:
                await self.turn()
        except ApiError as error:
            if error.status == CONFLICT:
                event("another client wrote first, reading again", logging.DEBUG, error=str(error))
                return None, CONFLICT_SECONDS
            self._seen = None
            event("certificates not maintained", logging.ERROR, error=str(error))
            return str(error), self._turn_seconds
        return "", self._turn_seconds

    async def end(self) -> None:
        """Release the Lease."""
        if self._leading:
            try:
                await self._lease.release()
            except ApiError as error:
                event("lease not released", logging.WARNING, error=str(error))

    async def turn(self) -> None:
        """Read everything once, and write what has changed.

        Raises ApiError, with CONFLICT if an object was changed since it was read.
        """
        configurations = {name: await self._server.read(REGISTRATION + name) for name in self._names.configurations}
        api_service = await self._server.read(API_SERVICE)
        tls_secret = await self._secret("tls")
        ca_secret = await self._secret("ca")  # read after the configurations, so that it is never older than they are
        now = self._now()
        leaf, trust = _leaf(tls_secret), read_trust(_data(ca_secret, "ca.crt"), _data(ca_secret, "ca.key"))
        requested = ROTATE in (ca_secret["metadata"].get("annotations") or {})
        renewed = renew_trust(trust, leaf, now, requested, _data(tls_secret, "ca.crt"))
        if renewed is not trust:
            annotations = {k: v for k, v in (ca_secret["metadata"].get("annotations") or {}).items() if k != ROTATE}
            metadata = {**ca_secret["metadata"], "annotations": annotations}
            data = {"ca.crt": _base64(renewed.bundle), "ca.key": _base64(renewed.authority.key)}
            await self._server.replace(self._names.secret("ca"), {**ca_secret, "metadata": metadata, "data": data})
            event("trusted CAs written", trusted=1 + len(renewed.retired), expires=_end(renewed.authority.certificate))
        published = [
            await self._publish(name, configuration, renewed)
            for name, configuration in configurations.items()
            if configuration is not None
        ]
        if api_service is not None:
            published.append(await self._publish_api(api_service, renewed))
        published.append(renewed.bundle == _data(tls_secret, "ca.crt"))
        seen = self._seen_for(renewed, all(published))
        issued = renew_leaf(leaf, renewed, self._names.served, now, seen, self._wait_seconds)
        if issued is not leaf or not published[-1]:
            await self._write_leaf(tls_secret, issued, renewed)

    async def _secret(self, name: str) -> Object:
        path = self._names.secret(name)
        secret = await self._server.read(path)
        if secret is None:
            raise ApiError(NOT_FOUND, f"{path}: not there: wants deploy/components/self-signed applied")
        return secret

    def _seen_for(self, trust: TrustedCAs, everywhere: bool) -> float:
        """Return the seconds for which this process saw the signing CA in every place, without a gap."""
        authority = trust.authority.certificate
        if not everywhere:
            self._seen = None
            return 0.0
        if self._seen is None or self._seen[0] != authority:
            self._seen = (authority, self._clock())
        return self._clock() - self._seen[1]

    async def _write_leaf(self, secret: Object, leaf: KeyPair, trust: TrustedCAs) -> None:
        pem = {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": trust.bundle}
        data = {name: _base64(content) for name, content in pem.items()}
        await self._server.replace(self._names.secret("tls"), {**secret, "data": data})
        event("serving certificate written", expires=_end(leaf.certificate), trusted=1 + len(trust.retired))

    async def _publish_api(self, api_service: Object, trust: TrustedCAs) -> bool:
        """Write the bundle into the APIService; tell whether it was there already."""
        ca_bundle = _base64(trust.bundle)
        if api_service["spec"].get("caBundle") == ca_bundle:
            return True
        version = {"resourceVersion": api_service["metadata"]["resourceVersion"]}
        await self._server.patch(API_SERVICE, {"metadata": version, "spec": {"caBundle": ca_bundle}}, MERGE)
        event("caBundle written", configuration=API_SERVICE.rpartition("/")[2])
        return False

    async def _publish(self, name: str, configuration: Object, trust: TrustedCAs) -> bool:
        """Write the bundle into a webhook configuration; tell whether it was there already."""
        ca_bundle = _base64(trust.bundle)
        missing = [
            webhook
            for webhook in configuration.get("webhooks") or ()
            if webhook["clientConfig"].get("caBundle") != ca_bundle and self._is_ours(webhook["clientConfig"])
        ]
        if missing:
            webhooks = [{"name": webhook["name"], "clientConfig": {"caBundle": ca_bundle}} for webhook in missing]
            version = {"resourceVersion": configuration["metadata"]["resourceVersion"]}
            await self._server.patch(REGISTRATION + name, {"metadata": version, "webhooks": webhooks})
            event("caBundle written", configuration=name, webhooks=[webhook["name"] for webhook in missing])
        return not missing

    def _is_ours(self, client: Object) -> bool:
        """Tell whether a webhook calls our Service, or a URL that our certificate is for; others have another CA."""
        called = client.get("service") or {}
        if url := client.get("url"):
            return urlsplit(url).hostname in self._names.served
        return (called.get("namespace"), called.get("name")) == (self._names.namespace, self._names.service)


def _leaf(secret: Object) -> KeyPair | None:
    certificate, key = _data(secret, "tls.crt"), _data(secret, "tls.key")
    return KeyPair(certificate, key) if read_bundle(certificate) and key else None


def _data(secret: Object, name: str) -> bytes:
    """Read a key of a Secret; empty if it is absent or not base64."""
    encoded: Any = (secret.get("data") or {}).get(name) or ""
    try:
        return base64.b64decode(encoded)
    except (binascii.Error, ValueError):
        return b""


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _end(certificate: bytes) -> str:
    return f"{read_certificate(certificate).not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
