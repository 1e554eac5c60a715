# SPDX-License-Identifier: Apache-2.0
"""`make bench`: measure every budget that has a benchmark, and print a table."""

import json
import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fastapi import Request, Response

from app.api.app import create_tls_app
from app.api.wire import decode_extender_args, encode
from app.cluster.files import shipped_policies
from app.cluster.garbage_collection import leave_out_all
from app.server.service import Service
from app.telemetry.logs import LOGGER
from app.telemetry.metrics import Metrics
from tests.bench import devices, explaining, watching
from tests.bench.fleet import CPU, filter_arguments, node, node_name, nodes, pods
from tests.bench.following import bench
from tests.bench.measure import ROUNDS, Scaled, cpu, middle, paced, per_request, served
from tests.bench.rows import Row, print_rows, timed, timed_pair
from tests.builders import container, make_service, pod, policies, policy, review
from tests.finished import filter_nodes, prioritize
from tests.finished import review as answer_review

NODES = 5_000
PODS = 50_000
SEEN = 200
"""Number of pods about which the scheduler has asked already."""
BOUND = (0, 5_000, 20_000, 50_000)
EVERY_FILTER = policy(
    "every-filter",
    "priority: 10, placement: {products: {deny: [K80]}, gpuMemory: 4Gi, computeCapability: '7.0', sharing: Any, "
    "formFactor: [PCIe, SXM], health: {ill: Refuse, ailing: Refuse}, "
    "nodeSelector: {matchExpressions: [{key: pool, operator: In, values: [gpu, train]}]}}",
)
"""Every make of the fleet passes this policy, so that as many nodes are scored as without it."""
IMAGE = "nvcr.io/nvidia/pytorch:24.05-py3"
ask = partial(filter_arguments, image=IMAGE, memory="4Gi")
"""Write the arguments of filter about nodes of these names."""


def main() -> int:
    """Measure and print; a missed budget is marked, and does not fail the command."""
    LOGGER.setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        cache = list(_cache())
        service = _service(folder, PODS)
        rows = [
            *cache,
            *_extender(service),
            *_admission(service),
            *_end_to_end(service),
            *_growth(folder),
            *_explain(),
            *devices.rows(),
        ]
    print_rows(rows)
    return 0


def _service(folder: str, bound: int) -> Service:
    """Make a service with bound pods and a policy, so that every filter has something to judge."""
    texts = (shipped_policies() / "default.yaml").read_text("utf-8"), EVERY_FILTER
    service = make_service(Path(folder), [], policies(*texts), recount="false")
    for document in nodes(NODES):
        service.state.put_node(document)
    for document in pods(bound, NODES):
        service.state.put_pod(document)
    for index in range(SEEN):  # so that the next pods count
        amounts = {"nvidia.com/gpu": "8" if index % 8 == 7 else "1"}
        made = pod(container(amounts, {**amounts, "cpu": str(CPU[index % len(CPU)])}))
        made["metadata"]["uid"] = f"seen-{index}"
        service.state.put_pod(made)
    leave_out_all()  # freeze objects for the garbage collector, as `serve` does
    return service


def _growth(folder: str) -> Iterator[Row]:
    """Measure questions about 500 nodes with more and more bound pods: the median of the ratios within the rounds."""
    sampled = ask([node_name(index) for index in random.Random(1).sample(range(NODES), 500)])

    def both(service: Service) -> None:
        filter_nodes(sampled, service)
        prioritize(sampled, service)

    services = {bound: _service(folder, bound) for bound in BOUND}
    rounds = [
        {bound: cpu(partial(both, service), 100).p50 for bound, service in services.items()} for _ in range(ROUNDS)
    ]
    for bound in BOUND[1:]:
        ratio = statistics.median(figures[bound] / figures[0] for figures in rounds)
        yield Row(f"filter and prioritize, {bound:,} bound pods against none", ratio, 1.2, "x")


