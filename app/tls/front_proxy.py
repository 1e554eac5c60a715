# SPDX-License-Identifier: Apache-2.0
"""Who may call an aggregated API: the front proxy of kube-apiserver, by the client certificate that it shows.

kube-apiserver publishes the CA and the common names of that certificate in the ConfigMap
kube-system/extension-apiserver-authentication, which is watched, so that a renewed CA needs no restart. Until it was
read every TLS handshake fails. See https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/.
"""

import datetime as dt
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from app.cluster.watched_kinds import WatchedKind
from app.kube.objects import ConfigMap
from app.telemetry.logs import event
from app.tls.serving_certificates import Certificates, CurrentContext
from app.values.errors import BadInput, CertificateError

NAME = "extension-apiserver-authentication"


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """The CA of the front proxy in PEM, the common names that it may show, and the headers that name the user.

    Without names any certificate of the CA is the front proxy's, as for kube-apiserver itself
    (--requestheader-allowed-names).
    """

    authority: str
    names: frozenset[str]
    user_headers: tuple[str, ...]


def read_front_proxy(found: ConfigMap) -> FrontProxy:
    """Read the ConfigMap of kube-apiserver.

    Raises BadInput where it names no CA, as on a control plane without --requestheader-client-ca-file.
    """
    data = found.data or {}
    authority = data.get("requestheader-client-ca-file", "")
    try:
        names, headers = (
            msgspec.json.decode(data.get(f"requestheader-{key}") or "[]", type=list[str])
            for key in ("allowed-names", "username-headers")
        )
    except msgspec.DecodeError as error:
        raise BadInput(f"{NAME}: {error}") from error
    if not authority:
        raise BadInput(f"{NAME}: no requestheader-client-ca-file: kube-apiserver is not configured to aggregate APIs")
    return FrontProxy(authority, frozenset(names), tuple(header.lower() for header in headers) or ("x-remote-user",))


class FrontProxyTrust:
    """The TLS context of the listener, and whether a connection's certificate is the front proxy's.

    `context` is given to the server once; new connections get `current` from it.
    """

    def __init__(self, certificates: Certificates, now: Callable[[], dt.datetime]) -> None:
        self._certificates = certificates
        self._now = now
        self.current = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # without a certificate, so that handshakes fail
        self._made_of: tuple[object, ...] = ()
        self.proxy: FrontProxy | None = None
        self.context = CurrentContext(lambda: self.current)

    def watched(self) -> WatchedKind[FrontProxy]:
        """Return what is watched of the API server. What was read last stays where the ConfigMap is gone or bad."""
        path, selection = "/api/v1/namespaces/kube-system/configmaps", {"fieldSelector": f"metadata.name={NAME}"}
        return WatchedKind(
            NAME, path, ConfigMap, read_front_proxy, lambda _key, _uid, proxy: self.take(proxy),
            lambda _key, _uid: None, needed=False, selection=selection,
        )  # fmt: skip

    def take(self, proxy: FrontProxy) -> None:
        """Trust the front proxy that kube-apiserver has now."""
        self.proxy = proxy
        self.renew_context()

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
