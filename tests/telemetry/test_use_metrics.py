# SPDX-License-Identifier: Apache-2.0
"""The metrics of use: by namespace and unit, bounded, and gone when nothing is known any more."""

import asyncio
import math

from prometheus_client import CollectorRegistry

from app.cluster.usage_polling import FORGET_SECONDS
from app.telemetry.metrics import MOST_NAMESPACES, OTHERS, UseMetrics
from app.usage.table import Hold
from tests.usage.polls import Source, hold, poller_of

Series = dict[tuple[str, str, str], float]


class Polled:
    """The metrics of a poller whose source has these holds, and its clock."""

    def __init__(self, *holds: Hold) -> None:
        self.registry = CollectorRegistry()
        self.seconds = 0.0
        self.poller = poller_of(Source(*holds), metrics=UseMetrics(self.registry), now=lambda: self.seconds)
        asyncio.run(self.poller.poll())

    def series(self) -> Series:
        """Return the values by name, namespace and unit."""
        samples = (sample for metric in self.registry.collect() for sample in metric.samples)
        return {
            (sample.name.removeprefix("gpu_usher_"), sample.labels["namespace"], sample.labels["unit"]): sample.value
            for sample in samples
            if sample.labels
        }


def test_namespaces_have_what_they_hold_and_what_of_it_is_idle() -> None:
    """F149, F92: GPUs and slices apart; a share of activity only where it is known."""
    metrics = Polled(
        hold("works", active=0.5),
        hold("idles", idle=2),
        hold("slice", idle=2, namespace="team-b", device=("GPU-1", "1"), profile="1g.10gb"),
        hold("unknown", active=None, namespace="team-c"),
    )

    assert metrics.series() == {
        ("gpus_held", "team-a", "gpu"): 2,
        ("gpus_idle", "team-a", "gpu"): 1,
        ("gpus_active_ratio", "team-a", "gpu"): 0.25,
        ("gpus_held", "team-b", "slice"): 1,
        ("gpus_idle", "team-b", "slice"): 1,
        ("gpus_active_ratio", "team-b", "slice"): 0.0,
        ("gpus_held", "team-c", "gpu"): 1,
        ("gpus_idle", "team-c", "gpu"): 0,
    }


def test_namespaces_that_hold_least_are_counted_together() -> None:
    """F149, MET-01: fifty have series of their own, those that hold most."""
    many = [hold(f"p{index}", namespace=f"n{index:03}") for index in range(MOST_NAMESPACES + 10)]
    large = [hold(f"large{index}", namespace="z-large") for index in range(3)]
    held = {key[1]: value for key, value in Polled(*many, *large).series().items() if key[0] == "gpus_held"}

    assert len(held) == MOST_NAMESPACES + 1
    assert (held["z-large"], held["n000"], held[OTHERS]) == (3, 1, 11)
    assert sum(held.values()) == len(many) + len(large)


def test_what_was_read_too_long_ago_is_no_figure_any_more() -> None:
    """F149: series end when the use is unknown, and the age says why."""
    metrics = Polled(hold("idles", idle=2))
    metrics.seconds = FORGET_SECONDS - 1
    metrics.poller.measure()
    before = metrics.series()
    metrics.seconds = FORGET_SECONDS
    metrics.poller.measure()

    assert before
    assert metrics.series() == {}
    assert metrics.registry.get_sample_value("gpu_usher_use_age_seconds") == FORGET_SECONDS


def test_age_tells_who_asks_nobody_from_who_gets_no_answer() -> None:
    """F149: an alert fires for the second alone."""
    registry = CollectorRegistry()
    metrics = UseMetrics(registry)
    nobody = registry.get_sample_value("gpu_usher_use_age_seconds")
    metrics.use_read(None, None)

    assert nobody is not None
    assert math.isnan(nobody)
    assert registry.get_sample_value("gpu_usher_use_age_seconds") == math.inf
