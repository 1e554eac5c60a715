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
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import uvloop
from kubernetes.client import Configuration

from app.cluster.apiserver import ApiServer
from app.cluster.files import shipped_policies
from app.cluster.garbage_collection import leave_out_all
from app.cluster.live import LiveCluster
from app.cluster.policy_watch import PolicyBook
from app.cluster.reflector import Reflector
from app.telemetry.metrics import Metrics
from app.tls.serving_certificates import issue_if_needed
from app.world.state import State
from tests.bench.fleet import node, pods
from tests.bench.list_server import ListServer, arguments, listen, pages, played_by
from tests.bench.measure import REFERENCE_MS, ROUNDS, Scaled, cpu, middle, paced, reference, resident_mib
from tests.builders import knowledge
from tests.controlplane.processes import free_port

READY_SECONDS = 120
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
        with played_by("tests.bench.following", *words):
            return uvloop.run(_follow(f"https://127.0.0.1:{port}", directory / "ca.crt"))


async def _follow(url: str, ca: Path) -> Followed:
    def load() -> Configuration:
        configuration = Configuration(host=url)
        configuration.ssl_ca_cert = str(ca)
        return configuration

    state = State(knowledge())
    book = PolicyBook(shipped_policies(), knowledge(), lambda: "2026-11-21")
    cluster = LiveCluster(ApiServer(load), state, book, Metrics(), "gpu-usher", leave_out_all)
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


async def _serve(words: argparse.Namespace) -> None:
    lists = {
        "/api/v1/nodes": list(pages(full_nodes(words.nodes))),
        "/api/v1/pods": list(pages(full_pods(words.pods, words.nodes))),
    }
    await listen(ListServer(lists), words)


if __name__ == "__main__":
    uvloop.run(_serve(arguments().parse_args()))
