# SPDX-License-Identifier: Apache-2.0
"""Runs the doctor's checks on a live cluster: converts what was read, and requests certificates of webhooks."""

import base64
import datetime as dt
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.cluster.core import RulingCache
from app.cluster.doctor_survey import SECRET, ClusterObjects
from app.cluster.slipped_pods import PolicyView, slip_of
from app.cluster.snapshot_policies import policies_or_last_good
from app.cluster.state import State
from app.doctor.cluster_checks import examine_cluster
from app.doctor.cluster_objects import Certificate, ExaminedCluster, SlippedReport
from app.doctor.fleet_checks import Finding, FindingLevel
from app.doctor.webhook_checks import GUARD, MUTATING, VALIDATING, Webhook, webhooks
from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.policy.compiled import PolicySet
from app.schedulerconfig.verify import verify
from app.schedulerconfig.write import offers_claims
from app.tls.certificate_report import CertificateTexts, problems
from app.tls.pem import read_certificate
from app.values.errors import BadInput, PolicyError

ADDRESS_SECONDS = 10.0
"""Limit of one TLS handshake with a webhook that has a URL."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
SCHEDULER_MAP, SCHEDULER_KEY = "gpu-usher-scheduler", "config.yaml"
"""Names in deploy/components/second-scheduler and deploy/base."""
_HOST = re.compile(r"urlPrefix:[\s\"']*https?://([^/:\s\"']+)", re.ASCII)
"""The host of an extender's URL in a KubeSchedulerConfiguration."""


def examine_live(
    survey: ClusterObjects, state: State, namespace: str, config: Path | None, now: dt.datetime
) -> list[Finding]:
    """Run the checks of a live cluster and of its scheduler's configuration (a file, or our ConfigMap).

    Raises BadInput for an unreadable file.
    """
    hosts = tuple(
        host for _, text in _configurations(survey.objects.get("ConfigMap", ()), config) for host in _HOST.findall(text)
    )
    cluster = ExaminedCluster(
        knowledge=state.knowledge,
        objects={kind: tuple(items) for kind, items in survey.objects.items()},
        nodes=tuple(state.nodes.values()),
        refused=dict(survey.refused),
        version=survey.version,
        ahead_seconds=survey.ahead_seconds,
        rules=None if survey.rules is None else tuple(survey.rules),
        namespace=namespace,
        extender_hosts=hosts,
    )
    documents = [
        {"kind": kind, **document} for kind in ("ConfigMap", "GPUPolicy") for document in survey.objects.get(kind, ())
    ]
    policies, unreadable = examined_policies(documents, state.knowledge, namespace, now)
    certificates = tuple(_certificates(cluster, survey, now))
    slipped = tuple(_slipped(survey, state, policies))
    findings = examine_cluster(
        replace(cluster, certificates=certificates, slipped=slipped, runtime_classes=runtime_class_names(policies))
    )
    scheduler = examine_scheduler(survey.objects.get("ConfigMap", ()), state, config)
    return [*unreadable, *scheduler, *findings]


def has_cpu_guard(survey: ClusterObjects) -> bool:
    """Tell whether the webhook of the component cpu-guard is installed."""
    configurations = [item for kind in (MUTATING, VALIDATING) for item in survey.objects.get(kind, ())]
    return any(webhook.get("name") == GUARD for item in configurations for webhook in item.get("webhooks") or ())


def runtime_class_names(policies: PolicySet) -> tuple[str, ...]:
    """List the values of runtimeClassName of all policies, sorted."""
    return tuple(sorted({name for policy in policies.policies if (name := policy.spec.admission.runtime_class_name)}))


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
            problem = (f"Secret {cluster.namespace}/{SECRET} holds no certificate",)
            yield Certificate(webhook.shown, 0.0, "", problem)


def _decoded(text: str | None) -> bytes:
    """Decode base64; anything else counts as empty."""
    try:
        return base64.b64decode(text or "")
    except ValueError:
        return b""


def _fetch_certificate(webhook: Webhook, url: str, bundle: bytes, now: dt.datetime) -> Certificate | None:
    """Fetch the certificate of a webhook's URL, and check it; None for a URL that only the API server can reach."""
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
    place = (f"Namespace {namespace}",)
    return policies, [
        Finding("PolicyUnreadable", FindingLevel.Problem, problem, remedy, (), place) for problem in policy_problems
    ]


def _slipped(survey: ClusterObjects, state: State, policies: PolicySet) -> Iterator[SlippedReport]:
    """Yield the running GPU pods that have slipped, judged as the service does."""
    rulings = RulingCache()
    policy_view = PolicyView(
        lambda pod: rulings.of(pod, state.namespaces.labels(pod.namespace), policies, state.knowledge),
        lambda: policies,
        lambda: True,
    )
    for document in survey.objects.get("Pod", ()):
        metadata: dict[str, Any] = document.get("metadata") or {}
        usage = state.usage_of(metadata.get("uid", ""))
        node = state.nodes.get(usage.node) if usage is not None and usage.bound else None
        if node is None:
            continue
        try:
            slipped_pod = slip_of(read_pod(document), node, state, policy_view)
        except BadInput:
            continue  # not readable as a Pod of today's API; it runs
        if slipped_pod is not None:
            yield SlippedReport(
                f"{metadata.get('namespace')}/{metadata.get('name')}", slipped_pod.kind, slipped_pod.reason
            )


def examine_scheduler(config_maps: Iterable[Mapping[str, Any]], state: State, config: Path | None) -> list[Finding]:
    """Return the findings of `scheduler-config --verify` on a file or our ConfigMap; none if there is neither.

    Raises BadInput for an unreadable file.
    """
    nodes = state.nodes.values()
    offered = tuple(sorted({name for node in nodes for name, _ in node.node_class.offered}))
    for file, text in _configurations(config_maps, config):
        try:
            remarks = verify(file, text, offered, len(nodes), offers_claims(nodes))
        except PolicyError as error:
            remedy = "gpu-usher scheduler-config writes one"
            return [Finding("SchedulerConfiguration", FindingLevel.Problem, str(error), remedy, (), (file,))]
        levels = {"danger": FindingLevel.Problem, "warning": FindingLevel.Advice}
        return [
            Finding(
                "SchedulerConfiguration", levels[remark.severity], remark.message, remark.remedy, (), (remark.where,)
            )
            for remark in remarks
        ]
    return []


def _configurations(config_maps: Iterable[Mapping[str, Any]], config: Path | None) -> Iterator[tuple[str, str]]:
    if config is not None:
        try:
            yield str(config), config.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--scheduler-config {config}: {error}: wants a KubeSchedulerConfiguration") from error
    for item in config_maps:
        if item["metadata"]["name"] == SCHEDULER_MAP and SCHEDULER_KEY in (item.get("data") or {}):
            yield f"{SCHEDULER_MAP}/{SCHEDULER_KEY}", item["data"][SCHEDULER_KEY]
