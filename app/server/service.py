# SPDX-License-Identifier: Apache-2.0
"""The service: the core of a process that serves, its certificates, and the tasks beside its listeners."""

from collections.abc import Callable, Coroutine
from typing import Any

from app.api.tracing import Tracing
from app.cluster.core import Core
from app.cluster.policy_watch import PolicyBook
from app.events.writer import EventWriter
from app.images.reader import ImageReader
from app.settings import Settings
from app.telemetry.logs import now
from app.tls.front_proxy import FrontProxyTrust
from app.tls.serving_certificates import Certificates
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
