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
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response
from rich.console import Console
from rich.table import Table

from app.api.admission_routes import review as answer_review
from app.api.app import create_tls_app
from app.api.extender_routes import filter_nodes, prioritize
from app.api.wire import decode_extender_args, encode
from app.cluster.files import shipped_policies
from app.server.composition import settle
from app.server.service import Service
from app.telemetry.logs import LOGGER
from app.telemetry.metrics import Metrics
from tests.bench import explaining, watching
from tests.bench.fleet import CPU, node, node_name, nodes, pods
from tests.bench.following import bench
from tests.bench.measure import Figure, cpu, per_request, reference, served
from tests.builders import CONTRACT, container, make_service, pod, policies, policy, review

NODES = 5_000
PODS = 50_000
ROUNDS = 5
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


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `budget` is in the unit of `measured`."""

    what: str
    measured: float
    budget: float
    unit: str


def main() -> int:
    """Measure and print; a missed budget is marked, and does not fail the command."""
    LOGGER.setLevel(logging.CRITICAL)
    pace = [reference()]
    with tempfile.TemporaryDirectory() as folder:
        cache = list(_cache())
        pace.append(reference())
        service = _service(folder, PODS)
        rows = [
            *cache,
            *_extender(service),
            *_admission(service),
            *_end_to_end(service),
            *_growth(folder),
            *_explain(),
        ]
    _print(rows)
    pace.append(reference())
    print(f"a loop of 100,000 additions took {min(pace):.1f} to {max(pace):.1f} ms; shared machines change pace")
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
    settle()  # freeze objects for the garbage collector, as `serve` does
    return service


def _growth(folder: str) -> Iterator[Row]:
    """Measure questions about 500 nodes with more and more bound pods: per number, the least of several rounds."""
    sampled = _args([node_name(index) for index in random.Random(1).sample(range(NODES), 500)])

    def both(service: Service) -> None:
        filter_nodes(sampled, service)
        prioritize(sampled, service)

    services = {bound: _service(folder, bound) for bound in BOUND}
    least = dict.fromkeys(BOUND, float("inf"))
    for _ in range(ROUNDS):
        for bound, service in services.items():
            least[bound] = min(least[bound], cpu(lambda service=service: both(service), 100).p50)  # type: ignore[misc]
    for bound in BOUND[1:]:
        yield Row(f"filter and prioritize, {bound:,} bound pods against none", least[bound] / least[0], 1.2, "x")


def _extender(service: Service) -> Iterator[Row]:
    everyone = _args([node_name(index) for index in range(NODES)])
    sampled = _args([node_name(index) for index in random.Random(1).sample(range(NODES), 500)])
    drawn = random.Random(2)
    updates = iter(range(10**6))

    def one_percent_changes() -> None:
        for index in drawn.sample(range(NODES), NODES // 100):
            service.state.put_node(node(index))

    def both() -> None:
        filter_nodes(sampled, service)
        prioritize(sampled, service)

    def unseen() -> bytes:
        return _args([node_name(index) for index in range(NODES)], f"train:1-cu12{next(updates) % 9}")

    yield from _pair("filter, 5,000 names", cpu(lambda: filter_nodes(everyone, service), 500), 1000, 3000)
    again = cpu(lambda: prioritize(everyone, service), 200, one_percent_changes)
    yield from _pair("prioritize, 5,000 names, 1 % of nodes changed", again, 2000, 5000)
    yield from _pair("filter and prioritize, 500 names", cpu(both, 1000), 200, 1000)
    bodies = iter([unseen() for _ in range(9)])
    first = [_once(next(bodies), service) for _ in range(9)]
    yield Row("first sight of a demand, prioritize 5,000 names", max(first), 25_000, "µs worst of 9")
    full = json.dumps({**json.loads(_args([])), "NodeNames": None, "Nodes": {"items": [*nodes(1000)]}}).encode()
    yield Row("filter, 1,000 full nodes", cpu(lambda: filter_nodes(full, service), 20).p99, 150_000, "µs p99")


def _once(body: bytes, service: Service) -> float:
    started = time.thread_time_ns()
    prioritize(body, service)
    return (time.thread_time_ns() - started) / 1000


def _admission(service: Service) -> Iterator[Row]:
    body = json.dumps(review(pod(container(requests={"nvidia.com/gpu": "2"}, image=IMAGE)))).encode()
    for verb in ("mutate", "validate"):
        figure = cpu(lambda verb=verb: answer_review(body, verb, service), 1000)  # type: ignore[misc]
        yield Row(f"{verb}, GPU pod", figure.p99, 2000, "µs p99")


def _cache() -> Iterator[Row]:
    """Follow a cluster over TLS, and one of a tenth of its size, to show that the cost of an event does not grow."""
    small, large = bench(NODES // 10, PODS // 10), bench(NODES, PODS)
    yield Row(f"{NODES:,} nodes and {PODS:,} pods listed over TLS until ready", large.seconds, 5, "s")
    yield Row("memory of that, with all that was read on the way", large.mib, 300, "MiB")
    for what, figure, little in (
        ("node event, labels changed, 20 kB", large.node_event, small.node_event),
        ("node event, heartbeat, 20 kB", large.heartbeat, small.heartbeat),
        ("pod event, bound, 4 kB", large.pod_event, small.pod_event),
    ):
        yield Row(what, figure.p50, 50, "µs p50")
        yield Row("  against a tenth of the fleet", figure.p50 / little.p50, 1.5, "x")


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
            body = _args(names, image)
            per_request(client, clock, "/scheduler/filter", body)
            ratios = [
                per_request(client, clock, "/scheduler/filter", body) / per_request(client, clock, "/echo", body)
                for _ in range(ROUNDS)
            ]
            yield Row(f"filter end to end over TLS, 5,000 names, {what}", statistics.median(ratios), 1.8, "x echo")


def _explain() -> Iterator[Row]:
    explained = explaining.bench(NODES, PODS)
    yield Row(f"explain through a service, {NODES:,} nodes and {PODS:,} pods, worst", explained.service_seconds, 1, "s")
    yield Row("  wall time of that", explained.wall_seconds, 1, "s")
    yield Row("explain from a JSON snapshot of that size, whole command", explained.file_seconds, 5, "s")
    yield Row("filter p99 beside an endless explain, wall time", explained.beside / explained.alone, 2, "x alone")
    page = watching.bench(NODES, PODS // 10)
    yield Row("CPU of filter with the page open", page.cpu, 1.05, "x alone")
    yield Row("filter p99 with the page loaded twice a second, wall time", page.loaded, 2, "x alone")


def _pair(what: str, figure: Figure, p50: float, p99: float) -> Iterator[Row]:
    yield Row(what, figure.p50, p50, "µs p50")
    yield Row(what, figure.p99, p99, "µs p99")


def _args(names: list[str], image: str = IMAGE) -> bytes:
    """Write an ExtenderArgs body as kube-scheduler does."""
    recorded = json.loads((CONTRACT / "extender-filter-nodecachecapable-true.request.json").read_text("utf-8"))
    recorded["Pod"]["spec"]["containers"][0]["image"] = image
    recorded["Pod"]["metadata"]["annotations"] = {"gpu-usher.io/gpu-memory": "4Gi"}
    return json.dumps({**recorded, "NodeNames": names}, separators=(",", ":")).encode()


def _print(rows: list[Row]) -> None:
    table = Table(title="make bench: CPU time of the serving thread", title_justify="left", header_style="bold")
    for name in ("what", "found", "budget", "unit", ""):
        table.add_column(name, justify="right" if name in ("found", "budget") else "left")
    for row in rows:
        mark = "[green]holds[/]" if row.measured <= row.budget else "[red]missed[/]"
        digits = 2 if row.budget < 100 else 0
        table.add_row(row.what, f"{row.measured:,.{digits}f}", f"{row.budget:,g}", row.unit, mark)
    Console(highlight=False, width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
