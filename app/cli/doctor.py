# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher doctor`: shows what is wrong with a fleet or a live cluster, and what to do about it."""

import asyncio
import base64
import datetime as dt
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.markup import escape

from app.admission.reviewed_pod import has_our_scheduler
from app.cli.doctor_survey import SECRET, ClusterObjects, survey_cluster, try_gpu_pod
from app.cli.options import ClusterOptions, Fleet, PrometheusOptions
from app.cli.output import names_of, show, show_progress
from app.cli.scheduler_config import configuration_findings, read_configuration, scheduler_names
from app.cli.source import idle_in, load_of, read, state_of, telling
from app.cluster.kubeconfig import Load
from app.cluster.snapshot import SNAPSHOT_KINDS, fill
from app.cluster.snapshot_policies import policies_or_last_good
from app.doctor.cluster_checks import examine_cluster
from app.doctor.cluster_objects import Certificate, ExaminedCluster, SlippedReport, asks_for_gpus
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
from app.doctor.webhook_checks import GUARD, Webhook, pod_to_try, webhooks
from app.explain.explanation import GangVerdict
from app.explain.gang_placement import gang_verdict
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
from app.values.errors import ApiError, BadInput, PolicyError
from app.values.reasons import counted
from app.world.scheduling_groups import gang_of_pod
from app.world.state import State
from app.world.world import World, world_of

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SCHEDULER_MAP, SCHEDULER_KEY = "gpu-usher-scheduler", "config.yaml"
"""Names in deploy/components/second-scheduler and deploy/base."""
_HOST = re.compile(r"urlPrefix:[\s\"']*https?://([^/:\s\"']+)", re.ASCII)
"""The host of an extender's URL in a KubeSchedulerConfiguration."""


def examine_live(
    load: Load, cluster: ExaminedCluster, survey: ClusterObjects, namespace: str, config: Path | None
) -> list[Finding]:
    """Run the checks of a live cluster, with a GPU pod by dry run, and of its scheduler's configuration.

    Raises BadInput for an unreadable file.
    """
    hosts = tuple(
        host for _, text in _configurations(survey.objects.get("ConfigMap", ()), config) for host in _HOST.findall(text)
    )
    cluster = replace(
        cluster,
        refused=dict(survey.refused),
        version=survey.version,
        ahead_seconds=survey.ahead_seconds,
        rules=None if survey.rules is None else tuple(survey.rules),
        namespace=namespace,
        extender_hosts=hosts,
    )
    certificates = tuple(_certificates(cluster, survey, now()))
    slipped = tuple(_slipped(survey, cluster.world))
    tried = asyncio.run(try_gpu_pod(load, *pod_to_try(cluster)))
    return list(examine_cluster(replace(cluster, certificates=certificates, slipped=slipped, tried=tried)))


def _certificates(cluster: ExaminedCluster, survey: ClusterObjects, now: dt.datetime) -> Iterator[Certificate]:
    """Yield the certificate of each of our webhooks, checked as the API server would: names, dates, CA."""
    for webhook in webhooks(cluster):
        client = webhook.spec.get("clientConfig") or {}
        bundle = _decoded(client.get("caBundle"))
        if not webhook.ours or not bundle:
            continue
        service = client.get("service") or {}
        if url := client.get("url"):
            if (fetched := _fetch_certificate(webhook, url, bundle, now)) is not None:
                yield fetched
        elif survey.certificate:
            server_name = f"{service.get('name')}.{service.get('namespace')}.svc"
            yield _check_certificate(
                webhook, f"Secret {SECRET}", _decoded(survey.certificate), bundle, server_name, now
            )
        elif not any(name.startswith("Secret") for name in survey.refused):
            yield Certificate(webhook.shown, 0.0, "", (f"Secret {cluster.namespace}/{SECRET} holds no certificate",))


def _decoded(text: str | None) -> bytes:
    """Decode base64; anything else counts as empty."""
    try:
        return base64.b64decode(text or "")
    except ValueError:
        return b""


def _fetch_certificate(webhook: Webhook, url: str, bundle: bytes, now: dt.datetime) -> Certificate | None:
    """Fetch the certificate of a webhook's URL, and check it; None for a URL that only the API server can reach."""
    from app.cli.certs import ADDRESS_SECONDS

    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        pem = ssl.get_server_certificate((host, parts.port or 443), timeout=ADDRESS_SECONDS)
    except (OSError, ValueError) as error:
        if host in LOOPBACK:  # that of the API server, which need not be this machine's
            return None
        return Certificate(webhook.shown, 0.0, "", (f"{url}: {error}",))
    return _check_certificate(webhook, parts.netloc, pem.encode(), bundle, parts.hostname or "", now)


