# SPDX-License-Identifier: Apache-2.0
"""Upkeep of the served certificate: one turn every few seconds, by wall clock; what happens is logged and measured."""

import datetime as dt
import logging

from app.server.service import Service
from app.telemetry.logs import event
from app.tls.serving_certificates import issue_if_needed
from app.values.errors import CertificateError

TURN_SECONDS = 5.0
"""A bad pair is tried again so soon (fault 43), a machine that slept is mended so soon (TLS-03). Two small reads."""
REPEAT = dt.timedelta(minutes=1)
"""A trouble that stays is logged so often (fault 42)."""


class CertificateRenewal:
    """Makes a new certificate where ours grows old; takes changed files into service, a bad pair never."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._metrics = service.metrics
        self._said = ""
        self._said_at = dt.datetime.min.replace(tzinfo=dt.UTC)

    def turn(self, now: dt.datetime) -> None:
        """Look at the files once."""
        service = self._service
        trouble = ""
        try:
            if service.settings.own_certificate is None:
                issue_if_needed(service.settings.certs, now)
            if service.certificates.renew(now):
                self._metrics.certificate_reloads.labels("success").inc()
                event("certificate renewed", expires=service.certificates.serving.expires.isoformat())
        except CertificateError as error:
            self._metrics.certificate_reloads.labels("error").inc()
            trouble = f"certificate not renewed: {error}"
        if not service.certificates.in_date(now):
            trouble = f"the served certificate has expired, /readyz fails; {trouble or 'wants a new one'}"
        self._say(trouble, now)
        self._measure()

    def _say(self, trouble: str, now: dt.datetime) -> None:
        """Log a trouble when it comes up, and again every minute; a clock set back does not silence it."""
        if trouble and (trouble != self._said or abs(now - self._said_at) >= REPEAT):
            event(trouble, logging.ERROR)
            self._said_at = now
        self._said = trouble

    def _measure(self) -> None:
        serving = self._service.certificates.serving
        self._metrics.certificate_expiry.set(serving.expires.timestamp())
        self._metrics.certificate_start.set(serving.starts.timestamp())
        ends = serving.authority_expires
        self._metrics.authority_expiry.set(ends.timestamp() if ends else float("nan"))
