# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher doctor`: shows what is wrong with a fleet or a live cluster, and what to do about it."""

import asyncio
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from app.admission.reviewed_pod import has_our_scheduler
from app.cli.options import Fleet, PrometheusOptions
from app.cli.output import names_of, show, show_progress
from app.cli.source import idle_in, load_of, read, state_of
from app.cluster.snapshot_policies import policies_or_last_good
from app.doctor.cluster_objects import ExaminedCluster
from app.doctor.device_checks import examine_devices
from app.doctor.extender_need import ExtenderNeed, extender_need, kinds_of_pods, need_record
from app.doctor.fleet_checks import Finding, FindingLevel, advice, by_urgency, examine, problem
from app.doctor.held_gpus import (
    examine_held,
    pods_that_fail_to_start,
    quotas_that_count_nothing,
    read_held_gpus,
    refused_pods,
    with_pods,
)
from app.doctor.node_states import NOT_READY, examine_node_states, is_outage, read_ages
from app.doctor.operand_checks import examine_runtime_classes
from app.doctor.replica_checks import registries_that_are_silent
from app.doctor.webhook_checks import GUARD, webhooks
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.nodes.gpu_health import Health
from app.nodes.model import Node
from app.policy.compiled import PolicySet
from app.policy.load import MOUNTED
from app.settings import Settings
from app.telemetry.logs import now
from app.values.computations import finish
from app.values.errors import BadInput, PolicyError
from app.values.reasons import counted
from app.world.scheduling_groups import gang_of_pod
from app.world.state import State
from app.world.world import World, world_of

if TYPE_CHECKING:
    from app.explain.explanation import GangVerdict

SCHEDULER_MAP, SCHEDULER_KEY = "gpu-usher-scheduler", "config.yaml"
"""Names in deploy/components/second-scheduler and deploy/base."""


def examined_policies(
    documents: Sequence[Mapping[str, Any]], knowledge: Knowledge, namespace: str, now: dt.datetime
) -> tuple[PolicySet, list[Finding]]:
    """Load the policies among the objects, else the shipped ones; of an invalid set what a replica would serve."""
    policies, serving, policy_problems = policies_or_last_good(
        documents, None, knowledge, now.date().isoformat(), namespace
    )
    remedy = f"correct them: replicas that start serve the {serving} until then"
    return policies, [
        problem("PolicyUnreadable", text, remedy, _policy_source(text, documents, namespace))
        for text in policy_problems
    ]


def _policy_source(text: str, documents: Sequence[Mapping[str, Any]], namespace: str) -> str:
    """Name the object that a problem is about: it begins with a key of the mounted ConfigMap, or its name."""
    file = text.partition(":")[0]
    for document in documents:
        metadata = document.get("metadata") or {}
        named = (metadata.get("namespace"), metadata.get("name")) == (namespace, MOUNTED)
        if named and file in (document.get("data") or {}):
            return f"ConfigMap {namespace}/{MOUNTED}, key {file}"
    return file if " " in file else f"Namespace {namespace}"


def _health(settings: Settings, knowledge: Knowledge) -> Mapping[str, Health]:
    """Ask for what DCGM reports of the nodes, where an option names a source. Raises BadInput, SourceError."""
    if not (settings.prometheus or settings.dcgm_exporters):
        return {}
    from app.cluster.gpu_health_polling import find_source, poll_once

    source = find_source(settings, knowledge.dcgm)
    return asyncio.run(poll_once(source, knowledge)) if source else {}


def _silent_since(prometheus: str) -> dict[str, str]:
    """Return since when image registries do not answer the replicas, by their names."""
    from app.cluster.prometheus import silent_registries

    silence = asyncio.run(silent_registries(prometheus))
    return {name: f"{now() - dt.timedelta(seconds=age):%Y-%m-%d %H:%M}Z" for name, age in silence.items()}


