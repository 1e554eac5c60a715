# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics. Label values come from closed sets (verbs, outcomes, reason codes), never object names.

The only exception are the namespaces of UseMetrics, whose number is bounded: the reader asks which namespace an idle
GPU belongs to, and alerts are routed by it.
"""

import platform
from collections.abc import Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app import __version__
from app.policy.compiled import PolicySet
from app.usage.table import UsageRow, UseSummary, UseUnit

MOST_NAMESPACES = 50
"""Namespaces with series of their own, those that hold most; with the others, three units and three metrics, 459 series
at most. A guess at what one reads in a chart."""
OTHERS = "_others"
"""The value of the label `namespace` for all further ones together. No namespace has an underscore in its name
(RFC 1123, which Kubernetes asks of it)."""
UNITS: Mapping[str, str] = {UseUnit.GPU.value: "gpu", UseUnit.Slice.value: "slice", UseUnit.Share.value: "share"}
"""The values of the label `unit`: GPUs, MIG slices, and GPUs that several pods share."""


class UseMetrics:
    """What namespaces hold, and what of it is idle; without a source of use the gauges stay empty."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge, labels = partial(Gauge, registry=registry), ("namespace", "unit")
        self._held = gauge("gpu_usher_gpus_held", "GPUs that pods hold, by the DCGM exporter", labels)
        self._idle = gauge("gpu_usher_gpus_idle", "GPUs that pods hold and that are idle for certain", labels)
        self._active = gauge(
            "gpu_usher_gpus_active_ratio",
            "Mean activity of the GPUs that pods held in the last day, while it was known",
            labels,
        )
        self.waiting_pods = gauge("gpu_usher_waiting_pods", "GPU pods that waited for a node when use was read last")
        self.age = gauge(
            "gpu_usher_use_age_seconds", "Time since the use of GPUs was read; +Inf: never, NaN: no source is set"
        )
        self.age.set(float("nan"))
        self._shown: UseSummary | None = None

    def use_read(self, summary: UseSummary | None, age_seconds: float | None) -> None:
        """Set the age of what is known of use, and the gauges if it is another summary; None is nothing."""
        self.age.set(float("inf") if age_seconds is None else age_seconds)
        if summary is self._shown:
            return
        self._shown = summary
        for gauge in (self._held, self._idle, self._active):
            gauge.clear()
        for (namespace, unit), rows in _rows_by_labels(summary.namespaces if summary else ()).items():
            self._set(namespace, unit, rows)

    def _set(self, namespace: str, unit: str, rows: list[UsageRow]) -> None:
        self._held.labels(namespace, unit).set(sum(row.held_now for row in rows))
        self._idle.labels(namespace, unit).set(sum(row.idle_now for row in rows))
        known = [(row.active_share, row.held_hours * row.known_share) for row in rows if row.active_share is not None]
        if hours := sum(hours for _, hours in known):
            self._active.labels(namespace, unit).set(sum(share * hours for share, hours in known) / hours)


def _rows_by_labels(rows: Iterable[UsageRow]) -> Mapping[tuple[str, str], list[UsageRow]]:
    """Group rows by the values of their labels, with OTHERS for namespaces beyond MOST_NAMESPACES."""
    held: dict[str, int] = {}
    by_labels: dict[tuple[str, str], list[UsageRow]] = {}
    for row in (rows := tuple(rows)):
        held[row.of] = held.get(row.of, 0) + row.held_now
    named = set(sorted(held, key=lambda namespace: (-held[namespace], namespace))[:MOST_NAMESPACES])
    for row in rows:
        by_labels.setdefault((row.of if row.of in named else OTHERS, UNITS[row.unit]), []).append(row)
    return by_labels


BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds. The API server's own buckets start at 5 ms, too coarse for us."""

VERBS = ("mutate", "validate", "filter", "prioritize", "preempt")
"""The values of the label `verb`: the last part of the path of each route of the TLS listener. The counters that alerts
read are created at 0 for each of them, because Prometheus sees no increase in a series that starts at 1."""


