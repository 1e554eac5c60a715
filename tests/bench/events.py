# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.events`: what Events cost with 5,000 pods of 20 Jobs that wait for 20 causes.

It starts a control plane with its own job controller and a kube-scheduler with our extender, and prints
tests/results/events.md; half an hour. What our process asked of the API server is read from the server's audit log.
"""

import argparse
import datetime as dt
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.measure import reference
from tests.controlplane.binaries import Binaries, find_binaries
from tests.controlplane.cluster import TOKENS, ControlPlane, control_plane
from tests.controlplane.fleet import add_nodes
from tests.controlplane.kubectl import Object
from tests.controlplane.processes import wait_until
from tests.e2e.stage import (
    DEPLOY,
    SOON_SECONDS,
    Service,
    create_namespace,
    create_pod,
    install_webhooks,
    serving,
    start_scheduler,
    wait_for_node,
)
from tests.e2e.waiting_causes import CASES, WaitingCase, fleet, holder

PODS = 5_000
NAMESPACE, OTHERS = "many", "others"
SAMPLE_SECONDS, QUIET_SECONDS = 10.0, 60.0
LONGEST_SECONDS = 1_440.0
WEBHOOK_SECONDS = 10
"""Limit of a webhook's call, instead of the 2 s of deploy/: the programs of a whole cluster share two cores."""
ACCOUNT = TOKENS["gpu-usher"][0]
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
}


class AuditedControlPlane(ControlPlane):
    """A control plane whose API server writes down each request of our service."""

    def _prepare(self) -> None:
        super()._prepare()
        policy, self.audit_log = self.folder / "audit.json", self.folder / "audit.log"
        policy.write_text(json.dumps(AUDIT), "utf-8")
        self.apiserver_flags = {"audit-policy-file": str(policy), "audit-log-path": str(self.audit_log)}


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen of the service, so many seconds after the first Job was created."""

    seconds: float
    pods: int
    created: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """A request of our service, so many seconds after the first Job was created."""

    seconds: float
    verb: str
    resource: str


@dataclass(frozen=True, slots=True)
class Told:
    """An Event of ours: the kind that it is on, its reason, and its time as seconds after the first Job was created."""

    kind: str
    reason: str
    seconds: float


def job(case: WaitingCase, pods: int) -> Object:
    """Write a Job whose pods wait for the cause of a case."""
    pod = case.document(NAMESPACE)
    metadata = {"annotations": pod["metadata"]["annotations"]}
    template = {"metadata": metadata, "spec": {**pod["spec"], "restartPolicy": "Never"}}
    spec = {"parallelism": pods, "completions": pods, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": case.name}, "spec": spec}


def create_job(plane: ControlPlane, document: Object) -> None:
    """Create a Job, again where the webhook was too slow beside the pods of the last one."""
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    wait_until("the Job is created", lambda: plane.api.try_create(path, document).is_success, SOON_SECONDS)


def prepare(plane: ControlPlane, service: Service) -> None:
    """Let six of the H100 be held, so that the pods of no Job fit."""
    install_webhooks(plane, service, timeoutSeconds=WEBHOOK_SECONDS)
    start_scheduler(plane, service)
    create_namespace(plane, OTHERS)
    create_namespace(plane, NAMESPACE)
    pod = holder(OTHERS)
    create_pod(plane, pod)
    wait_for_node(plane, pod)


def active_pods(plane: ControlPlane) -> int:
    """Count the pods that the Jobs have."""
    jobs = plane.api.items(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs")
    return sum((job.get("status") or {}).get("active") or 0 for job in jobs)


def sampled(plane: ControlPlane, service: Service, pods: int) -> Iterator[Sample]:
    """Sample the service every SAMPLE_SECONDS, until all are told and for QUIET_SECONDS more, or LONGEST_SECONDS."""
    began, objects = time.monotonic(), pods + len(CASES)
    quiet_at = float("inf")
    while (seconds := time.monotonic() - began) < min(LONGEST_SECONDS, quiet_at):
        created = int(service.metric("gpu_usher_events_total", result="created"))
        sample = Sample(seconds, active_pods(plane), created, service.process.cpu_seconds())
        print(*map(round, (sample.seconds, sample.pods, created, sample.cpu_seconds)), file=sys.stderr, flush=True)
        yield sample
        if created >= objects:
            quiet_at = min(quiet_at, seconds + QUIET_SECONDS)
        time.sleep(SAMPLE_SECONDS)


def memory_mib(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process and its peak in MiB (proc(5), status)."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if "kB" in value}
    return kib["VmRSS"] >> 10, kib["VmHWM"] >> 10


def calls(log: Path, began: dt.datetime) -> list[Call]:
    """Read the requests of our service from the audit log, but for the watches."""
    entries = map(json.loads, log.read_text("utf-8").splitlines())
    return [
        Call(_seconds(entry["requestReceivedTimestamp"], began), entry["verb"], entry["objectRef"]["resource"])
        for entry in entries
        if entry["verb"] != "watch" and "objectRef" in entry
    ]


def told(plane: ControlPlane, began: dt.datetime) -> list[Told]:
    """List our Events by their time."""
    events = plane.api.items(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")
    ours = [event for event in events if event.get("reportingController") == "gpu-usher"]
    listed = [Told(event["regarding"]["kind"], event["reason"], _seconds(event["eventTime"], began)) for event in ours]
    return sorted(listed, key=lambda one: one.seconds)


def _seconds(timestamp: str, began: dt.datetime) -> float:
    return (dt.datetime.fromisoformat(timestamp) - began).total_seconds()


def cpu_share(samples: Sequence[Sample], start: float, end: float) -> float:
    """Return the percent of a core that the service took between two seconds."""
    within = [sample for sample in samples if start <= sample.seconds <= end] or samples[-1:]
    first, last = within[0], within[-1]
    return 100 * (last.cpu_seconds - first.cpu_seconds) / max(last.seconds - first.seconds, 1.0)


def rows(samples: Sequence[Sample], listed: Sequence[Told], asked: Sequence[Call]) -> Iterator[tuple[str, str]]:
    """Write the table, each row its name and its figure."""
    by_kind = {kind: [one for one in listed if one.kind == kind] for kind in ("Job", "Pod")}
    jobs_told, pods_told = (events[-1].seconds if events else 0.0 for events in by_kind.values())
    pods_there = next(sample.seconds for sample in samples if sample.pods >= max(one.pods for one in samples))
    read = max(call.seconds for call in asked if (call.verb, call.resource) == ("get", "pods"))
    end = samples[-1].seconds
    yield "pods that wait, and Jobs", f"{samples[-1].pods:,}, {len(CASES)}"
    yield (
        "Events on Jobs, on pods, for how many causes",
        (f"{len(by_kind['Job'])}, {len(by_kind['Pod']):,}, {len({one.reason for one in listed})}"),
    )
    yield "all pods exist and wait, after so many seconds", f"{pods_there:,.0f}"
    yield "the first Job is told", f"{listed[0].seconds:,.0f}"
    yield "all Jobs are told", f"{jobs_told:,.0f}"
    yield "all pods were read", f"{read:,.0f}"
    yield "all pods are told", f"{pods_told:,.0f}"
    telling = [call for call in asked if jobs_told < call.seconds <= pods_told]
    for (verb, resource), count in sorted(Counter((call.verb, call.resource) for call in telling).items()):
        yield f"requests a second between these two, {verb} {resource}", f"{count / (pods_told - jobs_told):.2f}"
    quiet_at = pods_told + SAMPLE_SECONDS
    quiet = [call for call in asked if quiet_at < call.seconds <= end]
    yield "requests a second once all are told", f"{len(quiet) / max(end - quiet_at, 1.0):.2f}"
    yield (
        "CPU until all pods exist, with admission and filter, percent of a core",
        (f"{cpu_share(samples, 0, pods_there):.0f}"),
    )
    yield "CPU while pods are read", f"{cpu_share(samples, pods_there, read):.1f}"
    yield "CPU from then until all are told", f"{cpu_share(samples, read, pods_told):.1f}"
    yield "CPU once all are told", f"{cpu_share(samples, min(quiet_at, end), end):.1f}"


PAGE = """# Events with 5,000 pods that wait

