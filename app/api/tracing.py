# SPDX-License-Identifier: Apache-2.0
"""Tracing: optionally one OpenTelemetry span per request of the five verbs. Off by default.

FastAPI makes the span, with the parent that `traceparent` names; this module sets the exporter and the attributes of a
decision. The SDK is imported only when `Tracing` is made. A thread of the SDK exports spans in batches; spans that find
no room or no collector are dropped, and no request waits.
"""

import os
import threading
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from app import __version__
from app.api.decision_line import Decision
from app.schedulerconfig.verify import EXTENDER_ROUTES
from app.telemetry.logs import FINISH_SECONDS, REPLICA
from app.values.errors import BadInput

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

_VERBS = ("filter", "prioritize", "preempt")
ROUTES = frozenset({"/mutate", "/validate", *(f"{prefix}/{verb}" for prefix in EXTENDER_ROUTES for verb in _VERBS)})
REMEDY = "pip install 'gpu-usher[tracing]', or build the image with LOCK=requirements-tracing.lock"
ADDRESSES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""The standard variables; the first that is set counts. The SDK reads all others (headers, CA, sampler, …)."""


def untraced() -> "TelemetryConfig":
    """Return FastAPI's settings without telemetry, whatever the environment or a global provider says."""
    return {"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}


class Tracing:
    """The exporter of this process's spans. `stop` must be called."""

    def __init__(self) -> None:
        """Start the thread that exports spans.

        Raises BadInput without the packages, and for an invalid address or protocol.
        """
        _check_environment()
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise BadInput(f"--tracing: {error.name} is not installed: {REMEDY}") from error
        service = {"service.name": "gpu-usher", "service.version": __version__, "service.instance.id": REPLICA}
        resource = Resource.create().merge(Resource(service)).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        try:
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except (ValueError, OSError) as error:
            raise BadInput(f"--tracing: {error}") from error
        self._span = trace.get_current_span

    @property
    def telemetry(self) -> "TelemetryConfig":
        """FastAPI's settings: one span per request of the five verbs."""
        return {**untraced(), "tracing": True, "tracer_provider": self._provider, "exclude": _is_untraced}

    def note(self, verb: str, decision: Decision) -> None:
        """Set the decision as attributes of the request's span, with the names of the log; nothing else of a pod."""
        self._span().set_attributes(
            {
                "gpu_usher.verb": verb,
                "gpu_usher.decision": decision.outcome,
                "gpu_usher.reasons": sorted(code.name for code in decision.reasons),
                "gpu_usher.policy_hash": decision.policy_hash,
                "gpu_usher.uid": decision.uid,
            }
        )

    def stop(self) -> None:
        """Send the remaining spans; a collector that does not answer in time is not waited for."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(FINISH_SECONDS)


def _check_environment() -> None:
    address = next(((name, os.environ[name]) for name in ADDRESSES if os.environ.get(name)), None)
    if address is not None and not address[1].startswith(("http://", "https://")):
        raise BadInput(f"{address[0]}: got {address[1][:80]!r}, wants http:// or https://")
    protocol = next(((name, os.environ[name]) for name in PROTOCOLS if os.environ.get(name)), None)
    if protocol is not None and protocol[1] != "http/protobuf":
        raise BadInput(f"{protocol[0]}: got {protocol[1][:40]!r}, wants http/protobuf (port 4318 of most collectors)")


def _is_untraced(scope: MutableMapping[str, Any]) -> bool:
    return scope["path"] not in ROUTES