class Metrics:
    """The metrics of one service, in a registry of its own, so that tests can run several services."""

    def __init__(self, role: str = "all") -> None:
        """Make the metrics. `role` is that of `serve --role`, a label of the build metric."""
        self.registry = CollectorRegistry()
        self.requests = self._counter("gpu_usher_requests_total", "Requests by verb and outcome", "verb", "outcome")
        self.duration = Histogram(
            "gpu_usher_request_duration_seconds",
            "Time to answer, body read",
            ("verb",),
            registry=self.registry,
            buckets=BUCKETS,
        )
        self._request_series: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self.refusals = self._counter("gpu_usher_refusals_total", "Nodes or pods refused, by reason", "verb", "reason")
        self.limits_exceeded = self._counter(
            "gpu_usher_namespace_limit_exceeded_total",
            "GPUs bound beyond namespaceLimits, as each replica sees it",
        )
        self.evictions_prevented = self._counter("gpu_usher_evictions_prevented_total", "Nodes dropped by preempt")
        self.internal_errors = self._counter("gpu_usher_internal_errors_total", "Internal errors", "where")
        self.oversized = self._counter("gpu_usher_oversized_bodies_total", "Bodies answered with 413", "verb")
        for verb in VERBS:
            self.internal_errors.labels(verb)
            self.oversized.labels(verb)
        self.internal_errors.labels("deadline")
        self.nodes = self._gauge("gpu_usher_nodes", "Nodes known")
        self.vram_overrun_nodes = self._gauge(
            "gpu_usher_vram_overrun_nodes", "Nodes on which pods declare more memory of shared GPUs than there is"
        )
        self._add_devices()
        self._add_serving()
        self._add_process(role)
        self._add_cache()
        self._add_gpu_health()
        self._add_images()
        self.use = UseMetrics(self.registry)
        self._add_certificates()
        self._add_policies()

    def _add_devices(self) -> None:
        """Make the metrics of devices in ResourceSlices; without any they stay empty."""
        labels = ("driver", "state")
        self._devices = self._gauge(
            "gpu_usher_devices",
            "Devices in ResourceSlices: published, of these tainted by their driver, allocated to claims",
            *labels,
        )
        self._device_pools = self._gauge(
            "gpu_usher_device_pools", "Pools of devices; of an incomplete one no device can be allocated", *labels
        )

    def devices_counted(self, devices: Mapping[tuple[str, str], int], pools: Mapping[tuple[str, str], int]) -> None:
        """Set the number of devices and of pools, by driver and state."""
        for gauge, counts in ((self._devices, devices), (self._device_pools, pools)):
            gauge.clear()
            for labels, count in list(counts.items()):
                gauge.labels(*labels).set(count)

    def _add_certificates(self) -> None:
        self.certificate_expiry = self._gauge(
            "gpu_usher_serving_certificate_expiry_timestamp_seconds", "When the served certificate expires"
        )
        self.certificate_start = self._gauge(
            "gpu_usher_serving_certificate_start_timestamp_seconds", "When the served certificate becomes valid"
        )
        self.authority_expiry = self._gauge(
            "gpu_usher_ca_expiry_timestamp_seconds",
            "When the CA that signed the served certificate expires; NaN: unknown",
        )
        self.certificate_reloads = self._counter(
            "gpu_usher_cert_reload_total",
            "Changed certificate files: taken (success), or not usable, tried again every 5 s (error)",
            "result",
        )

    def _add_policies(self) -> None:
        self.policies = self._gauge("gpu_usher_policy_info", "Policies in force", "policy", "hash")
        self.policy_loads = self._counter("gpu_usher_policy_loads_total", "Attempts to load the policies", "result")
        self.policy_error = self._gauge("gpu_usher_policy_error", "1 while the policies in force are not those written")
        self.expired_exceptions = self._gauge(
            "gpu_usher_policy_expired_exceptions", "Policy exceptions that have expired"
        )
        self.policy_results = self._counter(
            "gpu_usher_policy_results_total",
            "Admission decisions by each policy that matched: denied, patched, warned, allowed",
            "policy",
            "result",
        )
        self._policy_names: set[str] = set()

    def _add_process(self, role: str) -> None:
        """Make the metrics of the process: version, role, lost log lines, Events, misplaced pods."""
        build = self._gauge(
            "gpu_usher_build_info",
            "Version of gpu-usher, and what this process serves (admission, extender, all)",
            "version",
            "python",
            "role",
        )
        build.labels(__version__, platform.python_version(), role).set(1)
        self._lost: dict[str, int] = {}
        self.lost_lines = self._counter(
            "gpu_usher_log_lines_lost_total",
            "Lines not written: dropped (no room), suppressed (repeated), unrecorded (decision log)",
            "why",
        )
        for cause in ("dropped", "suppressed", "unrecorded"):
            self.lost_lines.labels(cause)
        self.generation = self._gauge("gpu_usher_index_generation", "Changes of nodes processed since the start")
        self.events = self._counter(
            "gpu_usher_events_total",
            "Events on pending pods and their workloads: created, renewed, or refused by the API server",
            "result",
        )
        for result in ("created", "renewed", "refused"):
            self.events.labels(result)
        self.wakes = self._counter(
            "gpu_usher_wakes_total", "Times that pods refused by an extender were woken, because a node fits them now"
        )
        self.events_waiting = self._gauge("gpu_usher_events_waiting", "Events that the limit of rate holds back")
        self.slipped = self._gauge(
            "gpu_usher_slipped_pods",
            "Running GPU pods that gpu-usher did not admit (unadmitted), or on a node that it refuses (misplaced)",
            "kind",
        )
        for kind in ("unadmitted", "misplaced"):
            self.slipped.labels(kind)

    def _add_serving(self) -> None:
        self.shed_requests = self._counter(
            "gpu_usher_shed_requests_total", "Requests answered with 503 because too many were in progress"
        )
        self.closed_connections = self._counter(
            "gpu_usher_closed_connections_total",
            "Connections closed because they sent too little in time, or too much",
            "waiting_for",
        )
        self.loop_blocked = self._counter(
            "gpu_usher_event_loop_blocked_total", "Times that the event loop was blocked for over 250 ms"
        )

    def _add_cache(self) -> None:
        self.cache_age = self._gauge("gpu_usher_cache_age_seconds", "Time since the last event or bookmark", "kind")
        self.cache_objects = self._gauge("gpu_usher_cache_objects", "Objects known", "kind")
        self.cache_drift = self._gauge("gpu_usher_cache_drift_objects", "Differing from the last check's list", "kind")
        self.relists = self._counter("gpu_usher_relists_total", "Whole lists read", "kind")
        self.unreadable = self._counter("gpu_usher_unreadable_objects_total", "Objects that cannot be read", "kind")
        self.watch_restarts = self._counter("gpu_usher_watch_restarts_total", "Ends of a watch", "kind", "reason")
        self.view_behind = self._counter(
            "gpu_usher_view_behind_total", "Nodes that are free for the scheduler and not yet in gpu-usher's view"
        )

    def _add_gpu_health(self) -> None:
        """Make the metrics of GPU health; without a source of health only the nodes with a condition are counted."""
        self.health_polls = self._counter(
            "gpu_usher_health_polls_total", "Polls for the health of GPUs: success, partial, empty, error", "result"
        )
        self.health_age = self._gauge(
            "gpu_usher_health_age_seconds", "Time since a poll succeeded; +Inf: none has, NaN: no source is set"
        )
        self.health_age.set(float("nan"))
        self.health_nodes = self._gauge(
            "gpu_usher_health_nodes",
            "Nodes with unhealthy or degraded GPUs, or a condition that reports a fault of them, or that are not Ready",
            "state",
        )

    def _add_images(self) -> None:
        """Make the metrics of images that are read from registries; without a reader they stay at 0."""
        self.image_readings = self._counter(
            "gpu_usher_image_readings_total", "Images read from registries, by what became of it", "outcome"
        )
        self.registry_silence = self._gauge(
            "gpu_usher_registry_silence_seconds",
            "Time since which a registry of images does not answer; 0: it answers",
            "registry",
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=self.registry)

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