`python -m tests.bench.events` wrote this: a real API server, job controller and kube-scheduler with our webhooks and
extender; 20 Jobs, whose pods wait for the causes of tests/e2e/waiting_causes.py on 12 nodes. Seconds are from the
creation of the first Job. The CPU time is that of the whole service; requests are those of the API server's audit log,
without watches. A loop of 100,000 additions took {pace:.1f} ms beside it; two quiet cores take 2.

| what | figure |
|---|---:|
{rows}"""


def main(pods: int) -> None:
    """Run the bench and print the page."""
    binaries = find_binaries()
    assert isinstance(binaries, Binaries), binaries
    os.environ["GPU_USHER_EVENTS"] = "true"
    with control_plane(binaries, make=AuditedControlPlane) as plane:
        assert isinstance(plane, AuditedControlPlane)
        create_namespace(plane, "gpu-usher")
        files = (DEPLOY / "components" / "events" / f"{name}.yaml" for name in ("rbac", "lease", "wake"))
        plane.kubectl("apply", *(word for file in files for word in ("-f", str(file))))
        add_nodes(plane.api, fleet())
        with serving(plane) as service:
            prepare(plane, service)
            began = dt.datetime.now(dt.UTC)
            for case in CASES:
                create_job(plane, job(case, pods // len(CASES)))
            samples = list(sampled(plane, service, pods))
            resident, peak = memory_mib(service.process.pid)
            memory = ("memory in the end, MiB", str(resident)), ("memory at most, MiB", str(peak))
            table = [*rows(samples, told(plane, began), calls(plane.audit_log, began)), *memory]
            print(PAGE.format(pace=reference(), rows="\n".join(f"| {what} | {figure} |" for what, figure in table)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=PODS, help="so many pods in all")
    main(parser.parse_args().pods)
