# SPDX-License-Identifier: Apache-2.0
"""`make bench-scheduler`: pods per second of a real kube-scheduler without an extender, with an echo, and with ours.

Pods are created first, then the scheduler starts; the clock runs from its first to its last binding. Each round plays
every variant once, and ratios are taken within a round, because absolute figures of a shared machine vary by a third.
The packing echo decides nothing, but packs pods on few nodes as we do: what that costs the scheduler is not our cost.
"""

import argparse
import base64
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from app.admission.json_patch import apply
from app.admission.review import mutate
from app.admission.reviewed_pod import ReviewContext
from app.nodes.model import Node
from app.nodes.reading import read_node
from app.schedulerconfig.write import ConfigurationPlan, packed_resources, write
from tests.bench.fleet import MAKES, node
from tests.bench.load import add_fleet, add_pods
from tests.bench.workloads import WORKLOADS
from tests.builders import fleet, knowledge, setting
from tests.controlplane.binaries import NOOP_EXTENDER, Binaries, find_binaries
from tests.controlplane.cluster import ControlPlane, Scheduler, control_plane
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, free_port, wait_until
from tests.e2e.stage import serving

LIMIT_SECONDS = 300
"""Seconds that one run may take."""
WHERE = "load"
VARIANTS = (
    "none", "Go no-op", "echo", "packing echo", "all", "shortlist", "plain shortlist", "shortlist, scored",
    "echo single",
)  # fmt: skip
FIVE = ("none", "none batching", "webhook-only", "second scheduler", "in the cluster's scheduler")
"""The shapes of an installation that `--variants five` compares."""
"""The extenders that are compared, by name.

`none` is the scheduler alone. `Go no-op` and `echo` are extenders in Go and Python that keep every node; `packing echo`
scores them so that pods are packed, and `echo single` is not asked for scores. `all` and `shortlist` are ours,
by --filter-answer; with `scored` prioritize is asked as well, and with `plain` the connection has no TLS.
`none batching` has no default spreading constraints, so that kube-scheduler batches; `webhook-only` is what
`scheduler-config --no-extender` writes, for pods as our webhook makes them; `second scheduler` calls us on loopback,
and pods without GPUs are for the scheduler as it ships; `in the cluster's scheduler` calls us by TLS, where there would
be batching without us.
"""
BATCHING = {"pluginConfig": [{"name": "PodTopologySpread", "args": {"defaultingType": "List"}}]}
"""What a profile needs for opportunistic batching (docs/reference/control-plane.md#batching)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One row of the table; `percentage` is the share of nodes to score, or None for the scheduler's own sampling."""

    nodes: int
    pods: int
    percentage: int | None
    workload: str = "one GPU"


@dataclass(frozen=True, slots=True)
class Run:
    """One variant's result in one round; milliseconds are per pod: in the scheduling algorithm, and CPU by process."""

    pods_per_second: float
    algorithm_ms: float
    scheduler_cpu_ms: float
    extender_cpu_ms: float


SETUPS = (
    Setup(1000, 400, None),
    Setup(5000, 400, None),
    Setup(1000, 200, 100),
    Setup(5000, 100, 100),
)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--setups", default="0,1,2,3", help="which of the four set-ups")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="which extenders")
    parser.add_argument("--workload", default="one GPU", choices=WORKLOADS, help="what the pods ask for")
    words = parser.parse_args()
    binaries = find_binaries()
    if isinstance(binaries, str):
        print(binaries, file=sys.stderr)
        return 2
    console = Console(highlight=False, width=150)
    for index in words.setups.split(","):
        setup = replace(SETUPS[int(index)], workload=words.workload)
        variants = list(FIVE) if words.variants == "five" else words.variants.split(",")
        runs = measure(binaries, setup, words.rounds, variants, console)
        console.print(report(setup, runs))
    return 0


