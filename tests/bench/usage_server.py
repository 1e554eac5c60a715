# SPDX-License-Identifier: Apache-2.0
"""Answers as a Prometheus does about the use of GPUs, from a process of its own; the first answer waits for `POST /go`.

Each GPU has the series of two pods, with a value at each evaluation. The values are made up, and the labels as long as
those of a real exporter.
"""

import json
import sys
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PODS_OF_A_GPU = 2
GPUS_OF_A_NODE = 8
go = threading.Event()


def serve(gpus: int, port: int) -> None:
    """Answer until the process ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # the name that the base class calls
            """Answer a query, or a query of a range."""
            go.wait()
            url = urlsplit(self.path)
            asked = {key: values[0] for key, values in parse_qs(url.query).items()}
            if url.path.endswith("query"):
                self._send(_count(gpus * PODS_OF_A_GPU))
            else:
                evaluations = _evaluations(float(asked["start"]), float(asked["end"]), int(asked["step"]))
                self._send(_matrix(gpus, evaluations, asked["query"].startswith("max by")))

        def do_POST(self) -> None:  # the name that the base class calls
            """Let all answers go."""
            go.set()
            self._send(b"")

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write no log."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def _evaluations(start: float, end: float, step: int) -> tuple[float, ...]:
    return tuple(start + step * index for index in range(int((end - start) / step) + 1))


def _count(series: int) -> bytes:
    return _answer("vector", [{"metric": {}, "value": [0, str(series)]}])


@cache
def _matrix(gpus: int, evaluations: tuple[float, ...], peak: bool) -> bytes:
    """Write the series of all pods' GPUs, each with a value at every evaluation."""
    values = [[second, "0.734375" if peak else str(7.25)] for second in evaluations]
    return _answer("matrix", [{"metric": _labels(index), "values": values} for index in range(gpus * PODS_OF_A_GPU)])


def _labels(index: int) -> dict[str, str]:
    gpu, pod = divmod(index, PODS_OF_A_GPU)
    node, number = divmod(gpu, GPUS_OF_A_NODE)
    return {
        "Hostname": f"gpu-node-{node:05}.eu-central-1.compute.internal",
        "gpu": str(number),
        "UUID": f"GPU-{gpu:08x}-7c1b-4a52-9d0e-3f2a6b8c1d{gpu % 256:02x}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "namespace": f"team-{gpu % 40}",
        "pod": f"train-{gpu}-worker-{pod}",
    }


def _answer(kind: str, result: list[object]) -> bytes:
    return json.dumps(
        {"status": "success", "data": {"resultType": kind, "result": result}}, separators=(",", ":")
    ).encode()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:3]))
