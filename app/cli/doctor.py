# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher doctor`: shows what is wrong with a fleet, and what to do about it."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from app.cli.cluster import Cluster
from app.cli.live_doctor import examine_live, examine_scheduler, examined_policies, has_cpu_guard, runtime_class_names
from app.cli.output import Output, show
from app.cli.progress import show_progress
from app.cli.source import Fleet, state_of
from app.cli.usage_history import idle_of_fleet
from app.cluster.doctor_survey import ClusterObjects, survey_cluster
from app.cluster.gpu_health_polling import find_source, poll_once
from app.cluster.snapshot import SNAPSHOT_KINDS, fill
from app.cluster.state import State
from app.doctor.cluster_objects import asks_for_gpus
from app.doctor.device_checks import ExaminedDevices, examine_devices
from app.doctor.fleet_checks import ExaminedFleet, Finding, FindingLevel, by_urgency, examine
from app.doctor.held_gpus import examine_held, read_held_gpus, with_pods
from app.doctor.operand_checks import examine_runtime_classes
from app.knowledge.gpu_resources import Families
from app.nodes.model import Node
from app.settings import Settings
from app.telemetry.logs import now
from app.values.errors import ApiError, BadInput

NAMES_SHOWN = 4
COLOUR = {FindingLevel.Problem: "red", FindingLevel.Advice: "yellow"}


def doctor(
    *,
    fleet: Fleet,
    prometheus: Annotated[str | None, typer.Option(help="A Prometheus with DCGM's metrics.")] = None,
    dcgm_exporters: Annotated[
        list[str] | None, typer.Option(help="URLs of DCGM exporters instead of a Prometheus.")
    ] = None,
    scheduler_config: Annotated[
        Path | None, typer.Option(help="The scheduler's configuration; else ConfigMap gpu-usher-scheduler.")
    ] = None,
    namespace: Annotated[str, typer.Option(envvar="GPU_USHER_NAMESPACE", help="Where gpu-usher runs.")] = "gpu-usher",
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for advice too.")] = False,
    output: Output = "text",
) -> None:
    """Examine every node, and of a live cluster what GPU pods depend on; exit 1 if something hurts pods now.

    Nothing is written. What the kubeconfig's user may not read is reported as advice (NotLookedAt).
    """
    if scheduler_config and not fleet.live:
        raise BadInput("--scheduler-config: wants --kubeconfig; without a cluster, scheduler-config --verify checks it")
    # A live cluster is read by the survey, which continues if one kind may not be read.
    objects = [] if fleet.live else fleet.read()
    state = state_of(objects)
    survey = _survey(fleet, namespace, state) if fleet.live else None
    pods = [document for document in objects if document.get("kind") == "Pod"]
    pods += survey.objects.get("Pod", ()) if survey is not None else ()
    nodes = tuple(state.nodes.values())
    source = find_source(
        Settings(prometheus=prometheus, dcgm_exporters=tuple(dcgm_exporters or ())), state.knowledge.dcgm
    )
    idle = idle_of_fleet(prometheus, None, state)
    with show_progress(f"examining {len(nodes)} nodes"):
        health = asyncio.run(poll_once(source, state.knowledge)) if source else {}
        guard = survey is not None and has_cpu_guard(survey)
        examined = ExaminedFleet(nodes, health, frozenset(state.overrun), cpu_guard=guard)
        findings = examine(with_pods(examined, pods, state.knowledge))
        findings = (*findings, *examine_devices(ExaminedDevices(state.nodes, state.devices.dra.copy())))
        findings = (*findings, *examine_held(read_held_gpus(pods, state.knowledge, idle)))
        if survey is not None:
            findings = (*examine_live(survey, state, namespace, scheduler_config, now()), *findings)
        else:
            policies, unreadable = examined_policies(objects, state.knowledge, namespace, now())
            wanted = frozenset(runtime_class_names(policies))
            classes = examine_runtime_classes(nodes, state.runtime_classes, wanted, state.knowledge)
            config_maps = [document for document in objects if document.get("kind") == "ConfigMap"]
            scheduler = examine_scheduler(config_maps, state, None)
            findings = (*unreadable, *scheduler, *findings, *classes)
    findings = by_urgency(findings)
    show(findings, output, lambda console: _show(console, findings, summary_of(nodes, state.knowledge.families)))
    raise typer.Exit(1 if any(strict or finding.level is FindingLevel.Problem for finding in findings) else 0)


def _survey(cluster: Cluster, namespace: str, state: State) -> ClusterObjects:
    keep_pod = partial(asks_for_gpus, families=state.knowledge.families)
    load = cluster.load()
    with cluster.telling(), show_progress("reading the cluster") as report:
        survey = asyncio.run(survey_cluster(load, namespace, now, keep_pod, report))
        if not survey.reached:
            (answer,) = survey.refused.values()
            raise ApiError(int(answer[:3]) if answer[:3].isdigit() else None, answer)
    fill(state, [document for kind in SNAPSHOT_KINDS for document in survey.objects.get(kind, ())])
    return survey


def summary_of(nodes: Sequence[Node], families: Families) -> str:
    """Count the nodes, those with GPUs for containers, and those that give theirs to virtual machines."""
    with_gpus = sum(node.has_gpus for node in nodes)
    machines = sum(any(families.passthrough_family(name) for name in node.allocatable) for node in nodes)
    passed = f", {machines} that pass GPUs through to virtual machines" if machines else ""
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {with_gpus} with GPUs{passed}"


def _show(console: Console, findings: tuple[Finding, ...], nodes: str) -> None:
    for finding in findings:
        console.print(
            f"[bold {COLOUR[finding.level]}]{finding.level.value:8}[/] [bold]{finding.check}[/]: {escape(finding.what)}"
        )
        console.print(f"         on {_names(finding.nodes + finding.objects)}", markup=False)
        console.print(f"         [green]→[/] {escape(finding.remedy)}")
    problems = sum(finding.level is FindingLevel.Problem for finding in findings)
    problem_count = f"{problems or 'no'} problem{'s' * (problems != 1)}"
    console.print(f"{nodes}: {problem_count}, {len(findings) - problems or 'no'} advice")


def _names(nodes: tuple[str, ...]) -> str:
    more = len(nodes) - NAMES_SHOWN
    return ", ".join(nodes[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
