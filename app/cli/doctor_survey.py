# SPDX-License-Identifier: Apache-2.0
"""Reads a live cluster once for the doctor, and examines what only that has: webhooks, certificates, a pod by dry run.

What cannot be read is noted, and everything else is still read.
"""

import asyncio
import base64
import datetime as dt
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from app.cli.certs import ADDRESS_SECONDS
from app.cli.options import ClusterOptions
from app.cli.output import show_progress
from app.cli.source import load_of, telling
from app.cluster.apiserver import LIST_SECONDS, ApiServer
from app.cluster.kubeconfig import Load
from app.cluster.listing import list_kind
from app.cluster.slipped_pods import slip_of
from app.cluster.snapshot import SNAPSHOT_KINDS, fill
from app.doctor.cluster_checks import examine_cluster
from app.doctor.cluster_objects import Certificate, ExaminedCluster, GPUPodTried, SlippedReport, asks_for_gpus
from app.doctor.fleet_checks import Finding
from app.doctor.operand_checks import JOB_KINDS
from app.doctor.webhook_checks import MUTATING, VALIDATING, Webhook, pod_to_try, webhooks
from app.kube.api_kinds import API_KINDS, DRA, FLEET
from app.kube.pods import DECISION, read_pod
from app.telemetry.logs import now
from app.tls.certificate_report import CertificateTexts, problems
from app.tls.pem import read_certificate
from app.values.errors import FORBIDDEN, NOT_FOUND, ApiError, BadInput
from app.values.json_members import Object
from app.world.state import State
from app.world.world import World

EXAMINED = (
    *FLEET,
    "ResourceQuota",
    "DaemonSet",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "APIService",
    *DRA,
    "GPUPolicy",
    "NodePool",
    *JOB_KINDS,
    "Deployment",
    "Service",
    "EndpointSlice",
    "ConfigMap",
)
"""The kinds in the order in which they are read. A kind that the cluster does not serve (404) is no finding."""
SECRET = "gpu-usher-tls"
DEFINITION = f"{API_KINDS['GPUPolicy'].plural}.{API_KINDS['GPUPolicy'].group}"
UNREACHABLE = "API server"
DRY_RUN = {"dryRun": "All", "timeout": "30s"}
"""The longest timeout of one webhook (admissionregistration.k8s.io/v1); the API server's own limit is twice that."""
UNDECIDED = (500, 504)
"""The API server could not call a webhook, or did not get its answer in time; a decision has another status."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_HOST = re.compile(r"urlPrefix:[\s\"']*https?://([^/:\s\"']+)", re.ASCII)
"""The host of an extender's URL in a KubeSchedulerConfiguration."""