def _check_certificate(
    webhook: Webhook, where: str, pem: bytes, bundle: bytes, server_name: str, now: dt.datetime
) -> Certificate:
    from app.tls.certificate_report import CertificateTexts, problems
    from app.tls.pem import read_certificate

    try:
        leaf = read_certificate(pem)
        found_problems = tuple(problems(CertificateTexts(pem, None, bundle), now, server_name))
    except ValueError as error:
        return Certificate(f"{webhook.shown} ({where})", 0.0, "", (f"no certificate: {error}",))
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    spent_share = (now - begins) / (ends - begins) if ends > begins else 1.0
    return Certificate(f"{webhook.shown} ({where})", spent_share, f"{ends:%Y-%m-%d %H:%M}Z", found_problems)


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


def _slipped(survey: ClusterObjects, world: World) -> Iterator[SlippedReport]:
    """Yield the running GPU pods that are unadmitted or misplaced, judged as the service does."""
    from app.cluster.slipped_pods import slip_of

    state = world.state
    for document in survey.objects.get("Pod", ()):
        metadata: dict[str, Any] = document.get("metadata") or {}
        usage = state.allocations.get(metadata.get("uid", ""))
        node = state.nodes.get(usage.node) if usage is not None and usage.bound else None
        if node is None:
            continue
        try:
            slipped_pod = slip_of(read_pod(document), node, world)
        except BadInput:
            continue  # not readable as a Pod of today's API; it runs
        if slipped_pod is not None:
            yield SlippedReport(
                f"{metadata.get('namespace')}/{metadata.get('name')}", slipped_pod.kind, slipped_pod.reason
            )


def examine_scheduler(
    config_maps: Iterable[Mapping[str, Any]], state: State, policies: PolicySet, config: Path | None
) -> list[Finding]:
    """Return the findings of `scheduler-config --verify` on a file or our ConfigMap; none if there is neither.

    Raises BadInput for an unreadable file.
    """
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
    survey = _survey(fleet, namespace, state) if fleet.live else None
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
            live = examine_live(load_of(fleet), cluster, survey, namespace, scheduler_config)
            scheduler = examine_scheduler(listed.get("ConfigMap", ()), state, policies, scheduler_config)
            findings = (*live, *scheduler, *unreadable, *findings)
        else:
            classes = examine_runtime_classes(
                nodes, state.runtime_classes, cluster.runtime_class_names(), state.knowledge
            )
            config_maps = [document for document in objects if document.get("kind") == "ConfigMap"]
            scheduler = examine_scheduler(config_maps, state, policies, None)
            findings = (*unreadable, *scheduler, *findings, *classes)
        need = examined_need(pods, cluster.world, bool(cluster.health))
    findings = by_urgency(findings, NOT_READY if is_outage(states, nodes) else "")
    summary = summary_of(nodes, state.knowledge.families)
    answer = (*findings, *need_record(need))
    show(answer, output, lambda console: _show(console, findings, summary))
    raise typer.Exit(1 if any(strict or finding.level is FindingLevel.Problem for finding in findings) else 0)


def _gangs_that_wait(verdicts: Iterable[GangVerdict]) -> Iterator[Finding]:
    """Report gangs of which not enough pods fit together, so that all of them wait."""
    for verdict in verdicts:
        if not verdict.enough:
            text = f"{verdict.fits} of {verdict.pods} waiting pods fit together; the others lack: {verdict.lacks}"
            remedy = verdict.change or "gpu-usher explain says what a pod of it lacks"
            remedy = "kube-scheduler can preempt pods of lower priority for it" if verdict.preempts else remedy
            yield advice("GangDoesNotFit", text, remedy, verdict.gang)


def _gang_verdicts(world: World) -> Iterator[GangVerdict]:
    """Place the waiting pods of each gang in turn."""
    state = world.state
    for members in state.pending_pods.gangs().values():
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


def _survey(cluster: ClusterOptions, namespace: str, state: State) -> ClusterObjects:
    def keep_pod(pod: Mapping[str, Any]) -> bool:
        return asks_for_gpus(dict(pod), state.knowledge.families) or pod["metadata"].get("namespace") == namespace

    load = load_of(cluster)
    with telling(cluster), show_progress("reading the cluster") as report:
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