def _extender(service: Service) -> Iterator[Row]:
    everyone = ask([node_name(index) for index in range(NODES)])
    sampled = ask([node_name(index) for index in random.Random(1).sample(range(NODES), 500)])
    drawn = random.Random(2)

    def one_percent_changes() -> None:
        for index in drawn.sample(range(NODES), NODES // 100):
            service.state.put_node(node(index))

    def both() -> None:
        filter_nodes(sampled, service)
        prioritize(sampled, service)

    yield from timed_pair(
        "filter, 5,000 names", paced(lambda: cpu(lambda: filter_nodes(everyone, service), 100)), 1000, 3000
    )
    again = paced(lambda: cpu(lambda: prioritize(everyone, service), 50, one_percent_changes))
    yield from timed_pair("prioritize, 5,000 names, 1 % of nodes changed", again, 2000, 5000)
    yield from timed_pair("filter and prioritize, 500 names", paced(lambda: cpu(both, 200)), 200, 1000)
    yield timed("first sight of a demand, prioritize 5,000 names", _first_sights(service), 25_000, "µs worst of 9")
    full = json.dumps({**json.loads(ask([])), "NodeNames": None, "Nodes": {"items": [*nodes(1000)]}}).encode()
    documents = middle(
        (figure.p99, scale) for figure, scale in paced(lambda: cpu(lambda: filter_nodes(full, service), 10))
    )
    yield timed("filter, 1,000 full nodes", documents, 150_000, "µs p99")


def _first_sights(service: Service) -> Scaled:
    """Measure nine demands that nobody has asked about: the worst of them, in the middle round."""
    names = [node_name(index) for index in range(NODES)]
    worst = []
    for memory in range(5, 5 + ROUNDS):
        bodies = iter([filter_arguments(names, f"train:1-cu12{release}", f"{memory}Gi") for release in range(9)])
        times = paced(lambda bodies=bodies: _once(next(bodies), service), 9)  # type: ignore[misc]
        worst.append(max(times, key=lambda time_and_scale: time_and_scale[0] / time_and_scale[1]))
    return middle(worst)


def _once(body: bytes, service: Service) -> float:
    started = time.thread_time_ns()
    prioritize(body, service)
    return (time.thread_time_ns() - started) / 1000


def _admission(service: Service) -> Iterator[Row]:
    body = json.dumps(review(pod(container(requests={"nvidia.com/gpu": "2"}, image=IMAGE)))).encode()
    for verb in ("mutate", "validate"):
        rounds = paced(partial(cpu, partial(answer_review, body, verb, service), 200))
        yield timed(f"{verb}, GPU pod", middle((figure.p99, scale) for figure, scale in rounds), 2000, "µs p99")


def _cache() -> Iterator[Row]:
    """Follow a cluster over TLS, and one of a tenth of its size, to show that the cost of an event does not grow."""
    small, large = bench(NODES // 10, PODS // 10), bench(NODES, PODS)
    yield timed(f"{NODES:,} nodes and {PODS:,} pods listed over TLS until ready", large.seconds, 5, "s")
    yield Row("memory of that, with all that was read on the way", large.mib, 300, "MiB")
    for what, figure, little in (
        ("node event, labels changed, 20 kB", large.node_event, small.node_event),
        ("node event, heartbeat, 20 kB", large.heartbeat, small.heartbeat),
        ("pod event, bound, 4 kB", large.pod_event, small.pod_event),
        ("pod event, bound, with a GPU, 4 kB", large.gpu_pod_event, small.gpu_pod_event),
    ):
        yield timed(what, figure, 50, "µs p50")
        yield Row("  against a tenth of the fleet", figure.at_scale_1 / little.at_scale_1, 1.5, "x")


def _end_to_end(service: Service) -> Iterator[Row]:
    """Compare filter with an echo that decodes the arguments and sends the names back, both over TLS."""
    app = create_tls_app(service, Metrics())

    async def echo(request: Request) -> Response:
        names = decode_extender_args(await request.body()).NodeNames
        return Response(encode({"NodeNames": names}), media_type="application/json")

    app.add_route("/echo", echo, methods=["POST"])
    names = [node_name(index) for index in range(NODES)]
    with served(app, service) as (client, clock):
        for what, image in (("all fit", "train:1"), ("1 in 8 refused", IMAGE)):
            body = ask(names, image=image)
            per_request(client, clock, "/scheduler/filter", body)
            ratios = [
                per_request(client, clock, "/scheduler/filter", body) / per_request(client, clock, "/echo", body)
                for _ in range(ROUNDS)
            ]
            yield Row(f"filter end to end over TLS, 5,000 names, {what}", statistics.median(ratios), 1.8, "x echo")


def _explain() -> Iterator[Row]:
    explained = explaining.bench(NODES, PODS)
    what = f"explain through a service, {NODES:,} nodes and {PODS:,} pods, worst"
    yield timed(what, explained.service_seconds, 1, "s")
    yield timed("  wall time of that", explained.wall_seconds, 1, "s")
    yield timed("explain from a JSON snapshot of that size, whole command", explained.file_seconds, 5, "s")
    yield Row("filter p99 beside an endless explain, wall time", explained.beside, 2, "x alone")
    page = watching.bench(NODES, PODS // 10)
    yield Row("filter p99 with the page loaded twice a second, wall time", page, 2, "x alone")


if __name__ == "__main__":
    sys.exit(main())
