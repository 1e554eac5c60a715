# SPDX-License-Identifier: Apache-2.0
"""An OTLP/HTTP receiver on loopback: it keeps what is sent, decoded with OpenTelemetry's classes, or never answers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """The received requests; with `unresponsive`, it reads requests and does not answer them until the end."""

    def __init__(self, unresponsive: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.paths: set[str] = set()
        self.contacted = threading.Event()
        self.ended = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # http.server's name
                collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                collector.paths.add(self.path)
                collector.contacted.set()
                if unresponsive:
                    collector.ended.wait()
                    return
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """The URL of the receiver."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def spans(self) -> list[Any]:
        """All spans, in the order of their arrival."""
        return [span for _, span in self._received()]

    @property
    def resources(self) -> list[dict[str, Any]]:
        """The resource of each span's sender."""
        return [values(resource) for resource, _ in self._received()]

    def _received(self) -> Iterator[tuple[Any, Any]]:
        for body in self.bodies:
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in sent.scope_spans:
                    yield from ((sent.resource, span) for span in scope.spans)


def values(holder: Any) -> dict[str, Any]:
    """Read the attributes of a span or a resource."""
    return {attribute.key: _value(attribute.value) for attribute in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting(unresponsive: bool = False) -> Iterator[Collector]:
    """Receive for as long as the block lasts."""
    collector = Collector(unresponsive)
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.ended.set()
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()
