# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher certs controller`: keeps two Secrets and the caBundle of our webhooks and API up to date.

A turn runs every few seconds by wall clock, so that a machine that slept is up to date at once. Every write is
guarded by the resourceVersion that was read. Webhooks are read before the CA, so that a controller with an outdated CA
cannot overwrite a newer one. So two controllers may work at once, as during a rollout.

A turn reads the webhook configurations, the APIService and the two Secrets. The first request that fails ends a turn.
"""

import base64
import binascii
import datetime as dt
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from app.cluster.apiserver import MERGE, ApiServer
from app.telemetry.logs import event
from app.tls.authority import KeyPair, service_names
from app.tls.ca_rotation import WAIT_SECONDS, TrustedCAs, read_trust, renew_leaf, renew_trust
from app.tls.pem import read_bundle, read_certificate
from app.values.errors import CONFLICT, NOT_FOUND, ApiError
from app.values.json_members import Object

TURN_SECONDS = 5.0
"""Interval of turns. Half of the 10 s within which a deleted caBundle is written again."""
STUCK_SECONDS = 180.0
"""Without a finished turn for so long the loop counts as stuck. The longest turn takes less: 16 requests of just under
OBJECT_SECONDS of cluster/apiserver.py."""
CONFLICT_SECONDS = 0.2
"""Before the next try after a conflict, so that two writers do not retry in a loop; a guess."""
ROTATE = "gpu-usher.io/rotate"
"""Annotation on the CA's Secret that requests a new CA; it is removed when there is one."""
REGISTRATION = "/apis/admissionregistration.k8s.io/v1/"
API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.explain.gpu-usher.io"
PLACES = (
    f"{REGISTRATION}mutatingwebhookconfigurations/gpu-usher",
    f"{REGISTRATION}mutatingwebhookconfigurations/gpu-usher-cpu-guard",
    f"{REGISTRATION}mutatingwebhookconfigurations/gpu-usher-queued-jobs",
    f"{REGISTRATION}validatingwebhookconfigurations/gpu-usher",
    f"{REGISTRATION}validatingwebhookconfigurations/gpu-usher-policies",
    API_SERVICE,
)
"""The objects of deploy/ with a caBundle; one that is not installed is skipped."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the objects that the controller keeps. `places` are the paths of those with a caBundle.

    `others` are names and addresses of the certificate besides the Service's, for example 127.0.0.1 of a sidecar.
    """

    namespace: str = "gpu-usher"
    service: str = "gpu-usher"
    others: tuple[str, ...] = ()
    places: tuple[str, ...] = PLACES

    def secret(self, name: str) -> str:
        """Return the path of a Secret: gpu-usher-ca has the CA's key, replicas mount gpu-usher-tls."""
        return f"/api/v1/namespaces/{self.namespace}/secrets/gpu-usher-{name}"

    @property
    def served(self) -> tuple[str, ...]:
        """The names and addresses of the certificate."""
        return tuple(dict.fromkeys((*service_names(self.service, self.namespace), *self.others)))


class Controller:
    """Keeps a cluster's certificates. `now` is the wall clock, `clock` a monotonic one."""

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
        self._seen: tuple[bytes, float] | None = None

    async def try_turn(self) -> tuple[str | None, float]:
        """Take a turn; return its problem and the seconds to the next."""
        try:
            await self.turn()
        except ApiError as error:
            if error.status == CONFLICT:
                event("another client wrote first, reading again", logging.DEBUG, error=str(error))
                return None, CONFLICT_SECONDS
            self._seen = None
            event("certificates not maintained", logging.ERROR, error=str(error))
            return str(error), self._turn_seconds
        return "", self._turn_seconds

    async def turn(self) -> None:
        """Read everything once, and write what has changed.

        Raises ApiError, with CONFLICT if an object was changed since it was read.
        """
        places = {path: await self._server.read(path) for path in self._names.places}
        tls_secret = await self._secret("tls")
        ca_secret = await self._secret("ca")  # read after the places, so that it is never older than they are
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
            await self._publish(path, place, _base64(renewed.bundle))
            for path, place in places.items()
            if place is not None
        ]
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

    async def _publish(self, path: str, place: Object, bundle: str) -> bool:
        """Write the bundle into a webhook configuration or an APIService; tell whether it was there already."""
        api = (place["spec"],) if path == API_SERVICE else ()
        webhooks = [webhook for webhook in place.get("webhooks") or () if self._is_ours(webhook["clientConfig"])]
        if all(client.get("caBundle") == bundle for client in (*api, *(each["clientConfig"] for each in webhooks))):
            return True
        names, trusting = [webhook["name"] for webhook in webhooks], {"caBundle": bundle}
        change: Object = {"metadata": {"resourceVersion": place["metadata"]["resourceVersion"]}}
        if api:
            await self._server.patch(path, {**change, "spec": trusting}, MERGE)
        else:
            clients = [{"name": name, "clientConfig": trusting} for name in names]
            await self._server.patch(path, {**change, "webhooks": clients})
        event("caBundle written", configuration=path.rpartition("/")[2], webhooks=names)
        return False

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
