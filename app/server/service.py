# SPDX-License-Identifier: Apache-2.0
"""The service: the core of a process that serves, its certificates, and the tasks beside its listeners."""

from typing import TYPE_CHECKING, Any

from app.api.tracing import Tracing
from app.cluster.core import Core
from app.cluster.policy_watch import PolicyBook
from app.images.reader import ImageReader
from app.settings import Settings
from app.telemetry.logs import now
from app.tls.front_proxy import FrontProxyTrust
from app.tls.serving_certificates import Certificates
from app.world.state import State

if TYPE_CHECKING:
    from app.events.policy_reports import PolicyReporter
    from app.events.waking import Waker  # which imports an HTTP client that few replicas need
    from app.events.writer import EventWriter


class Service(Core):
    """The core with the certificates that the listeners show, and tasks that write to the API server.

    The tasks are None unless asked for: `events` writes Events, `waker` wakes refused pods, `policy_reporter` the
    status of policies, `front_proxy` follows the certificates that may pass on requests for explanations, `images`
    reads what images carry.
    """

    def __init__(self, settings: Settings, certificates: Certificates, state: State, book: PolicyBook) -> None:
        super().__init__(settings, state, book)
        self.certificates = certificates
        self.events: EventWriter | None = None
        self.waker: Waker | None = None
        self.policy_reporter: PolicyReporter | None = None
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