@dataclass(slots=True)
class ClusterObjects:
    """The objects read, by kind, and the API server's message for each kind that was refused.

    `ahead_seconds` is how far the API server's clock is ahead; None if its answer had no date. `rules` are the
    resourceRules of our service account; None if refused. `certificate` is that of the Secret gpu-usher-tls, PEM in
    base64; empty if there is none.
    """

    objects: dict[str, list[Object]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    reached: bool = True
    version: str = ""
    ahead_seconds: float | None = None
    rules: list[Object] | None = None
    certificate: str = ""


async def survey_cluster(
    load: Load,
    namespace: str,
    now: Callable[[], dt.datetime],
    keep_pod: Callable[[Object], bool],
    report: Callable[[str], None] = lambda _: None,
) -> ClusterObjects:
    """Read everything that the doctor needs. If the API server does not answer, the result is empty.

    `keep_pod` tells whether to keep a pod, since 50,000 whole pods are gigabytes. `report` is called for each kind.
    """
    survey = ClusterObjects()
    async with ApiServer(load) as server:
        await _read_version(server, survey, now)
        if survey.reached:
            served = await _served_groups(server, survey)
            for kind in EXAMINED:
                if served is not None and API_KINDS[kind].group not in served:
                    continue
                report(f"reading {API_KINDS[kind].path(namespace)} of the cluster")
                await _list(server, survey, kind, namespace, keep_pod if kind == "Pod" else None)
            if survey.objects.get("GPUPolicy") is not None:
                await _read_definition(server, survey)
            report("asking for rights and the certificate")
            await _ask_rights(server, survey, namespace)
            await _read_certificate(server, survey, namespace)
    return survey


async def survey_webhooks(load: Load, world: World) -> ExaminedCluster:
    """Read the webhook configurations, and the EndpointSlices of the namespace of ours, as far as the user may."""
    survey = ClusterObjects()
    async with ApiServer(load) as server:
        for kind in (MUTATING, VALIDATING):
            await _list(server, survey, kind, "", None)
        cluster = ExaminedCluster(world, {kind: tuple(items) for kind, items in survey.objects.items()})
        clients = (webhook.spec.get("clientConfig") or {} for webhook in webhooks(cluster) if webhook.ours)
        if service := next((client["service"] for client in clients if client.get("service")), None):
            await _list(server, survey, "EndpointSlice", service["namespace"], None)
        objects = {kind: tuple(items) for kind, items in survey.objects.items()}
        return replace(cluster, objects=objects, namespace=(service or {}).get("namespace", ""))


async def _read_version(server: ApiServer, survey: ClusterObjects, now: Callable[[], dt.datetime]) -> None:
    asked_at = now()
    try:
        body, date = await server.version()
        survey.version = str(msgspec.json.decode(body).get("gitVersion", ""))
    except ApiError as error:
        survey.reached = error.status == FORBIDDEN  # the API server has answered; other requests may be allowed
        survey.refused[UNREACHABLE] = str(error)
        return
    except (msgspec.DecodeError, AttributeError) as error:
        survey.reached = False
        survey.refused[UNREACHABLE] = f"/version: no Kubernetes API: {error}"
        return
    answered_at = now()
    try:
        # The header has whole seconds, rounded down, so half a second is added.
        server_time = parsedate_to_datetime(date) + dt.timedelta(seconds=0.5)
        survey.ahead_seconds = (server_time - asked_at - (answered_at - asked_at) / 2).total_seconds()
    except (ValueError, TypeError):
        survey.refused["clock of the API server"] = "its answer has no Date header"


async def _served_groups(server: ApiServer, survey: ClusterObjects) -> set[str] | None:
    """Return the served API groups; None if unknown. A request for a group not served may get 403 as well."""
    try:
        groups = (await server.read("/apis") or {})["groups"] or ()
        return {"", *(group["name"] for group in groups)}
    except (ApiError, KeyError) as error:
        survey.refused["API groups"] = str(error)
        return None


async def _list(
    server: ApiServer, survey: ClusterObjects, kind: str, namespace: str, keep: Callable[[Object], bool] | None
) -> None:
    try:
        survey.objects[kind] = await list_kind(server, kind, namespace, keep)
    except ApiError as error:
        if error.status != NOT_FOUND:
            survey.refused[kind] = str(error)


async def _ask_rights(server: ApiServer, survey: ClusterObjects, namespace: str) -> None:
    user = f"system:serviceaccount:{namespace}:gpu-usher"
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    try:
        status = (await server.rules(user, groups, namespace)).get("status") or {}
    except ApiError as error:
        survey.refused[f"rights of ServiceAccount {namespace}/gpu-usher"] = str(error)
        return
    survey.rules = status.get("resourceRules") or []
    if status.get("incomplete"):
        survey.refused[f"rights of ServiceAccount {namespace}/gpu-usher"] = "an authorizer cannot list all rights"


async def _read_definition(server: ApiServer, survey: ClusterObjects) -> None:
    """Read the definition of GPUPolicy alone, since all definitions of a cluster are megabytes."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{DEFINITION}"
    definition = await _read_object(server, survey, path, f"CustomResourceDefinition {DEFINITION}")
    survey.objects["CustomResourceDefinition"] = [definition] if definition else []


async def _read_certificate(server: ApiServer, survey: ClusterObjects, namespace: str) -> None:
    """Read the served certificate and its issuer from the Secret; the private key in it is dropped at once."""
    path = f"/api/v1/namespaces/{namespace}/secrets/{SECRET}"
    secret = await _read_object(server, survey, path, f"Secret {namespace}/{SECRET}")
    survey.certificate = (secret.get("data") or {}).get("tls.crt", "")


async def _read_object(server: ApiServer, survey: ClusterObjects, path: str, shown: str) -> Object:
    """Read one object; empty if there is none, or if it cannot be read, which is noted under the name `shown`."""
    try:
        return await server.read(path) or {}
    except ApiError as error:
        survey.refused[shown] = str(error)
        return {}


async def try_gpu_pod(load: Load, namespace: str, resource: str) -> GPUPodTried | None:
    """Create a GPU pod by dry run, so that the API server calls every webhook, and stores nothing.

    Every Pod Security level allows the pod. None where it was refused for a reason of its own (no right to create it, a
    quota, a policy).
    """
    limits = {"cpu": "100m", "memory": "64Mi", resource: "1"}
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    shared = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}, "securityContext": own}
    spec = {"securityContext": shared, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "gpu-usher-doctor-"}, "spec": spec}
    async with ApiServer(load) as server:
        try:
            created = await server.create(f"/api/v1/namespaces/{namespace}/pods", pod, DRY_RUN, LIST_SECONDS)
        except ApiError as error:
            return GPUPodTried(namespace, str(error)) if error.status in UNDECIDED else None
    annotations = (created.get("metadata") or {}).get("annotations") or {}
    return GPUPodTried(namespace, reviewed=DECISION in annotations)


def survey_for_doctor(cluster: ClusterOptions, namespace: str, state: State) -> ClusterObjects:
    """Read a cluster, and put its nodes, GPU pods and so on into `state`.

    Raises ApiError if the API server does not answer.
    """

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


def examine_live(
    load: Load, cluster: ExaminedCluster, survey: ClusterObjects, namespace: str, configurations: Iterable[str]
) -> list[Finding]:
    """Run the checks of a live cluster, with a GPU pod by dry run; `configurations` are those of its scheduler."""
    hosts = tuple(host for text in configurations for host in _HOST.findall(text))
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


def _slipped(survey: ClusterObjects, world: World) -> Iterator[SlippedReport]:
    """Yield the running GPU pods that are unadmitted or misplaced, judged as the service does."""
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