def measure(
    binaries: Binaries, setup: Setup, rounds: int, variants: list[str], console: Console
) -> dict[str, list[Run]]:
    """Play every variant in every round, in rotating order."""
    runs: dict[str, list[Run]] = {variant: [] for variant in variants}
    with control_plane(binaries, controllers=False) as plane, extenders(plane, binaries) as places:
        add_fleet(plane.api, setup.nodes)
        for number in range(rounds):
            shift = number % len(variants)
            for variant in variants[shift:] + variants[:shift]:
                if variant in places:
                    runs[variant].append(play(plane, setup, variant, *places[variant]))
            figures = ", ".join(f"{name} {done[-1].pods_per_second:.0f}" for name, done in runs.items() if done)
            console.print(f"{setup.nodes} nodes, round {number + 1} of {rounds}, pods/s: {figures}", style="dim")
    return {variant: done for variant, done in runs.items() if done}


@contextmanager
def extenders(plane: ControlPlane, binaries: Binaries) -> Iterator[dict[str, tuple[Process | None, Object | None]]]:
    """Start every extender; yields (process, extender's configuration) by variant."""
    started: list[Process] = []
    namespace_of_load(plane)
    beside = f"127.0.0.1:{free_port()}"
    with (
        serving(plane, "all") as every,
        serving(plane, "shortlist", filter_answer="shortlist", scheduler_address=beside) as shortlist,
    ):
        pki = plane.folder / "pki"
        echo, noop = free_port(), free_port()
        words = ["-m", "tests.bench.echo", f"--port={echo}", f"--certs={pki}"]
        started.append(Process("echo", [sys.executable, *words], plane.folder / "echo.log"))
        places: dict[str, tuple[Process | None, Object | None]] = {
            "none": (None, None),
            "echo": (started[0], configuration(f"https://127.0.0.1:{echo}", plane.ca)),
            "packing echo": (started[0], configuration(f"https://127.0.0.1:{echo}", plane.ca, path="packing")),
            "echo single": (started[0], configuration(f"https://127.0.0.1:{echo}", plane.ca, single=True)),
            "all": (every.process, configuration(every.url, every.ca)),
            "shortlist": (shortlist.process, configuration(shortlist.url, shortlist.ca, single=True)),
            "plain shortlist": (shortlist.process, plain_configuration(beside)),
            "shortlist, scored": (shortlist.process, configuration(shortlist.url, shortlist.ca)),
            "none batching": (None, None),
            "webhook-only": (None, None),
            "second scheduler": (shortlist.process, plain_configuration(beside)),
            "in the cluster's scheduler": (
                shortlist.process,
                configuration(shortlist.url, shortlist.ca, single=True),
            ),
        }
        if NOOP_EXTENDER in binaries.commands:
            flags = [f"-listen=127.0.0.1:{noop}", f"-cert={pki / 'tls.crt'}", f"-key={pki / 'tls.key'}"]
            command = [*binaries.command(NOOP_EXTENDER), *flags]
            started.append(Process("noop", command, plane.folder / "noop.log"))
            places["Go no-op"] = (started[1], configuration(f"https://127.0.0.1:{noop}", plane.ca))
        try:
            yield places
        finally:
            for process in started:
                process.stop()


def namespace_of_load(plane: ControlPlane) -> None:
    """Create the namespace; without controllers no service account is created in it, and no pod needs one."""
    for name in (WHERE, "gpu-usher"):
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})


def configuration(url: str, ca: Path, single: bool = False, path: str = "scheduler") -> Object:
    """Write the extender's configuration; with `single`, filter names one node, and prioritize is not called."""
    scored = {} if single else {"prioritizeVerb": "prioritize", "weight": 10}
    return {
        "urlPrefix": f"{url}/{path}",
        "filterVerb": "filter",
        **scored,
        "enableHTTPS": True,
        "tlsConfig": {"caData": base64.b64encode(ca.read_bytes()).decode(), "serverName": "localhost"},
        "httpTimeout": "10s",
        "nodeCacheCapable": True,
        "managedResources": [{"name": "nvidia.com/gpu", "ignoredByScheduler": False}],
    }


