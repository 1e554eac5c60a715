# SPDX-License-Identifier: Apache-2.0
"""Keeps the served certificate valid: checks its files every few seconds by wall clock, and serves what they hold.

In a cluster another component writes the files: cert-manager, or `gpu-usher certs controller` (tls/controller.py). Only
without --cert and --key does the process issue a certificate itself.
"""

import datetime as dt
import logging

from app.server.service import Service
from app.telemetry.logs import event
from app.tls.serving_certificates import issue_if_needed
from app.values.errors import CertificateError

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
