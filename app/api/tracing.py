# SPDX-License-Identifier: Apache-2.0
"""Tracing: optionally, one OpenTelemetry span a request of the five verbs (F97). Off unless asked for.

FastAPI makes the span, with the parent that `traceparent` names; here is where spans go, and what of a decision they
say. Nothing of the SDK is imported before `Tracing` is made. Sent are spans in batches, by a thread of the SDK's own;
what finds no room there, or no collector, is dropped, and nobody waits.
"""

import os
import threading
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from app import __version__
from app.api.decision_line import Decision
from app.telemetry.logs import FINISH_SECONDS, REPLICA
from app.values.errors import BadInput

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

ROUTES = frozenset({"/mutate", "/validate", "/scheduler/filter", "/scheduler/prioritize", "/scheduler/preempt"})
REMEDY = "pip install 'gpu-usher[tracing]', or build the image with LOCK=requirements-tracing.lock"
ADDRESSES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""The standard variables, the first that is set counts; all others (headers, CA, sampler, …) are read by the SDK."""


def untraced() -> "TelemetryConfig":
    """Switch all that FastAPI can tell off, whatever the environment or a global provider says."""
    return {"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}


class Tracing:
    """Where the spans of one process go. Must be stopped."""

    def __init__(self) -> None:
        """Start the exporting thread.

        Raises BadInput without the packages, and for an address or protocol that cannot be.
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
        ours = {"service.name": "gpu-usher", "service.version": __version__, "service.instance.id": REPLICA}
        named = Resource.create().merge(Resource(ours)).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        try:
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except (ValueError, OSError) as error:
            raise BadInput(f"--tracing: {error}") from error
        self._span = trace.get_current_span

    @property
    def telemetry(self) -> "TelemetryConfig":
        """Give FastAPI's setting: one span a request, for the verbs alone."""
        return {**untraced(), "tracing": True, "tracer_provider": self._provider, "exclude": _not_a_verb}

    def note(self, verb: str, decision: Decision) -> None:
        """Say on the request's span what was decided, in the words of the log; nothing else of a pod."""
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
        """Send what waits; a collector that does not answer in time is left behind."""
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


def _not_a_verb(scope: MutableMapping[str, Any]) -> bool:
    return scope["path"] not in ROUTES