def examine_scheduler(
    config_maps: Iterable[Mapping[str, Any]], state: State, policies: PolicySet, config: Path | None
) -> list[Finding]:
    """Return the findings of `scheduler-config --verify` on a file or our ConfigMap; none if there is neither.

    Raises BadInput for an unreadable file.
    """
    from app.cli.scheduler_config import configuration_findings, scheduler_names

    for file, text in _configurations(config_maps, config):
        try:
            remarks = configuration_findings(file, text, state, scheduler_names(policies))
        except PolicyError as error:
            return [problem("SchedulerConfiguration", str(error), "gpu-usher scheduler-config writes one", file)]
        finding = {"danger": problem, "warning": advice}
        return [
            finding[remark.severity]("SchedulerConfiguration", remark.message, remark.remedy, remark.where)
            for remark in remarks
        ]
    return []


def _configurations(config_maps: Iterable[Mapping[str, Any]], config: Path | None) -> Iterator[tuple[str, str]]:
    if config is not None:
        from app.cli.scheduler_config import read_configuration

        yield str(config), read_configuration("--scheduler-config", config)
    for item in config_maps:
        if item["metadata"]["name"] == SCHEDULER_MAP and SCHEDULER_KEY in (item.get("data") or {}):
            yield f"{SCHEDULER_MAP}/{SCHEDULER_KEY}", item["data"][SCHEDULER_KEY]


NAMES_SHOWN = 4
COLOUR = {FindingLevel.Problem: "red", FindingLevel.Advice: "yellow"}


def doctor(
    *,
    fleet: Fleet,
    prometheus: str | None,
    dcgm_exporters: list[str] | None,
    scheduler_config: Path | None,
    namespace: str,
    strict: bool,
    output: str,
) -> None:
    if scheduler_config and not fleet.live:
        raise BadInput("--scheduler-config: wants --kubeconfig; without a cluster, scheduler-config --verify checks it")
    # A live cluster is read by the survey, which continues if one kind may not be read.
    objects = [] if fleet.live else read(fleet)
    state = state_of(objects)
    survey = None
    if fleet.live:
        from app.cli.doctor_survey import examine_live, survey_for_doctor  # a fleet without a cluster has none of it

        survey = survey_for_doctor(fleet, namespace, state)
    listed = {} if survey is None else {kind: tuple(items) for kind, items in survey.objects.items()}
    pods = [document for document in objects if document.get("kind") == "Pod"] + list(listed.get("Pod", ()))
    nodes = tuple(state.nodes.values())
    idle = idle_in(PrometheusOptions(prometheus), state)
    silent_since = _silent_since(prometheus) if prometheus else {}
    with show_progress(f"examining {counted(len(nodes), 'node')}"):
        stored = [
            {"kind": kind, **one} for kind in ("ConfigMap", "GPUPolicy") for one in listed.get(kind, ())
        ] or objects
        policies, unreadable = examined_policies(stored, state.knowledge, namespace, now())
        cluster = ExaminedCluster(
            world_of(state, policies),
            listed,
            health=_health(
                Settings(prometheus=prometheus, dcgm_exporters=tuple(dcgm_exporters or ())), state.knowledge
            ),
            now=now().timestamp(),
            since=read_ages(listed.get("Node", ()) or objects),
        )
        cluster = with_pods(replace(cluster, cpu_guard=any(hook.name == GUARD for hook in webhooks(cluster))), pods)
        states = examine_node_states(cluster)
        findings = (
            *states,
            *pods_that_fail_to_start(pods, state.knowledge),
            *examine(cluster),
            *examine_devices(cluster.world),
            *quotas_that_count_nothing(state.admission_objects, state.knowledge.families),
            *refused_pods(objects, state.knowledge.families),
            *examine_held(read_held_gpus(pods, state.knowledge, idle)),
            *_gangs_that_wait(_gang_verdicts(cluster.world)),
            *registries_that_are_silent(silent_since),
        )
        if survey is not None:
            config_maps = listed.get("ConfigMap", ())
            texts = [text for _, text in _configurations(config_maps, scheduler_config)]
            live = examine_live(load_of(fleet), cluster, survey, namespace, texts)
            scheduler = examine_scheduler(config_maps, state, policies, scheduler_config)
            findings = (*live, *scheduler, *unreadable, *findings)
        else:
            classes = examine_runtime_classes(
                nodes, state.runtime_classes, cluster.runtime_class_names(), state.knowledge
            )
            config_maps = tuple(document for document in objects if document.get("kind") == "ConfigMap")
            scheduler = examine_scheduler(config_maps, state, policies, None)
            findings = (*unreadable, *scheduler, *findings, *classes)
        need = examined_need(pods, cluster.world, bool(cluster.health))
    findings = by_urgency(findings, NOT_READY if is_outage(states, nodes) else "")
    summary = summary_of(nodes, state.knowledge.families)
    answer = (*findings, *need_record(need))
    show(answer, output, lambda console: _show(console, findings, summary))
    raise typer.Exit(1 if any(strict or finding.level is FindingLevel.Problem for finding in findings) else 0)


