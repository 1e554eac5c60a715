# SPDX-License-Identifier: Apache-2.0
"""Who may call an aggregated API: the front proxy of kube-apiserver, by the client certificate that it shows.

kube-apiserver publishes the CA and the common names of that certificate in the ConfigMap
kube-system/extension-apiserver-authentication, which is read once a minute, so that a renewed CA needs no restart.
Until it was read every TLS handshake fails. See https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/.
"""

import asyncio
import datetime as dt
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from app.telemetry.logs import event
from app.tls.serving_certificates import Certificates, CurrentContext
from app.values.errors import ApiError, BadInput, CertificateError

PATH = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
REFRESH_SECONDS = 60.0
"""Interval of reads; as long as Kubernetes' own extension servers take at most."""
RETRY_SECONDS = 5.0
"""The same while it could not be read."""
CERTIFICATE_SECONDS = 5.0
"""Interval at which a renewed serving certificate is noticed, as on the TLS listener."""


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """The CA of the front proxy in PEM, the common names that it may show, and the headers that name the user.

    Without names any certificate of the CA is the front proxy's, as for kube-apiserver itself
    (--requestheader-allowed-names).
    """

    authority: str
    names: frozenset[str]
    user_headers: tuple[str, ...]


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


def read_front_proxy(body: bytes) -> FrontProxy:
    """Read the ConfigMap of kube-apiserver.

    Raises BadInput where it names no CA, as on a control plane without --requestheader-client-ca-file.
    """
    try:
        data = msgspec.json.decode(body, type=_ConfigMap).data
        authority = data.get("requestheader-client-ca-file", "")
        names, headers = (
            msgspec.json.decode(data.get(f"requestheader-{key}") or "[]", type=list[str])
            for key in ("allowed-names", "username-headers")
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{PATH}: {error}") from error
    if not authority:
        raise BadInput(
            f"{PATH}: has no requestheader-client-ca-file: kube-apiserver is not configured to aggregate APIs"
        )
    return FrontProxy(authority, frozenset(names), tuple(header.lower() for header in headers) or ("x-remote-user",))


class FrontProxyTrust:
    """The TLS context of the listener, and whether a connection's certificate is the front proxy's.

    `context` is given to the server once; new connections get `current` from it.
    `read` returns the ConfigMap; it raises ApiError.
    """

    def __init__(
        self,
        certificates: Certificates,
        read: Callable[[], Awaitable[bytes]],
        now: Callable[[], dt.datetime],
    ) -> None:
        self._certificates = certificates
        self._read = read
        self._now = now
        self.current = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # without a certificate, so that handshakes fail
        self._made_of: tuple[object, ...] = ()
        self.proxy: FrontProxy | None = None
        self.context = CurrentContext(lambda: self.current)

    async def run(self) -> None:
        """Read the ConfigMap, and follow it and the serving certificate, until cancelled."""
        left = 0.0
        while True:
            if left <= 0:
                left = REFRESH_SECONDS if await self.refresh() else RETRY_SECONDS
            self.renew_context()
            await asyncio.sleep(CERTIFICATE_SECONDS)
            left -= CERTIFICATE_SECONDS

    async def refresh(self) -> bool:
        """Read the ConfigMap; what was read last stays where that fails."""
        try:
            self.proxy = read_front_proxy(await self._read())
        except (ApiError, BadInput) as error:
            event("front proxy of kube-apiserver not known", logging.WARNING, error=str(error))
            return False
        return True

    def renew_context(self) -> None:
        """Make the context anew if the CA or the serving certificate has changed; an unusable one leaves the last."""
        if self.proxy is None or self._made_of == (self._certificates.serving, self.proxy.authority):
            return
        made_of = self._certificates.serving, self.proxy.authority
        try:
            self.current = self._certificates.requiring_clients_of(self.proxy.authority, self._now())
        except CertificateError as error:
            event("front proxy not trusted", logging.ERROR, error=str(error))
            return
        self._made_of = made_of

    def problem_of(self, subject: str | None, connection: ssl.SSLObject | None) -> str:
        """Say why a connection is not the front proxy's; an empty string if it is.

        `subject` is the single common name of its certificate, which TLS has verified when the connection was opened. A
        connection that is older than the current CA must connect again.
        """
        if self.proxy is None or connection is None or connection.getpeercert(binary_form=True) is None:
            return "no client certificate of kube-apiserver's front proxy"
        if connection.context is not self.current:
            return "the CA or the certificate has changed: connect again"
        if self.proxy.names and subject not in self.proxy.names:
            return f"client certificate of {(subject or '')[:64]!r}, which is not the front proxy of kube-apiserver"
        return ""
