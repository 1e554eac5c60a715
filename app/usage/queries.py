# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs as instant queries of PromQL, each with one number a series, and the holds that the answers describe.

A subquery looks at the series once a step. The evaluation lies half a minute after a look: whether a range includes its
start, which Prometheus 3.0 changed, makes no difference then. What several exporters say of one GPU is one GPU: the
highest figure counts, so that none that works seems idle.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from app.knowledge.dcgm import DCGM, Measure, UsageMetric, UsageMetrics
from app.usage.table import MINUTE, GPUUse, Hold
from app.values.errors import SourceError

HALF_MINUTE = MINUTE // 2
HOUR, DAY = 3600, 86_400
KNOWN_SHARE = 0.9
"""The share of the minutes in which a figure must be known to count. One lost scrape in fifteen minutes changes
nothing. A guess, on the safe side."""
LEAST_IDLE = 900
"""Seconds from which a GPU counts as idle. Jobs pause for minutes to load data or to write a checkpoint. A guess."""
STEPS = (60, 300, 900, 1800, HOUR)
"""Seconds between two looks; exporters are scraped every 15 to 60 s."""
MOST_POINTS = 500_000
"""Series times looks of a subquery, which takes Prometheus some seconds of CPU. It holds some ten times as many samples
for it, of 50 million that it allows (--query.max-samples)."""
MOST_LOOKS = 64
"""Looks of a span before the end, enough to see whether a tenth of it is unknown."""
MOST_SERIES = 50_000
"""Pods' GPUs of one answer: 6,000 nodes with eight GPUs. More are refused, with the remedy to ask for less time."""
OVERLAP = 600
"""Seconds between two looks at both of which two pods must be on a GPU to share it. Prometheus shows a series that was
not marked as ended for five minutes more, so that pods one after the other seem to overlap."""
POD = "pod"
"""The label that both an exporter and the target of a scrape may have."""


class Figure(Enum):
    """What a query answers of each unit that a pod held. Minutes are counted in looks."""

    Described = "labels that describe it"
    Now = "whether the pod is seen on it at the end"
    Held = "looks at which the pod was seen on it"
    Known = "looks at which its activity had a value, within a span of seconds"
    Active = "sum of its activity over those looks"
    Busy = "when its activity was last above a share of one"
    Crowded = "pods seen on it together"
    Memory = "its highest used memory in MiB"
    MemoryKnown = "looks at which the used memory had a value"
    Peak = "its highest activity"
    Extent = "the highest share of its multiprocessors in use"
    ExtentKnown = "looks at which that share had a value"


@dataclass(frozen=True, slots=True)
class Query:
    """A query and what it answers. `of` is the span of Figure.Known and the activity of Figure.Busy."""

    figure: Figure
    of: float
    text: str


def step_seconds(series: int, seconds: float, most_looks: float = math.inf) -> int:
    """Choose the seconds between two looks for so many series, of which at most so many are wanted.

    Raises SourceError for more series than are read.
    """
    if series > MOST_SERIES:
        raise SourceError(f"{series} series of pods' GPUs, wants at most {MOST_SERIES}: ask for less time (--since)")
    looks = min(most_looks, MOST_POINTS / max(1, series))
    return next((step for step in STEPS if seconds <= step * looks), STEPS[-1])


