# SPDX-License-Identifier: Apache-2.0
"""A panel of the Grafana dashboard, and the PromQL of its queries."""

from dataclasses import dataclass

JOB = 'job=~"$job"'
WEBHOOKS = 'name=~".+[.]gpu-usher[.]io"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; `queries` holds (PromQL, legend), `unit` is Grafana's, `kind` is timeseries, stat or table."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    about: str = ""


def quantiles(name: str, by: str, matchers: str) -> tuple[tuple[str, str], ...]:
    """Write the queries for the median and the 99th percentile of a histogram."""
    rate = f"sum by ({by}, le) (rate({name}_bucket{{{matchers}}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({at}, {rate})", f"{{{{{by}}}}} p{at * 100:g}") for at in (0.5, 0.99))


def rate(name: str, by: str, matchers: str = JOB, legend: str = "") -> tuple[str, str]:
    """Write the query for the rate of a counter by labels."""
    words = legend or " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    return f"sum by ({by}) (rate({name}{{{matchers}}}[$__rate_interval]))", words


def gauge(name: str, legend: str, by: str = "", over: str = "max") -> tuple[str, str]:
    """Write the query for a gauge over all replicas."""
    return f"{over} by ({by}) ({name}{{{JOB}}})" if by else f"{over}({name}{{{JOB}}})", legend


def used(name: str) -> tuple[str, str]:
    """Write the query for a gauge of use: every replica that asks says the same."""
    return gauge(name, "{{namespace}} {{unit}}", "namespace, unit")