def plain_configuration(address: str) -> Object:
    """Write the configuration of an extender over plain HTTP, as beside the second scheduler, without prioritize."""
    return {
        "urlPrefix": f"http://{address}/scheduler",
        "filterVerb": "filter",
        "httpTimeout": "10s",
        "nodeCacheCapable": True,
        "managedResources": [{"name": "nvidia.com/gpu", "ignoredByScheduler": False}],
    }


def play(plane: ControlPlane, setup: Setup, variant: str, process: Process | None, extender: Object | None) -> Run:
    """Create the pods, start a scheduler, and time it from its first to its last binding."""
    name = "load-" + variant.replace(" ", "-").replace("'", "").lower()
    workload = WORKLOADS[setup.workload]
    if variant == "second scheduler" and setup.workload == "CPU":
        process, extender = None, None  # its pods are those of the cluster's scheduler, which has no extender
    profiles = [f"{name}-{number}" for number in range(workload.profiles)]
    pods = workload.pods(setup.pods, profiles)
    add_pods(plane.api, WHERE, map(as_admitted, pods) if variant == "webhook-only" else pods)
    extenders = [extender] if extender else []
    if extender and workload.every_pod:
        extenders = _of_every_pod(extender)
    cpu = process.cpu_seconds() if process else 0.0
    with bindings(plane) as moments:
        more = profile_of(variant, setup)
        scheduler = plane.start_scheduler(scheduler_document(profiles, setup, extenders, more), name)
        wait_until("every pod is bound", lambda: len(moments) >= setup.pods, LIMIT_SECONDS, scheduler.process)
    try:
        return Run(
            (setup.pods - 1) / (max(moments.values()) - min(moments.values())),
            1000 * algorithm_seconds(scheduler) / setup.pods,
            1000 * scheduler.process.cpu_seconds() / setup.pods,
            1000 * ((process.cpu_seconds() if process else 0.0) - cpu) / setup.pods,
        )
    finally:
        plane.stop(name)
        plane.api.delete(f"/api/v1/namespaces/{WHERE}/pods")
        wait_until("the pods are gone", lambda: not plane.api.items(f"/api/v1/namespaces/{WHERE}/pods", limit="1"), 60)


@contextmanager
def bindings(plane: ControlPlane) -> Iterator[dict[str, float]]:
    """Watch pods being bound: time by name. A watch of our own costs the scheduler nothing, a scrape of it would."""
    moments: dict[str, float] = {}
    stop = threading.Event()
    path = f"/api/v1/namespaces/{WHERE}/pods"
    version = [plane.api.get(path, limit="1")["metadata"]["resourceVersion"]]

    def read() -> None:
        with plane.api.like() as own:
            while not stop.is_set():  # the API server ends the stream of a reader that is too slow for it
                params = {"watch": "true", "resourceVersion": version[0], "timeoutSeconds": "2"}
                with own.client.stream("GET", path, params=params) as answer:
                    for line in answer.iter_lines():
                        version[0] = line.partition('"resourceVersion":"')[2].partition('"')[0] or version[0]
                        if '"nodeName":"' in line:
                            moments.setdefault(line.partition('"name":"')[2].partition('"')[0], time.monotonic())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield moments
    finally:
        stop.set()
        thread.join(10)


def _of_every_pod(extender: Object) -> list[Object]:
    """Have every pod sent: to ours by two extenders as `scheduler-config --every-pod` has it, to others by one."""
    of_every_pod = {key: value for key, value in extender.items() if key != "managedResources"}
    if not extender["urlPrefix"].endswith("/scheduler"):
        return [of_every_pod]
    scored = {"prioritizeVerb": "prioritize", "weight": 10, "ignorable": True}
    return [extender, {**of_every_pod, **scored, "urlPrefix": f"{extender['urlPrefix']}/other-pods"}]