def first_label(metric: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Read the first of some labels that a series has; empty where it has none."""
    return next((value for name in names if (value := metric.get(name))), "")


UnitKey = tuple[str, ...]
"""Namespace, pod, GPU and MIG instance; the first two are empty for Figure.Crowded. The GPU is its UUID, or its number,
which is enough since a pod has one node."""
Matchers = str
Style = tuple[Matchers, tuple[str, ...]]
"""The matchers of the series in which one label names the pod, and the labels that identify a unit there."""


class UseQueries:
    """The queries for the `seconds` before `now`, and what their answers say.

    `series` is the answer to `count_query`; `belows` are the activities up to which a unit counts as idle.
    """

    def __init__(
        self, dcgm: DCGM, usage: UsageMetrics, now: float, seconds: float, series: int, belows: tuple[float, ...]
    ) -> None:
        self._dcgm, self._usage, self._series, self._belows = dcgm, usage, series, belows
        self._device = (*dcgm.gpu_labels, *usage.instance_labels)
        self._styles = tuple(map(self._style, usage.pod_labels))
        self.step = step_seconds(series, seconds)
        self._last = int(now - HALF_MINUTE) // self.step * self.step
        self._look = math.ceil(seconds / self.step) * self.step
        self.time = self._last + HALF_MINUTE
        self._figures: dict[tuple[Figure, float], dict[UnitKey, float]] = {}
        self._labels: dict[UnitKey, Mapping[str, str]] = {}

    def queries(self, sizes: bool) -> Iterator[Query]:
        """Yield the queries, with `sizes` also those that only a smaller unit is chosen by."""
        usage, over = self._usage, f"[{self._look}s:{self.step}s]"
        described = (*self._dcgm.node_labels, *usage.model_labels, *usage.profile_labels, *usage.shared_labels)
        held, known = self._held(), self._known()
        yield Query(Figure.Held, 0, f"count_over_time(({held}){over})")
        yield Query(Figure.Now, 0, held)
        last = partial(_any_of, usage.metrics, over=f"[{self._look}s]")
        yield Query(Figure.Described, 0, self._by("group", lambda style: f"last_over_time({last(style)})", described))
        for style in self._styles:
            together = f"{self._held((style,))} and {self._held((style,), f' offset {OVERLAP}s')}"
            counted = f"count by ({', '.join(self._device)}) ({together})"
            yield Query(Figure.Crowded, 0, f"max_over_time(({counted})[{self._look}s:{OVERLAP}s]) > 1")
        yield Query(Figure.Active, 0, f"sum_over_time(({known}){over})")
        for span in self._spans():
            yield Query(Figure.Known, span, f"count_over_time(({known})[{span}s:{self._step(span)}s])")
        for below in self._belows:
            rows = usage.rows_of(Measure.Activity)
            above = " or ".join(self._by("group", partial(self._above, row, below)) for row in rows)
            yield Query(Figure.Busy, below, f"max_over_time((({above}) * time()){over})")
        yield from self._peaks(Figure.Memory, Measure.Memory)
        if sizes:
            yield from self._peaks(Figure.Peak, Measure.Activity)
            yield from self._peaks(Figure.Extent, Measure.Extent)
            for figure, measure in ((Figure.MemoryKnown, Measure.Memory), (Figure.ExtentKnown, Measure.Extent)):
                values = " or ".join(self._values(row) for row in usage.rows_of(measure))
                yield Query(figure, 0, f"count_over_time(({values}){over})")

    def _spans(self) -> Iterator[int]:
        """Yield the spans before the end for which the known minutes are counted, each four times the last."""
        span = LEAST_IDLE
        while span < self._look:
            yield span
            span *= 4
        yield self._look

    def _step(self, span: float) -> int:
        return step_seconds(self._series, span, MOST_LOOKS) if span < self._look else self.step

    def _peaks(self, figure: Figure, measure: Measure) -> Iterator[Query]:
        for row in self._usage.rows_of(measure):
            peak = self._by("max", partial(self._peak, row, self._look))
            yield Query(figure, 0, _share(peak, row.full) if row.full else peak)

    def _known(self) -> str:
        """Write the activity as a share of one: of the preferred metric that has a value."""
        rows = self._usage.rows_of(Measure.Activity)
        return " or ".join(_share(self._values(row), row.full or 1) for row in rows)

    def _values(self, row: UsageMetric) -> str:
        """Write the values of a metric by unit. NaN and values below zero say nothing."""
        return self._by("max", lambda style: f"{_any_of(row.metrics, style, self._of_unit(row))} >= 0")

    def _peak(self, row: UsageMetric, seconds: int, style: Matchers) -> str:
        """Write the highest sample of some seconds. A range of several names at once fails where a GPU has had both."""
        matchers = ", ".join(filter(None, (style, self._of_unit(row))))
        return " or ".join(f"max_over_time({name}{{{matchers}}}[{seconds}s])" for name in row.metrics)

    def _above(self, row: UsageMetric, below: float, style: Matchers) -> str:
        return f"({self._peak(row, self.step, style)}) > {below * (row.full or 1):g}"

    def _held(self, styles: tuple[Style, ...] = (), offset: str = "") -> str:
        """Write the value 1 for each unit that a pod holds which is not the exporter's own.

        The label `pod` of a GPU that no pod holds is the target's, which is that of `up`; the label that the exporter
        wrote is not. Where both have one of that name, the exporter's is renamed, or wins (honor_labels of Prometheus).
        """

        def holders(style: Matchers) -> str:
            series = _any_of(self._usage.metrics, style, over=offset)
            plain = style.startswith(f"{POD}!=")
            return f"{series} unless on (job, instance, namespace, {POD}) up{offset}" if plain else series

        return self._by("group", holders, (), styles)

    def _by(
        self,
        aggregation: str,
        text: Callable[[Matchers], str],
        more: tuple[str, ...] = (),
        styles: tuple[Style, ...] = (),
    ) -> str:
        """Aggregate series by unit, each style by its own labels: the target's change with the exporter's pod."""
        return " or ".join(
            f"{aggregation} by ({', '.join((*labels, *more))}) ({text(matchers)})"
            for matchers, labels in styles or self._styles
        )

    def _style(self, pod: str) -> Style:
        names = self._usage.pod_labels
        others = (f'{label}=""' for label in names[: names.index(pod)])
        no_exporter = json.dumps(f".*(?:{self._usage.exporter_pods.pattern}).*")
        return ", ".join((f'{pod}!=""', f"{pod}!~{no_exporter}", *others)), (
            *self._usage.namespace_labels, pod, *self._device
        )  # fmt: skip

    def _of_unit(self, row: UsageMetric) -> Matchers:
        """Write the matchers that leave out MIG instances where the value is not their own."""
        return "" if row.of_slices else ", ".join(f'{label}=""' for label in self._usage.instance_labels)

    def _key(self, metric: Mapping[str, str]) -> UnitKey:
        usage = self._usage
        names = (usage.namespace_labels, usage.pod_labels, self._dcgm.gpu_labels, usage.instance_labels)
        return tuple(first_label(metric, some) for some in names)

    def add(self, query: Query, metric: Mapping[str, str], value: float) -> None:
        """Take in one series of an answer; NaN, infinity and values below zero are passed over."""
        if not 0 <= value < math.inf:
            return
        key = self._key(metric)
        if query.figure is Figure.Described:
            self._labels[key] = {**metric, **self._labels.get(key, {})}
        else:
            figures = self._figures.setdefault((query.figure, query.of), {})
            figures[key] = max(value, figures.get(key, value))

    def use(self, problems: tuple[str, ...]) -> GPUUse:
        """Give what the answers say."""
        held = sorted(self._figures.get((Figure.Held, 0), {}))
        holds = (self._hold(key, self._labels.get(key, {})) for key in held)
        return GPUUse(float(self._last - self._look), float(self._last), self.step, tuple(holds), problems)

    def _figure(self, figure: Figure, key: UnitKey, of: float = 0) -> float | None:
        return self._figures.get((figure, of), {}).get(key)

    def _minutes(self, figure: Figure, key: UnitKey, of: float = 0) -> float:
        return (self._figure(figure, key, of) or 0.0) * self._step(of or self._look) / MINUTE

    def _hold(self, key: UnitKey, metric: Mapping[str, str]) -> Hold:
        usage, held = self._usage, self._minutes(Figure.Held, key)
        known = min(self._minutes(Figure.Known, key, self._look), held)
        extent_known = self._minutes(Figure.ExtentKnown, key) >= KNOWN_SHARE * held
        part = self._figure(Figure.Extent if extent_known else Figure.Peak, key)
        held_now = self._figure(Figure.Now, key) is not None
        node = first_label(metric, self._dcgm.node_labels)
        has_uuid = key[2].startswith("GPU-")
        crowded = has_uuid and self._figure(Figure.Crowded, ("", "", *key[2:])) is not None
        return Hold(
            namespace=key[0],
            pod=key[1],
            node=node,
            device=(key[2] if has_uuid else f"{node}/{key[2]}", key[3]),
            profile=first_label(metric, usage.profile_labels),
            model=first_label(metric, usage.model_labels),
            shared=bool(first_label(metric, usage.shared_labels)) or crowded,
            held=held,
            known=known,
            active=min(self._minutes(Figure.Active, key), known),
            memory_mib=self._figure(Figure.Memory, key),
            memory_known=min(self._minutes(Figure.MemoryKnown, key), held),
            part=part,
            held_now=held_now,
            idle={below: self._idle(key, below) for below in self._belows} if held_now else {},
        )

    def _idle(self, key: UnitKey, below: float) -> float:
        """Give for how many seconds until the end a unit was idle for certain.

        Of each span before the end nine tenths of the minutes in which it was held must be known; the first that has
        fewer ends the count. So a gap matters less, the longer ago it is.
        """
        held = MINUTE * self._minutes(Figure.Held, key)
        quiet = min(held, self._last - (self._figure(Figure.Busy, key, below) or 0.0))
        idle = 0.0
        for span in self._spans():
            sure = min(span, quiet)
            unknown = min(span, held) - MINUTE * self._minutes(Figure.Known, key, span)
            if unknown > (1 - KNOWN_SHARE) * sure + 1:  # a second, since figures are rounded
                break
            idle = sure
        return idle if idle >= LEAST_IDLE else 0.0


def count_query(dcgm: DCGM, usage: UsageMetrics, seconds: int) -> str:
    """Write the query for the number of pods' GPUs of some seconds."""
    labels = ", ".join((*usage.namespace_labels, *usage.pod_labels, *dcgm.gpu_labels, *usage.instance_labels))
    return f"count(group by ({labels}) (last_over_time({_any_of(usage.metrics, over=f'[{seconds}s]')})))"


def _share(text: str, full: float) -> str:
    """Write values as shares of one; more is one: DCGM has shown such values of slices (NVIDIA/DCGM issue 152)."""
    return f"clamp_max(({text}) / {full:g}, 1)"


def _any_of(metrics: tuple[str, ...], *matchers: Matchers, over: str = "") -> str:
    return "{" + ", ".join(filter(None, (f'__name__=~"{"|".join(metrics)}"', *matchers))) + "}" + over
