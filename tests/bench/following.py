# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the cache: a cluster of 5,000 nodes and 50,000 pods listed over TLS, and the cost of one event.

Objects are as large as real ones: nodes of 20 kB (56 labels, 50 images, managedFields), pods of 4 kB
(docs/reference/measurements.md#decoding). The API server is played by another process, so that only our CPU time and
memory are counted.
"""

import argparse
import asyncio
import datetime as dt
import json
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import uvloop
from kubernetes.client import Configuration

from app.cluster.apiserver import ApiServer
from app.cluster.files import shipped_policies
from app.cluster.live import LiveCluster
from app.cluster.policy_watch import PolicyBook
from app.cluster.reflector import Reflector
from app.cluster.state import State
from app.server.composition import settle
from app.telemetry.metrics import Metrics
from app.tls.serving_certificates import issue_if_needed
from tests.bench.fleet import node, pods
from tests.bench.measure import REFERENCE_MS, ROUNDS, Scaled, cpu, middle, paced, reference, resident_mib
from tests.builders import knowledge
from tests.controlplane.processes import free_port

READY_SECONDS = 120
PAGE = 500
EVENTS = 400
"""Events in a round of a measurement."""
IMAGES = [
    {"names": [f"registry.example/team/image-{index}@sha256:{'0' * 64}"], "sizeBytes": index} for index in range(50)
]
FIELDS: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:example.com/label-{index}": {} for index in range(60)}}}
MANAGED = [{"manager": f"manager-{index}", "operation": "Update", "fieldsV1": FIELDS} for index in range(7)]
ENVIRONMENT = [{"name": f"VARIABLE_{index}", "value": "x" * 40} for index in range(26)]
"""Padding for objects, which is never decoded."""


@dataclass(frozen=True, slots=True)
class Followed:
    """Seconds of CPU and MiB of memory until the cluster is synced, and median microseconds per event."""

    seconds: Scaled
    mib: float
    node_event: Scaled
    heartbeat: Scaled
    pod_event: Scaled
    gpu_pod_event: Scaled


def full_nodes(count: int) -> Iterator[dict[str, Any]]:
    """Write nodes as large as real ones."""
    for index in range(count):
        made = node(index)
        made["metadata"] |= {"uid": f"node-uid-{index}", "resourceVersion": "1", "managedFields": MANAGED}
        made["status"] |= {"images": IMAGES, "conditions": [{"type": "Ready", "status": "True"}] * 5}
        yield made


def full_pods(count: int, node_count: int, seed: int = 42) -> Iterator[dict[str, Any]]:
    """Write pods as large as real ones."""
    for made in pods(count, node_count, seed):
        made["metadata"] |= {"resourceVersion": "1", "managedFields": MANAGED[:1]}
        made["spec"]["containers"][0]["env"] = ENVIRONMENT
        yield made


def bench(node_count: int, pod_count: int) -> Followed:
    """Follow a cluster until its first lists are in, and apply events then."""
    with tempfile.TemporaryDirectory() as folder:
        directory, port = Path(folder), free_port()
        issue_if_needed(directory, dt.datetime.now(dt.UTC))
        words = [f"--port={port}", f"--certs={directory}", f"--nodes={node_count}", f"--pods={pod_count}"]
        server = subprocess.Popen([sys.executable, "-m", "tests.bench.following", *words], stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            server.stdout.readline()  # it prints a line when it listens
            return uvloop.run(_follow(f"https://127.0.0.1:{port}", directory / "ca.crt"))
        finally:
            server.terminate()
            server.communicate()


async def _follow(url: str, ca: Path) -> Followed:
    def load() -> Configuration:
        configuration = Configuration(host=url)
        configuration.ssl_ca_cert = str(ca)
        return configuration

    state = State(knowledge())
    book = PolicyBook(shipped_policies(), knowledge(), lambda: "2026-11-21")
    cluster = LiveCluster(ApiServer(load), state, book, Metrics(), "gpu-usher", settle)
    memory, pace, started = resident_mib(), reference(), time.process_time()
    task = asyncio.create_task(cluster.run())
    async with asyncio.timeout(READY_SECONDS):
        while not cluster.synced:
            await asyncio.sleep(0.01)
    seconds, grown = time.process_time() - started, resident_mib() - memory
    scale = (pace + reference()) / 2 / REFERENCE_MS
    nodes, pods_, *_ = cluster.reflectors
    changed, same = _relabelled(full_nodes(200)), full_nodes(1)
    without, with_gpus = _arriving(len(nodes.uids), gpus=False), _arriving(len(nodes.uids), gpus=True)
    figures = [
        _event(reflector, list(map(_line, documents)))
        for reflector, documents in ((nodes, changed), (nodes, same), (pods_, without), (pods_, with_gpus))
    ]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return Followed(Scaled(seconds, scale), grown, *figures)


def _event(reflector: Reflector, lines: list[bytes]) -> Scaled:
    """Measure the median event of these in microseconds, that of the middle round."""
    following = cycle(lines)
    rounds = paced(lambda: cpu(lambda: reflector.apply_event(next(following)), EVENTS))
    return middle((figure.p50, scale) for figure, scale in rounds)


def _arriving(node_count: int, gpus: bool) -> Iterator[dict[str, Any]]:
    """Write the pods that become bound in all rounds: none was there before, and all their nodes are."""
    for index, made in enumerate(full_pods(5 * (EVENTS + 5) * ROUNDS, node_count, seed=7)):
        if gpus is (index % 5 == 0):
            made["metadata"] |= {"uid": f"new-{index}", "name": f"new-{index}"}
            yield made


def _relabelled(documents: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Write nodes with two alternating labels, so that every event is a change."""
    for made in documents:
        for turn in ("odd", "even"):
            metadata = made["metadata"]
            yield {**made, "metadata": {**metadata, "labels": {**metadata["labels"], "example.com/turn": turn}}}


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps({"type": "MODIFIED", "object": document}, separators=(",", ":")).encode()


class Server:
    """Lists of an API server, by path in pages, and watches that send nothing."""

    def __init__(self, pages: Mapping[str, Sequence[bytes]]) -> None:
        self._pages = pages

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests on one connection."""
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            path, _, query = head.split()[1].decode().partition("?")
            if "watch=true" in query:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                self.watched(path, writer)
                continue
            body = self.body(path, query, head)
            status = b"404 Not Found" if "resource.k8s.io" in path else b"200 OK"
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
            await writer.drain()

    def body(self, path: str, query: str, _head: bytes) -> bytes:
        """Return a page of a list."""
        number = int(query.partition("continue=")[2].partition("&")[0] or 0)
        return self._pages.get(path, [_page([], "")])[number]

    def watched(self, path: str, writer: asyncio.StreamWriter) -> None:
        """Note that a watch was opened."""


def _pages(documents: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    items = list(documents)
    for number, start in enumerate(range(0, len(items), PAGE), 1):
        yield _page(items[start : start + PAGE], str(number) if start + PAGE < len(items) else "")


def _page(items: list[dict[str, Any]], more: str) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "9", "continue": more}, "items": items}).encode()


async def _serve(words: argparse.Namespace) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(words.certs / "tls.crt", words.certs / "tls.key")
    lists = Server(
        {
            "/api/v1/nodes": list(_pages(full_nodes(words.nodes))),
            "/api/v1/pods": list(_pages(full_pods(words.pods, words.nodes))),
        }
    )
    server = await asyncio.start_server(lists.answer, "127.0.0.1", words.port, ssl=context)
    print("listening", flush=True)
    await server.serve_forever()


def main() -> None:
    """Play the API server until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certs", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pods", type=int, required=True)
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