def profile_of(variant: str, setup: Setup) -> Object:
    """Write what a variant adds to each profile; pods without GPUs keep the profile that batches."""
    if variant in ("none batching", "in the cluster's scheduler"):
        return BATCHING
    if variant != "webhook-only":
        return {}
    if setup.workload == "CPU":
        return BATCHING
    resources = packed_resources(nodes_of_bench(), knowledge())
    plan = ConfigurationPlan("second", "", b"", resources, extender=False)
    profile: Object = yaml.safe_load(write(plan))["profiles"][0]
    return {key: profile[key] for key in ("plugins", "pluginConfig")}


def as_admitted(pod: Object) -> Object:
    """Return a pod with the tolerations and the affinity that our webhook gives it on this fleet."""
    named = {**pod, "spec": {**pod["spec"], "schedulerName": "default-scheduler"}}
    made: Object = apply(named, mutate(named, WHERE, {}, admission_of_fleet()).operations)
    return {**made, "spec": {**made["spec"], "schedulerName": pod["spec"]["schedulerName"]}}


@cache
def admission_of_fleet() -> ReviewContext:
    """Return the context of a review on the fleet of the bench."""
    return setting(fleet=fleet(*nodes_of_bench()))


def nodes_of_bench() -> list[Node]:
    """Return one node of each make of the bench's fleet."""
    return [read_node(node(index), knowledge()) for index in range(len(MAKES))]


def scheduler_document(
    profiles: list[str], setup: Setup, extenders: list[Object], more: Mapping[str, Any] | None = None
) -> Object:
    """Write the whole configuration; `more` are fields of each profile."""
    sampling = {} if setup.percentage is None else {"percentageOfNodesToScore": setup.percentage}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": name, **sampling, **(more or {})} for name in profiles],
        **({"extenders": extenders} if extenders else {}),
    }


def algorithm_seconds(scheduler: Scheduler) -> float:
    """Return the seconds that the scheduler spent in its algorithm, including calls of extenders."""
    name = "scheduler_scheduling_algorithm_duration_seconds_sum"
    return sum(float(line.split()[-1]) for line in scheduler.metrics().splitlines() if line.startswith(name))


def report(setup: Setup, runs: dict[str, list[Run]]) -> Table:
    """Write the table of the medians and the paired ratios."""
    sampling = "default sampling" if setup.percentage is None else f"{setup.percentage} % of nodes scored"
    rounds = f"{setup.workload}, {len(runs['none'])} rounds"
    title = f"make bench-scheduler: {setup.nodes:,} nodes, {setup.pods:,} pods, {sampling}, {rounds}"
    table = Table(title=title, title_justify="left", header_style="bold")
    heads = ("extender", "pods/s", "÷ none", "quartiles", "algorithm ms/pod", "scheduler CPU ms", "its CPU ms")
    for head in heads:
        table.add_column(head, justify="left" if head == "extender" else "right")
    for variant, done in runs.items():
        paired = ratios(done, runs["none"])
        table.add_row(
            variant,
            f"{median(done, 'pods_per_second'):.0f}",
            f"{statistics.median(paired):.2f}",
            quartiles(paired) if variant != "none" else "",
            f"{median(done, 'algorithm_ms'):.1f}",
            f"{median(done, 'scheduler_cpu_ms'):.1f}",
            f"{median(done, 'extender_cpu_ms'):.2f}",
        )
    return table


def median(runs: list[Run], field: str) -> float:
    """Return the median of a figure."""
    return float(statistics.median(getattr(run, field) for run in runs))


def ratios(runs: list[Run], base: list[Run]) -> list[float]:
    """Divide round by round."""
    return [one.pods_per_second / other.pods_per_second for one, other in zip(runs, base, strict=True)]


def quartiles(values: list[float]) -> str:
    """Write the first and the third quartile."""
    if len(values) < 2:
        return ""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.2f}-{high:.2f}"


if __name__ == "__main__":
    sys.exit(main())
