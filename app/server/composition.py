# SPDX-License-Identifier: Apache-2.0
"""The composition: builds state, policies, certificate and caches from the settings, once, and passes them down."""

import time
from pathlib import Path

from app.api.explain_api import Explainer
from app.api.pending_reasons import PendingReasons
from app.api.tracing import Tracing
from app.cluster.apiserver import ApiServer
from app.cluster.files import read_knowledge, read_snapshot_file, shipped_policies
from app.cluster.garbage_collection import leave_out_all
from app.cluster.gpu_health_polling import HealthPoller, find_source
from app.cluster.kubeconfig import find_cluster
from app.cluster.live import LiveCluster
from app.cluster.policy_watch import PolicyBook
from app.cluster.slipped_pods import SlippedPods
from app.cluster.snapshot import fill, read_snapshot
from app.cluster.usage_polling import PrometheusUse, UsagePoller, UseSource
from app.demo.sample_fleets import demo_fleet
from app.demo.usage import DemoUsage
from app.events.policy_reports import PolicyReporter
from app.events.waking import Waker
from app.events.writer import EventWriter
from app.images.reader import ImageReader
from app.images.registry import Registries, read_access
from app.server.service import Service
from app.settings import Settings
from app.telemetry.logs import now, today
from app.tls.front_proxy import FrontProxyTrust
from app.tls.serving_certificates import Certificates, KeyPairFiles, issue_if_needed
from app.world.state import State

ALWAYS_PRESENT = ("Node", "Namespace", "RuntimeClass")
"""Kinds that every snapshot of a GPU cluster holds; without one, `kubectl get` was asked for too few kinds."""


def build(settings: Settings) -> Service:
    """Read everything from disk and build the service.

    Raises CertificateError, KnowledgeError, SnapshotError, BadInput without a source of nodes, and PolicyError; with a
    live cluster the last only where the directory of policies does not exist.
    """
    knowledge = read_knowledge(settings.knowledge)
    book = PolicyBook(settings.policies or shipped_policies(), knowledge, today, settings.live)
    certificates = Certificates(serving_pair(settings), now(), settings.client_ca)
    service = Service(settings, certificates, State(knowledge), book)
    service.tracing = Tracing() if settings.tracing else None
    source = find_source(settings, knowledge.dcgm)
    if source is not None:
        service.gpu_health = HealthPoller(source, service.state, knowledge, service.metrics)
    if settings.image_registries is not None:
        registries = Registries(read_access(settings.image_registries))
        service.images = ImageReader(registries, service.state.images, service.metrics)
    service.usage = UsagePoller(usage_source(service), lambda: service.policies, service.state, service.metrics.use)
    if settings.live:
        server = service.server = ApiServer(find_cluster(settings.kubeconfig, settings.context))
        service.slipped = SlippedPods(
            server,
            service.state,
            lambda: service.world() if service.cache_problem() is None else None,
            service.metrics,
            settings.shadow,
        )
        if settings.events and not settings.shadow:
            add_events(service)
        if settings.explain_address != "off":
            service.front_proxy = FrontProxyTrust(certificates, now)
        others = (service.front_proxy.watched(),) if service.front_proxy is not None else ()
        namespace, metrics = settings.namespace, service.metrics
        service.cluster = LiveCluster(server, service.state, book, metrics, namespace, leave_out_all, others=others)
    else:
        fill_state(service)
        leave_out_all()
    return service


def usage_source(service: Service) -> UseSource | None:
    """Return where the service reads the use of GPUs: a Prometheus, or the made-up use of a sample fleet.

    Raises BadInput.
    """
    settings, state = service.settings, service.state
    if settings.prometheus:
        knowledge = state.knowledge
        token = settings.prometheus_token_file
        return PrometheusUse(settings.prometheus, knowledge.dcgm, knowledge.usage_metrics, token)
    return DemoUsage(lambda: state.nodes, state.allocations.bound) if settings.demo else None


def add_events(service: Service) -> None:
    """Add what writes Events, what reports on policies and what wakes refused pods, with connections of their own.

    Raises BadInput.
    """
    settings = service.settings
    server, namespace = ApiServer(find_cluster(settings.kubeconfig, settings.context)), settings.namespace
    reasons = PendingReasons(service, Explainer(service))
    reporter = PolicyReporter(
        server, namespace, service.book, lambda: reasons.kept_current, lambda: service.policy_error
    )
    events = service.events = EventWriter(
        server, namespace, service.state, reasons, service.metrics, of_policies=lambda: reporter.statements
    )
    waker = Waker(server, namespace, service, reasons, service.metrics)
    service.event_tasks = (events.run, waker.run, reporter.run)


def serving_pair(settings: Settings) -> KeyPairFiles:
    """Return the operator's own key pair, or one issued in the certificate directory.

    Raises CertificateError.
    """
    if settings.own_certificate:
        certificate, key = settings.own_certificate
        return KeyPairFiles(certificate, key, certificate.with_name("ca.crt"))
    return issue_if_needed(Path(settings.certs), now())


def fill_state(service: Service) -> None:
    """Fill the state with the demo fleet or the snapshots, and note which kinds were absent.

    Raises SnapshotError, MalformedPod, and BadInput for an unknown demo fleet.
    """
    settings = service.settings
    if settings.demo:
        objects = demo_fleet(settings.demo_fleet)
    else:
        objects = [item for path in settings.snapshots for item in read_snapshot(str(path), read_snapshot_file(path))]
    counts = fill(service.state, objects)
    service.absent = tuple(kind for kind in ALWAYS_PRESENT if not counts[kind])
    service.synced, service.filled = True, time.monotonic()
