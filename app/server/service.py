# SPDX-License-Identifier: Apache-2.0
"""The service: the core of a process that serves, its certificates, and the tasks beside its listeners.

The certificate is kept valid: its files are checked every few seconds by wall clock, and what they hold is served. In a
cluster another component writes the files: cert-manager, or `gpu-usher certs controller` (tls/controller.py). Only
without --cert and --key does the process issue a certificate itself.
"""

import datetime as dt
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from app.api.tracing import Tracing
from app.cluster.core import Core
from app.cluster.policy_watch import PolicyBook
from app.events.writer import EventWriter
from app.images.reader import ImageReader
from app.settings import Settings
from app.telemetry.logs import event, now
from app.tls.front_proxy import FrontProxyTrust
from app.tls.serving_certificates import Certificates, issue_if_needed
from app.values.errors import CertificateError
from app.world.state import State


class Service(Core):
    """The core with the certificates that the listeners show, and tasks that write to the API server.

    The tasks are absent unless asked for: `events` writes Events, `event_tasks` runs it and what wakes refused pods and
    reports on policies, `front_proxy` follows the certificates that may pass on requests for explanations, `images`
    reads what images carry.
    """

    def __init__(self, settings: Settings, certificates: Certificates, state: State, book: PolicyBook) -> None:
        super().__init__(settings, state, book)
        self.certificates = certificates
        self.events: EventWriter | None = None
        self.event_tasks: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
        self.front_proxy: FrontProxyTrust | None = None
        self.tracing: Tracing | None = None
        self.images: ImageReader | None = None

    def status(self) -> dict[str, Any]:
        """Return the body of /statusz."""
        return {**super().status(), "images": self.images.status() if self.images else None}

    def health(self) -> dict[str, Any]:
        """Return the body of /readyz: that of the core, which is not ready with an expired certificate."""
        health, in_date = super().health(), self.certificates.in_date(now())
        expires = f"{self.certificates.serving.expires:%Y-%m-%dT%H:%M:%SZ}"
        return {
            **health,
            "ready": in_date and health["ready"],
            "certificate": {"in_date": in_date, "expires": expires},
        }


CHECK_SECONDS = 5.0
"""Interval of the checks. It bounds how soon a bad pair is tried again and how soon a machine that slept
has a valid certificate. A check reads two small files."""
REPEAT = dt.timedelta(minutes=1)
"""Interval at which a problem that lasts is logged again."""


class CertificateRenewal:
    """Loads changed files if they are valid; without --cert and --key it first issues what nears its end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._metrics = service.metrics
        self._logged_problem = ""
        self._logged_at = dt.datetime.min.replace(tzinfo=dt.UTC)

    def check(self, now: dt.datetime) -> None:
        """Check the files once, and load or issue a certificate if needed."""
        service = self._service
        problem = ""
        try:
            if service.settings.own_certificate is None:
                issue_if_needed(service.settings.certs, now)
            if service.certificates.renew(now):
                self._metrics.certificate_reloads.labels("success").inc()
                event("certificate renewed", expires=service.certificates.serving.expires.isoformat())
            if service.front_proxy is not None:
                service.front_proxy.renew_context()
        except CertificateError as error:
            self._metrics.certificate_reloads.labels("error").inc()
            problem = f"certificate not renewed: {error}"
        if not service.certificates.in_date(now):
            problem = f"the served certificate has expired, /readyz fails; {problem or 'wants a new one'}"
        self._log_problem(problem, now)
        self._measure()

    def _log_problem(self, problem: str, now: dt.datetime) -> None:
        """Log a new problem at once and a lasting one every minute, also after the clock was set back."""
        if problem and (problem != self._logged_problem or abs(now - self._logged_at) >= REPEAT):
            event(problem, logging.ERROR)
            self._logged_at = now
        self._logged_problem = problem

    def _measure(self) -> None:
        serving = self._service.certificates.serving
        self._metrics.certificate_expiry.set(serving.expires.timestamp())
        self._metrics.certificate_start.set(serving.starts.timestamp())
        authority_expires = serving.authority_expires
        self._metrics.authority_expiry.set(authority_expires.timestamp() if authority_expires else float("nan"))
