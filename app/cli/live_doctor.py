# SPDX-License-Identifier: Apache-2.0
"""The doctor's edge on a live cluster: what was read becomes what the checks look at; certificates are asked for."""

import base64
import datetime as dt
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.cluster.doctor_survey import SECRET, ClusterObjects
from app.cluster.policy_sources import policies_of
from app.cluster.ruling_cache import RulingCache
from app.cluster.slipped_pods import PolicyView, slip_of
from app.cluster.state import State
from app.doctor.cluster_checks import examine_cluster
from app.doctor.cluster_objects import Certificate, Cluster, SlippedReport
from app.doctor.fleet_checks import Finding, FindingLevel
from app.doctor.webhook_checks import Webhook, webhooks
from app.kube.pods import read_pod
from app.policy.compiled import PolicySet
from app.schedulerconfig.verify import verify
from app.tls.certificate_report import CertificateTexts, problems
from app.tls.pem import read_certificate
from app.values.errors import BadInput, PolicyError

ADDRESS_SECONDS = 10.0
"""Bound on one TLS handshake with a webhook that has an address of its own."""
SCHEDULER_MAP, SCHEDULER_KEY = "gpu-usher-scheduler", "config.yaml"
"""Names of deploy/components/second-scheduler and deploy/base."""


def examine_live(
    survey: ClusterObjects, state: State, namespace: str, config: Path | None, now: dt.datetime
) -> list[Finding]:
    """Run the checks of a live cluster, and of its scheduler's configuration (a file, or the ConfigMap of ours).

    Raises BadInput for a file that cannot be read.
    """
    cluster = Cluster(
        knowledge=state.knowledge,
        objects={kind: tuple(items) for kind, items in survey.objects.items()},
        nodes=tuple(state.nodes.values()),
        refused=dict(survey.refused),
        version=survey.version,
        ahead_seconds=survey.ahead_seconds,
        rules=None if survey.rules is None else tuple(survey.rules),
        namespace=namespace,
        reached=survey.reached,
    )
    chosen, unreadable = _policies(survey, state, namespace, now)
    classes = tuple(sorted({name for each in chosen.policies if (name := each.spec.admission.runtime_class_name)}))
    seen = tuple(_certificates(cluster, survey, now))
    slipped = tuple(_slipped(survey, state, chosen))
    found = examine_cluster(replace(cluster, certificates=seen, slipped=slipped, runtime_classes=classes))
    return [*unreadable, *_scheduler(survey, state, config), *found]


def _certificates(cluster: Cluster, survey: ClusterObjects, now: dt.datetime) -> Iterator[Certificate]:
    """Judge what each of our webhooks is answered with, as the API server would: its name, its dates, its CA."""
    for each in webhooks(cluster):
        client = each.spec.get("clientConfig") or {}
        bundle = _decoded(client.get("caBundle"))
        if not each.ours or not bundle:
            continue
        service = client.get("service") or {}
        if url := client.get("url"):
            yield _shown(each, url, bundle, now)
        elif survey.certificate:
            asked = f"{service.get('name')}.{service.get('namespace')}.svc"
            yield _judged(each, f"Secret {SECRET}", _decoded(survey.certificate), bundle, asked, now)
        elif not any(name.startswith("Secret") for name in survey.refused):
            wrong = (f"Secret {cluster.namespace}/{SECRET} has no certificate",)
            yield Certificate(each.shown, 0.0, "", wrong)


def _decoded(text: str | None) -> bytes:
    """Decode base64; what is none counts as empty."""
    try:
        return base64.b64decode(text or "")
    except ValueError:
        return b""


def _shown(webhook: Webhook, url: str, bundle: bytes, now: dt.datetime) -> Certificate:
    """Ask the address itself."""
    parts = urlsplit(url)
    try:
        pem = ssl.get_server_certificate((parts.hostname or "", parts.port or 443), timeout=ADDRESS_SECONDS)
    except (OSError, ValueError) as error:
        return Certificate(webhook.shown, 0.0, "", (f"{url}: {error}",))
    return _judged(webhook, parts.netloc, pem.encode(), bundle, parts.hostname or "", now)


