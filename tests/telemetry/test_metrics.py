# SPDX-License-Identifier: Apache-2.0
"""The metrics as Prometheus' own linter sees them, and the closed sets of their labels."""

from typing import get_args

import pytest

from app import __version__
from app.settings import Role
from app.telemetry.metrics import UNITS, Metrics
from app.values.reasons import Code
from app.world.dra_index import DEVICE_STATES, DRIVERS, POOL_STATES
from tests.builders import policies, policy, shipped
from tests.prometheus import find_promtool, promtool
from tests.telemetry.scrape import offered, samples, scraped

VERBS = {"mutate", "validate", "filter", "prioritize", "preempt"}
OUTCOMES = {"patched", "allowed", "denied", "unconcerned", "unhandled", "answered", "none_fits", "error"}
KINDS = {"nodes", "pods", "namespaces", "runtimeclasses", "configmaps", "gpupolicies"}
KINDS |= {"resourcequotas", "limitranges", "priorityclasses", "serviceaccounts"}
CLOSED: dict[str, set[str]] = {
    "verb": VERBS,
    "outcome": OUTCOMES
    | {"read", "unchanged", "not_allowed", "unreachable", "timeout", "unauthorized", "not_found", "http_error"}
    | {"address", "redirect", "too_large", "digest", "malformed"}
    | {f"http_{status}" for status in (400, 408, 411, 413, 415, 429, 500, 503)},
    "reason": {code.name for code in Code} | {"closed", "gone", "refused", "unauthorized", "http", "connection"},
    "policy": {policy.name for policy in shipped().policies} | {"default"},
    "result": {"success", "error", "partial", "empty", "denied", "patched", "warned", "allowed"}
    | {"created", "renewed", "refused"},
    "why": {"dropped", "suppressed", "unrecorded"},
    "waiting_for": {"header", "body", "header_size", "handshake", "answer", "room"},
    "where": VERBS | {"deadline"},
    "kind": KINDS | {"unadmitted", "misplaced"},
    "state": {"ill", "ailing", "condition", "not_ready", *DEVICE_STATES, *POOL_STATES},
    "driver": set(DRIVERS),
    "role": set(get_args(Role)),
    "unit": set(UNITS.values()),
}
"""Label → its values. `version`, `python`, `hash` and `le` may have any, one per process, policy set or bucket."""
OPEN = {"version", "python", "hash", "le", "namespace", "registry"}
"""`namespace` is that of the metrics of use alone, with fifty values at most (test_use_metrics.py);
`registry` is one of the operator's list."""


@pytest.mark.skipif(isinstance(find_promtool(), str), reason=str(find_promtool()))
def test_metrics_are_named_as_prometheus_wants_them() -> None:
    """F90, MET-01: promtool checks base units, _total and help of a live scrape."""
    assert not promtool("check", "metrics", fed=scraped())


@pytest.mark.skipif(isinstance(find_promtool(), str), reason=str(find_promtool()))
def test_the_linter_would_complain() -> None:
    """This shows that the test above can fail."""
    assert "should" in promtool("check", "metrics", fed="# TYPE requests counter\nrequests 1\n")


def test_every_label_is_from_a_closed_set() -> None:
    """F92, MET-01: no label has the name of a pod or a node, and that of a namespace where use is known alone."""
    pairs = {(key, value) for sample in samples() for key, value in sample.labels.items() if key not in OPEN}

    assert {key for key, _ in pairs} <= set(CLOSED)
    assert not {(key, value) for key, value in pairs if value not in CLOSED[key]}


def test_no_metric_has_a_label_that_is_not_listed_here() -> None:
    """MET-01: a new label needs a set of its own."""
    assert {label for labels in offered().values() for label in labels} <= set(CLOSED) | OPEN


def test_names_have_our_prefix() -> None:
    assert not [name for name in offered() if not name.startswith("gpu_usher_")]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_each_verb_has_a_latency_histogram(verb: str) -> None:
    """P17, F91, MET-03: the buckets begin at half a millisecond."""
    name = "gpu_usher_request_duration_seconds_bucket"
    buckets = {
        sample.labels["le"]: sample.value
        for sample in samples()
        if sample.name == name and sample.labels["verb"] == verb
    }

    assert buckets["+Inf"] >= 1
    assert {"0.0005", "2.5"} <= buckets.keys()


def test_refusals_are_counted_by_reason_and_decisions_by_policy() -> None:
    """F92, MET-02."""
    counted = {(sample.name, *sorted(sample.labels.values())): sample.value for sample in samples()}

    assert counted["gpu_usher_refusals_total", "QuantityFractional", "mutate"] == 1
    assert counted["gpu_usher_refusals_total", "ProductNotAllowed", "filter"] == 1
    assert counted["gpu_usher_policy_results_total", "default", "patched"] >= 1
    assert counted["gpu_usher_policy_results_total", "default", "denied"] >= 1


def test_each_service_counts_in_a_registry_of_its_own() -> None:
    """MET-05, HA-06: a process has one plain registry; nothing is shared, and no file is written."""
    one, other = Metrics(), Metrics()

    one.requests.labels("mutate", "patched").inc()

    sample = "gpu_usher_requests_total", {"verb": "mutate", "outcome": "patched"}
    assert (one.registry.get_sample_value(*sample), other.registry.get_sample_value(*sample)) == (1, None)


def test_a_scrape_names_the_build_the_policies_and_the_index() -> None:
    """CFG-04: the hash distinguishes replicas with different policies."""
    by_name = {sample.name: sample for sample in samples()}

    assert by_name["gpu_usher_build_info"].labels["version"] == __version__
    assert shipped().hash.startswith(by_name["gpu_usher_policy_info"].labels["hash"])
    assert by_name["gpu_usher_index_generation"].value > 0


def test_a_policy_that_is_gone_leaves_no_series_behind() -> None:
    """MET-01: names that come and go with edits do not accumulate."""
    metrics = Metrics()
    metrics.policies_loaded(policies(policy("first", "")), None)
    metrics.policies_matched(["first"], "denied")
    metrics.policies_loaded(policies(policy("second", "")), None)
    metrics.policies_matched(["second"], "patched")

    names = {sample.labels["policy"] for family in metrics.policy_results.collect() for sample in family.samples}

    assert names == {"second"}
