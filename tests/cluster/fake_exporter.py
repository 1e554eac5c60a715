# SPDX-License-Identifier: Apache-2.0
"""A DCGM exporter on loopback with the values of a test; it has a thread of its own, so that anything can scrape it."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

H100 = "NVIDIA H100 80GB HBM3"


class FakeExporter:
    """A DCGM exporter.

    `values` maps metric and labels to a value. `body` is sent instead, where it is set. `request_headers` holds those
    of each request.
    """

    def __init__(self, port: int = 0) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.body: bytes | None = None
        self.status = 200
        self.request_headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.request_headers.append(dict(self.headers))
                exporter.paths.append(self.path)
                body = exporter.text() if exporter.body is None else exporter.body
                self.send_response(exporter.status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the exporter."""
        return f"http://127.0.0.1:{self.port}"

    def say(self, metric: str, value: float, gpu: int = 0, **labels: str) -> None:
        """Set a GPU's value of a metric; its labels are an exporter's usual ones and `labels`."""
        exporter_labels = {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "device": f"nvidia{gpu}", "modelName": H100, **labels}
        self.values[metric, tuple(exporter_labels.items())] = value

    def text(self) -> bytes:
        """Write the values in Prometheus' text format, with one metric that is not read."""
        lines = ["# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).", "# TYPE DCGM_FI_DEV_GPU_TEMP gauge"]
        lines.append('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 42')
        for (metric, labels), value in self.values.items():
            pairs = ",".join(f'{key}="{word}"' for key, word in labels)
            lines.append(f"{metric}{{{pairs}}} {value}")
        return "\n".join([*lines, ""]).encode()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def fake_exporter() -> Iterator[FakeExporter]:
    """Run an exporter for as long as the block lasts."""
    exporter = FakeExporter()
    try:
        yield exporter
    finally:
        exporter.stop()