def _judged(webhook: Webhook, where: str, pem: bytes, bundle: bytes, asked: str, now: dt.datetime) -> Certificate:
    try:
        leaf = read_certificate(pem)
        wrong = tuple(problems(CertificateTexts(pem, None, bundle), now, asked))
    except ValueError as error:
        return Certificate(f"{webhook.shown} ({where})", 0.0, "", (f"no certificate: {error}",))
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    spent = (now - begins) / (ends - begins) if ends > begins else 1.0
    return Certificate(f"{webhook.shown} ({where})", spent, f"{ends:%Y-%m-%d %H:%M}Z", wrong)


def _policies(
    survey: ClusterObjects, state: State, namespace: str, now: dt.datetime
) -> tuple[PolicySet, list[Finding]]:
    """Load the policies that the cluster keeps; the shipped ones where it keeps none, or bad ones."""
    kept = [{"kind": kind, **each} for kind in ("ConfigMap", "GPUPolicy") for each in survey.objects.get(kind, ())]
    today = now.date().isoformat()
    try:
        return policies_of(kept, None, state.knowledge, today, namespace), []
    except PolicyError as error:
        remedy = "mend them: gpu-usher serves the last good set, and does not start anew with these"
        place = (f"Namespace {namespace}",)
        bad = [Finding("PolicyUnreadable", FindingLevel.Problem, each, remedy, (), place) for each in error.problems]
        return policies_of((), None, state.knowledge, today), bad


def _slipped(survey: ClusterObjects, state: State, policies: PolicySet) -> Iterator[SlippedReport]:
    """Judge running pods that hold GPUs, as the service does."""
    rulings = RulingCache()
    judges = PolicyView(
        lambda pod: rulings.of(pod, state.namespace_labels(pod.namespace), policies, state.knowledge),
        lambda: policies,
        lambda: True,
    )
    for document in survey.objects.get("Pod", ()):
        metadata: dict[str, Any] = document.get("metadata") or {}
        holding = state.usage_of(metadata.get("uid", ""))
        node = state.nodes.get(holding.node) if holding is not None and holding.bound else None
        if node is None:
            continue
        try:
            slipped_pod = slip_of(read_pod(document), node, state, judges)
        except BadInput:
            continue  # a shape that the API server would not take today; it runs
        if slipped_pod is not None:
            yield SlippedReport(
                f"{metadata.get('namespace')}/{metadata.get('name')}", slipped_pod.kind, slipped_pod.why
            )


def _scheduler(survey: ClusterObjects, state: State, config: Path | None) -> list[Finding]:
    """Verify the scheduler's configuration as `scheduler-config --verify` does; nothing where there is none."""
    offered = tuple(sorted({name for node in state.nodes.values() for name, _ in node.node_class.offered}))
    for file, text in _configurations(survey, config):
        try:
            remarks = verify(file, text, offered, len(state.nodes))
        except PolicyError as error:
            remedy = "gpu-usher scheduler-config writes one"
            return [Finding("SchedulerConfiguration", FindingLevel.Problem, str(error), remedy, (), (file,))]
        levels = {"danger": FindingLevel.Problem, "warning": FindingLevel.Advice}
        return [
            Finding("SchedulerConfiguration", levels[each.severity], each.message, each.remedy, (), (each.where,))
            for each in remarks
        ]
    return []


def _configurations(survey: ClusterObjects, config: Path | None) -> Iterator[tuple[str, str]]:
    if config is not None:
        try:
            yield str(config), config.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--scheduler-config {config}: {error}: wants a KubeSchedulerConfiguration") from error
    for item in survey.objects.get("ConfigMap", ()):
        if item["metadata"]["name"] == SCHEDULER_MAP and SCHEDULER_KEY in (item.get("data") or {}):
            yield f"{SCHEDULER_MAP}/{SCHEDULER_KEY}", item["data"][SCHEDULER_KEY]