def _gangs_that_wait(verdicts: Iterable["GangVerdict"]) -> Iterator[Finding]:
    """Report gangs of which not enough pods fit together, so that all of them wait."""
    for verdict in verdicts:
        if not verdict.enough:
            text = f"{verdict.fits} of {verdict.pods} waiting pods fit together; the others lack: {verdict.lacks}"
            remedy = verdict.change or "gpu-usher explain says what a pod of it lacks"
            remedy = "kube-scheduler can preempt pods of lower priority for it" if verdict.preempts else remedy
            yield advice("GangDoesNotFit", text, remedy, verdict.gang)


def _gang_verdicts(world: World) -> Iterator["GangVerdict"]:
    """Place the waiting pods of each gang in turn."""
    state = world.state
    for members in state.pending_pods.gangs().values():
        from app.explain.gang_placement import gang_verdict  # most clusters have no gang that waits

        document = next(iter(members.values())).document
        gang = gang_of_pod(state, read_pod(document), document) if document else None
        verdict = finish(gang_verdict(gang, world, live=True)) if gang else None
        if verdict is not None:
            yield verdict


def examined_need(documents: Iterable[Mapping[str, Any]], world: World, health_reported: bool) -> ExtenderNeed:
    """Tell what only the extender serves for the GPU pods and policies of a cluster."""
    pods = []
    for document in documents:
        try:
            pod = read_pod(document)
        except BadInput:
            continue
        ruling = world.ruling(pod)
        if has_our_scheduler(pod, ruling, world.policies):
            pods.append((pod, ruling))
    nodes = tuple(world.nodes.values())
    kinds = kinds_of_pods(pods, world.policies, nodes, world.fleet, world.knowledge)
    return extender_need(kinds, nodes, health_reported)


def summary_of(nodes: Sequence[Node], families: Families) -> str:
    """Count the nodes, those with GPUs for containers, and those that give theirs to virtual machines."""
    with_gpus = sum(node.has_gpus for node in nodes)
    machines = sum(any(families.passthrough_family(name) for name in node.allocatable) for node in nodes)
    passed = f", {machines} that pass GPUs through to virtual machines" if machines else ""
    return f"{counted(len(nodes), 'node')}, {with_gpus} with GPUs{passed}"


def _show(console: Console, findings: tuple[Finding, ...], nodes: str) -> None:
    for finding in findings:
        console.print(
            f"[bold {COLOUR[finding.level]}]{finding.level.value:8}[/] [bold]{finding.check}[/]: {escape(finding.what)}"
        )
        console.print(f"         on {names_of(finding.nodes + finding.objects, NAMES_SHOWN)}", markup=False)
        console.print(f"         [green]→[/] {escape(finding.remedy)}")
    problems = sum(finding.level is FindingLevel.Problem for finding in findings)
    problem_count = counted(problems, "problem") if problems else "no problems"
    console.print(f"{nodes}: {problem_count}, {len(findings) - problems or 'no'} advice")
