# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics. Label values come from closed sets (verbs, outcomes, reason codes), never object names.

The only exception are the namespaces of UseMetrics, whose number is bounded.
"""

import platform
from collections.abc import Iterable, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app import __version__
from app.policy.compiled import PolicySet
from app.telemetry.use_metrics import UseMetrics

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds. The API server's own buckets start at 5 ms, too coarse for us."""

VERBS = ("mutate", "validate", "filter", "prioritize", "preempt")
"""The values of the label `verb`: the last part of the path of each route of the TLS listener. The counters that alerts
read are created at 0 for each of them, because Prometheus sees no increase in a series that starts at 1."""

M = TypeVar("M", Counter, Gauge)


class Metrics:
    """The metrics of one service, in a registry of its own, so that tests can run several services."""

    def __init__(self, role: str = "all") -> None:
        """Make the metrics. `role` is that of `serve --role`, a label of the build metric."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "gpu_usher_requests_total",
            "Requests by verb and outcome",
            ("verb", "outcome"),
            registry=self.registry,
        )
        self.duration = Histogram(
            "gpu_usher_request_duration_seconds",
            "Time to answer, body read",
            ("verb",),
            registry=self.registry,
            buckets=BUCKETS,
        )
        self._request_series: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self.refusals = Counter(
            "gpu_usher_refusals_total",
            "Nodes or pods refused, by reason",
            ("verb", "reason"),
            registry=self.registry,
        )
        self.evictions_prevented = Counter(
            "gpu_usher_evictions_prevented_total", "Nodes dropped by preempt", registry=self.registry
        )
        self.internal_errors = Counter(
            "gpu_usher_internal_errors_total", "Internal errors", ("where",), registry=self.registry
        )
        self.oversized = Counter(
            "gpu_usher_oversized_bodies_total", "Bodies answered with 413", ("verb",), registry=self.registry
        )
        for verb in VERBS:
            self.internal_errors.labels(verb)
            self.oversized.labels(verb)
        self.internal_errors.labels("deadline")
        self.nodes = Gauge("gpu_usher_nodes", "Nodes known", registry=self.registry)
        self.vram_overrun_nodes = Gauge(
            "gpu_usher_vram_overrun_nodes",
            "Nodes on which pods declare more memory of shared GPUs than there is",
            registry=self.registry,
        )
        self._add_devices()
        self._add_serving()
        self._add_process(role)
        self._add_cache()
        self._add_gpu_health()
        self.use = UseMetrics(self.registry)
        self._add_certificates()
        self._add_policies()

    def _add_devices(self) -> None:
        """Make the metrics of devices in ResourceSlices; without any they stay empty."""
        labels = ("driver", "state")
        self._devices = Gauge(
            "gpu_usher_devices",
            "Devices in ResourceSlices: published, of these tainted by their driver, allocated to claims",
            labels,
            registry=self.registry,
        )
        self._device_pools = Gauge(
            "gpu_usher_device_pools",
            "Pools of devices; of an incomplete one no device can be allocated",
            labels,
            registry=self.registry,
        )

    def devices_counted(self, devices: Mapping[tuple[str, str], int], pools: Mapping[tuple[str, str], int]) -> None:
        """Set the number of devices and of pools, by driver and state."""
        for gauge, counts in ((self._devices, devices), (self._device_pools, pools)):
            gauge.clear()
            for labels, count in list(counts.items()):
                gauge.labels(*labels).set(count)

    def _add_certificates(self) -> None:
        """Make the metrics of certificates."""
        self.certificate_expiry = Gauge(
            "gpu_usher_serving_certificate_expiry_timestamp_seconds",
            "When the served certificate expires",
            registry=self.registry,
        )
        self.certificate_start = Gauge(
            "gpu_usher_serving_certificate_start_timestamp_seconds",
            "When the served certificate becomes valid",
            registry=self.registry,
        )
        self.authority_expiry = Gauge(
            "gpu_usher_ca_expiry_timestamp_seconds",
            "When the CA that signed the served certificate expires; NaN: unknown",
            registry=self.registry,
        )
        self.certificate_reloads = Counter(
            "gpu_usher_cert_reload_total",
            "Changed certificate files: taken (success), or not usable, tried again every 5 s (error)",
            ("result",),
            registry=self.registry,
        )

    def _add_policies(self) -> None:
        """Make the metrics of policies."""
        self.policies = Gauge("gpu_usher_policy_info", "Policies in force", ("policy", "hash"), registry=self.registry)
        self.policy_loads = Counter(
            "gpu_usher_policy_loads_total", "Attempts to load the policies", ("result",), registry=self.registry
        )
        self.policy_error = Gauge(
            "gpu_usher_policy_error", "1 while the policies in force are not those written", registry=self.registry
        )
        self.expired_exceptions = Gauge(
            "gpu_usher_policy_expired_exceptions", "Policy exceptions that have expired", registry=self.registry
        )
        self.policy_results = Counter(
            "gpu_usher_policy_results_total",
            "Admission decisions by each policy that matched: denied, patched, warned, allowed",
            ("policy", "result"),
            registry=self.registry,
        )
        self._policy_names: set[str] = set()

    def _add_process(self, role: str) -> None:
        """Make the metrics of the process: version, role, lost log lines, Events, misplaced pods."""
        build = Gauge(
            "gpu_usher_build_info",
            "Version of gpu-usher, and what this process serves (admission, extender, all)",
            ("version", "python", "role"),
            registry=self.registry,
        )
        build.labels(__version__, platform.python_version(), role).set(1)
        self._lost: dict[str, int] = {}
        self.lost_lines = Counter(
            "gpu_usher_log_lines_lost_total",
            "Lines not written: dropped (no room), suppressed (repeated), unrecorded (decision log)",
            ("why",),
            registry=self.registry,
        )
        for cause in ("dropped", "suppressed", "unrecorded"):
            self.lost_lines.labels(cause)
        self.generation = Gauge(
            "gpu_usher_index_generation", "Changes of nodes processed since the start", registry=self.registry
        )
        self.events = Counter(
            "gpu_usher_events_total",
            "Events on pending pods and their workloads: created, renewed, or refused by the API server",
            ("result",),
            registry=self.registry,
        )
        for result in ("created", "renewed", "refused"):
            self.events.labels(result)
        self.wakes = Counter(
            "gpu_usher_wakes_total",
            "Times that pods refused by an extender were woken, because a node fits them now",
            registry=self.registry,
        )
        self.events_waiting = Gauge(
            "gpu_usher_events_waiting", "Events that the limit of rate holds back", registry=self.registry
        )
        self.slipped = Gauge(
            "gpu_usher_slipped_pods",
            "Running GPU pods that gpu-usher did not admit (unadmitted), or on a node that it refuses (misplaced)",
            ("kind",),
            registry=self.registry,
        )
        for kind in ("unadmitted", "misplaced"):
            self.slipped.labels(kind)

    def _add_serving(self) -> None:
        """Make the metrics of overload: shed requests, closed connections, a blocked event loop."""
        self.shed_requests = Counter(
            "gpu_usher_shed_requests_total",
            "Requests answered with 503 because too many were in progress",
            registry=self.registry,
        )
        self.closed_connections = Counter(
            "gpu_usher_closed_connections_total",
            "Connections closed because they sent too little in time, or too much",
            ("waiting_for",),
            registry=self.registry,
        )
        self.loop_blocked = Counter(
            "gpu_usher_event_loop_blocked_total",
            "Times that the event loop was blocked for over 250 ms",
            registry=self.registry,
        )

    def _add_cache(self) -> None:
        """Make the metrics of the watches."""
        self.cache_age = self._by_kind(Gauge, "gpu_usher_cache_age_seconds", "Time since the last event or bookmark")
        self.cache_objects = self._by_kind(Gauge, "gpu_usher_cache_objects", "Objects known")
        self.cache_drift = self._by_kind(Gauge, "gpu_usher_cache_drift_objects", "Differing from the last check's list")
        self.relists = self._by_kind(Counter, "gpu_usher_relists_total", "Whole lists read")
        self.unreadable = self._by_kind(Counter, "gpu_usher_unreadable_objects_total", "Objects that cannot be read")
        self.watch_restarts = Counter(
            "gpu_usher_watch_restarts_total", "Ends of a watch", ("kind", "reason"), registry=self.registry
        )
        self.view_behind = Counter(
            "gpu_usher_view_behind_total",
            "Nodes that are free for the scheduler and not yet in gpu-usher's view",
            registry=self.registry,
        )

    def _add_gpu_health(self) -> None:
        """Make the metrics of GPU health; without a source of health only the nodes with a condition are counted."""
        self.health_polls = Counter(
            "gpu_usher_health_polls_total",
            "Polls for the health of GPUs: success, partial, empty, error",
            ("result",),
            registry=self.registry,
        )
        self.health_age = Gauge(
            "gpu_usher_health_age_seconds",
            "Time since a poll succeeded; +Inf: none has, NaN: no source is set",
            registry=self.registry,
        )
        self.health_age.set(float("nan"))
        self.health_nodes = Gauge(
            "gpu_usher_health_nodes",
            "Nodes with unhealthy or degraded GPUs, or with a condition that reports a fault of them",
            ("state",),
            registry=self.registry,
        )

    def _by_kind(self, metric: type[M], name: str, help_text: str) -> M:
        return metric(name, help_text, ("kind",), registry=self.registry)

    def request_answered(self, verb: str, outcome: str, seconds: float) -> None:
        """Count a request, and note its time. The series are kept, because a look-up by labels checks and locks."""
        series = self._request_series.get((verb, outcome))
        if series is None:
            series = self.requests.labels(verb, outcome), self.duration.labels(verb)
            self._request_series[verb, outcome] = series
        series[0].inc()
        series[1].observe(seconds)

    def lines_lost(self, totals: Mapping[str, int]) -> None:
        """Set the number of log lines lost since the process started, by cause."""
        for cause, total in totals.items():
            self.lost_lines.labels(cause).inc(max(0, total - self._lost.get(cause, 0)))
            self._lost[cause] = total

    def policies_matched(self, policies: Iterable[str], result: str) -> None:
        """Count an admission decision for each policy that matched."""
        for policy in policies:
            self.policy_results.labels(policy, result).inc()

    def results_by_policy(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of admission decisions that each policy matched since the start, by result."""
        counts: dict[str, dict[str, int]] = {}
        for metric in self.policy_results.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    counts.setdefault(sample.labels["policy"], {})[sample.labels["result"]] = int(sample.value)
        return counts

    def policies_loaded(self, policies: PolicySet, error: str | None) -> None:
        """Note an attempt to load the policies; `error` is None if they were loaded."""
        self.policy_loads.labels("error" if error else "success").inc()
        self.policy_error.set(1 if error else 0)
        self.policies.clear()
        names = {policy.name for policy in policies.policies}
        for gone in self._policy_names - names:  # otherwise the series of removed policies would stay
            self.policy_results.remove_by_labels({"policy": gone})
        self._policy_names = names
        for policy in policies.policies:
            self.policies.labels(policy.name, policies.hash[:12]).set(1)
