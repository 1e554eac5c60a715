# SPDX-License-Identifier: Apache-2.0
"""A random day of DCGM metrics in the layouts of real exporters, as OpenMetrics, and the truth about it.

The truth is worked out from the samples by loops over the looks, and knows nothing of PromQL.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from random import Random

from app.usage.queries import MOST_LOOKS, step_seconds
from app.usage.table import Hold

START = 1_790_035_200
"""A multiple of an hour; the day ends 24 hours later."""
END = START + 24 * 3600
LOOK_BACK = 300
"""Seconds for which Prometheus takes a sample for the present value, unless another comes (--query.lookback-delta)."""
ENGINE, RENAMED, UTIL, SM, MEMORY = (
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_DEV_FB_USED",
)
FULL = {ENGINE: 1, RENAMED: 1, UTIL: 100, SM: 1}
MODEL = "NVIDIA A100-SXM4-80GB"
Samples = list[tuple[int, float]]


@dataclass
class Unit:
    """A unit that a pod held, and all samples of it, by metric and by series. `labels` are those of each series."""

    pod: str
    gpu: str
    instance: str = ""
    profile: str = ""
    vgpu: bool = False
    labels: list[dict[str, str]] = field(default_factory=list)
    samples: dict[tuple[str, int], Samples] = field(default_factory=dict)

    def by_style(self) -> list["Unit"]:
        """Divide the unit by the label that names the pod: what one exporter says is counted by itself."""
        return [part for (part,) in _same_style([self])]

    def export(self, labels: dict[str, str], **values: Samples) -> None:
        """Add what one exporter has said, by the name of the constant of the metric."""
        metrics = {"engine": ENGINE, "renamed": RENAMED, "util": UTIL, "sm": SM, "memory": MEMORY}
        self.labels.append(labels)
        for name, samples in values.items():
            self.samples[metrics[name], len(self.labels) - 1] = samples


def target(job: str) -> dict[str, str]:
    """Give the labels that a scrape adds; the exporter's own pod among them."""
    return {"job": job, "instance": f"{job}:9400", "namespace": "gpu-operator", "pod": f"exporter-{job}"}


def labels_of(unit: Unit, style: str, host: str = "") -> dict[str, str]:
    """Give the labels of a unit's series: with honorLabels, without it, and of --use-old-namespace."""
    namespace, _, name = unit.pod.partition("/")
    node = host or unit.gpu.rpartition("-")[0].removeprefix("GPU-")
    common = {"gpu": unit.gpu[-1], "modelName": MODEL, "Hostname": node, **target(style)}
    if host:
        common["pod"] = host
    if unit.instance:
        common |= {"GPU_I_ID": unit.instance, "GPU_I_PROFILE": unit.profile}
    if unit.vgpu:
        common |= {"vgpu": "0"}
    if style == "old":
        return {**common, "uuid": unit.gpu, "pod_name": name, "pod_namespace": namespace}
    prefix = "" if style == "honoured" else "exported_"
    return {**common, "UUID": unit.gpu, f"{prefix}namespace": namespace, f"{prefix}pod": name}


def drawn(random: Random, first: int, last: int, *values: float) -> Samples:
    """Draw samples between two times: values that stay for a while, NaN, negative ones, and none."""
    scrape, offset = random.choice((30, 60, 90)), random.randrange(1, 30)
    samples: Samples = []
    at = first + offset
    while at < last:
        value = random.choice((*values, *values, math.nan, -1.0, math.inf)) if random.random() < 0.5 else values[0]
        until = at + random.choice((600, 3600, 4 * 3600))
        absent = random.random() < 0.1
        while at < min(until, last):
            if not absent:
                samples.append((at, value))
            at += scrape
    return samples


def drawn_units(random: Random) -> Iterator[Unit]:
    """Draw pods on GPUs: one after the other, together, as slices, with one exporter or two, whole days and hours."""
    for number in range(24):
        first, last = START, END
        if random.random() < 0.4:
            first = START + random.randrange(20 * 3600)
        if random.random() < 0.3:
            last = first + random.randrange(600, END - first + 601)
        sliced = random.random() < 0.25
        unit = Unit(f"team-{number % 3}/pod-{number}", f"GPU-n{number}-{number % 8}", "3" if sliced else "",
                    "1g.10gb" if sliced else "", random.random() < 0.1)  # fmt: skip
        _export(random, unit, first, last)
        yield unit
        if random.random() < 0.4:  # another pod on the same unit: after it, or for a while together with it
            then = last + random.choice((-7200, -660, -30, 30))
            if START < then < END:
                other = Unit(f"team-1/next-{number}", unit.gpu, unit.instance, unit.profile)
                _export(random, other, then, END)
                yield other


def _export(random: Random, unit: Unit, first: int, last: int) -> None:
    memory = [1024.0 * random.randrange(1, 70) for _ in range(3)]
    active = random.choice(((0.0,), (0.0, 0.0, 0.005), (0.0, 0.05, 0.9), (0.6, 0.7, 1.4)))
    for style in random.sample(("honoured", "renamed", "old"), random.choice((1, 1, 2))):
        values = {"memory": drawn(random, first, last, *memory)}
        kinds = random.choice((("engine", "util"), ("engine",), ("util",), ("renamed", "sm"), ()))
        for kind in kinds:
            percent = 100 if kind == "util" else 1
            values[kind] = drawn(random, first, last, *(percent * value for value in active))
        halfway = first + (last - first) // 2
        if random.random() < 0.2:  # a restart of an exporter whose host name is that of its pod
            before = {kind: [one for one in samples if one[0] < halfway] for kind, samples in values.items()}
            after = {kind: [one for one in samples if one[0] >= halfway] for kind, samples in values.items()}
            unit.export(labels_of(unit, style, "exporter-a"), **before)
            unit.export(labels_of(unit, style, "exporter-b"), **after)
        else:
            unit.export(labels_of(unit, style), **values)


def steady(first: int, last: int, value: float, then: tuple[float, float] | None = None) -> Samples:
    """Give one value a minute between two hours of the day; `then` is another one from an hour on."""
    hours = ((START + at, at / 3600) for at in range(int(first * 3600) + 7, int(last * 3600), 60))
    return [(at, then[1] if then and hour >= then[0] else value) for at, hour in hours]


def named_units() -> Iterator[Unit]:
    """Give units whose idleness the tests name."""
    idle, memory = steady(0, 24, 0.9, (15, 0.0)), steady(0, 24, 1024.0)
    cases: dict[str, tuple[str, dict[str, Samples]]] = {
        "idle-for-nine-hours": ("", {"engine": idle, "memory": memory}),
        "works": ("", {"engine": steady(0, 24, 0.5), "memory": memory}),
        "burst-between-two-looks": ("", {"engine": sorted([*steady(0, 24, 0.0), (START + 20 * 3600 + 20, 0.8)])}),
        "silent-for-an-hour": ("", {"engine": steady(0, 23, 0.0), "memory": memory}),
        "gap-of-two-hours": ("", {"engine": [*steady(0, 16, 0.0), *steady(18, 24, 0.0)], "memory": memory}),
        "no-activity": ("", {"memory": memory}),
        "util-of-a-slice": ("1", {"util": steady(0, 24, 0.0), "memory": memory}),
        "ended": ("", {"engine": steady(0, 20, 0.0)}),
        "late": ("", {"engine": steady(21, 24, 0.0)}),
        "other-metric-works": ("", {"engine": steady(0, 24, 0.0), "util": steady(0, 24, 0.0, (22, 70.0))}),
    }
    for name, (instance, values) in cases.items():
        unit = Unit(f"named/{name}", f"GPU-{name}-0", instance, "1g.10gb" if instance else "")
        unit.export(labels_of(unit, "honoured"), **values)
        yield unit
    stuck = Unit("named/two-exporters", "GPU-two-0")
    stuck.export(labels_of(stuck, "renamed"), util=steady(0, 24, 85.0))
    stuck.export(labels_of(stuck, "honoured"), util=steady(0, 24, 0.0))
    yield stuck
    for name, engine in (("claim-a", idle), ("claim-b", steady(0, 24, 0.0, (23, 0.4))), ("claim-c", idle)):
        unit = Unit(f"named/{name}", "GPU-claims-1" if name == "claim-c" else "GPU-claims-0")
        unit.export(labels_of(unit, "honoured"), engine=engine)
        yield unit


EXPORTERS_OWN = {**target("honoured"), "UUID": "GPU-free-0", "gpu": "0", "modelName": MODEL, "Hostname": "free"}
"""The labels of a GPU that no pod holds: the pod is the target's."""


def openmetrics(units: list[Unit]) -> Iterator[str]:
    """Write the day, with `up` of each target, as `promtool tsdb create-blocks-from openmetrics` reads it."""
    for metric in (ENGINE, RENAMED, UTIL, SM, MEMORY):
        yield f"# TYPE {metric} gauge\n"
        for unit in units:
            for (name, index), samples in unit.samples.items():
                if name == metric:
                    yield from _lines(metric, unit.labels[index], samples)
        if metric == ENGINE:
            yield from _lines(metric, EXPORTERS_OWN, steady(0, 24, 0.0))
            for gpu in ("GPU-free-1", "GPU-works-0"):  # of the second another exporter knows the pod
                named = {**EXPORTERS_OWN, "UUID": gpu, "pod": "dcgm-exporter-abcde", "instance": "no-up"}
                yield from _lines(metric, named, steady(0, 24, 0.0))
    yield "# TYPE up gauge\n"
    for job in ("honoured", "renamed", "old"):
        yield from _lines("up", target(job), steady(0, 24, 1))
    yield "# EOF\n"


def _lines(metric: str, labels: dict[str, str], samples: Samples) -> Iterator[str]:
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
    for second, number in samples:
        yield f"{metric}{{{pairs}}} {_text(number)} {second}\n"


def _text(number: float) -> str:
    return "NaN" if math.isnan(number) else "+Inf" if number == math.inf else str(number)


class Truth:
    """What is true of units between `end - seconds` and `end`, looked at every `step` seconds."""

    def __init__(self, units: list[Unit], end: int, seconds: int, step: int, series: int) -> None:
        self.units, self.end, self.seconds, self.step, self.series = units, end, seconds, step, series

    def looks(self, seconds: int, step: int) -> range:
        """List the looks of the seconds before the end."""
        return range(self.end - seconds + step, self.end + 1, step)

    def holds(self, below: float) -> Iterator[Hold]:
        """Give what each pod held."""
        for unit in self.units:
            looks = [at for at in self.looks(self.seconds, self.step) if held(unit, at)]
            if not looks:
                continue
            styles = unit.by_style()

            def most(value: Callable[[Unit, int], float | None], of: list[Unit] = styles) -> int:
                """Count the looks at which there is a value, of that exporter which has most."""
                all_looks = self.looks(self.seconds, self.step)
                return max(sum(value(one, at) is not None for at in all_looks) for one in of)

            minutes, known = self.step / 60, most(activity)
            active = max(sum(activity(one, at) or 0.0 for at in self.looks(self.seconds, self.step)) for one in styles)
            held_looks = most(lambda one, at: held(one, at) or None)
            extent = [value for _, value in _samples(unit, SM, self.end - self.seconds, self.end)]
            memory = [
                max((value for _, value in _samples(one, MEMORY, self.end - self.seconds, self.end)), default=math.inf)
                for one in styles
            ]
            peaks = [
                value / FULL[name]
                for name in _activity_metrics(unit)
                for _, value in _samples(unit, name, self.end - self.seconds, self.end)
            ]
            sm_known = most(lambda one, at: _present(one, (SM,), at)) >= 0.9 * held_looks
            part = max(extent if sm_known else peaks, default=None)
            peak = max((mib for mib in memory if mib < math.inf), default=None)
            now = held(unit, self.end + 30)
            yield Hold(
                namespace=unit.pod.partition("/")[0],
                pod=unit.pod.partition("/")[2],
                node="",
                device=(unit.gpu, unit.instance),
                profile=unit.profile,
                model=MODEL,
                shared=unit.vgpu or self.crowded(unit),
                held=held_looks * minutes,
                known=known * minutes,
                active=min(active, known) * minutes,
                memory_mib=peak,
                memory_known=most(lambda one, at: _present(one, (MEMORY,), at)) * minutes,
                part=None if part is None else min(part, 1.0),
                held_now=now,
                idle={below: self.idle(unit, held_looks * self.step, below)} if now else {},
            )

    def crowded(self, unit: Unit) -> bool:
        """Tell whether another pod was on the unit at two looks ten minutes apart."""
        others = [one for one in self.units if (one.gpu, one.instance) == (unit.gpu, unit.instance)]
        return any(
            sum(held(one, at) and held(one, at - 600) for one in of_style) > 1
            for of_style in _same_style(others)
            for at in self.looks(self.seconds, 600)
        )

    def idle(self, unit: Unit, seconds: int, below: float) -> float:
        """Count the seconds from the end back to the last activity, as far back as nine tenths of them are known; it
        was held for `seconds`."""
        begun = self.end - seconds
        busy = [
            math.ceil(at / self.step) * self.step
            for name in _activity_metrics(unit)
            for at, value in _samples(unit, name, self.end - self.seconds, self.end)
            if value / FULL[name] > below
        ]
        since, idle = max((begun, *busy)), 0.0
        for span in (900, 3600, 14_400, 57_600, 86_400):
            if span > self.seconds:
                span = self.seconds
            step = self.step if span == self.seconds else step_seconds(self.series, span, MOST_LOOKS)
            within = self.looks(span, step)
            known = max(sum(activity(one, at) is not None for at in within) for one in unit.by_style())
            unknown = min(span, self.end - begun) - step * known
            told = min(span, self.end - since)
            if 10 * unknown > told:
                break
            idle = float(told)
        return idle if idle >= 900 else 0.0


def _same_style(units: list[Unit]) -> list[list[Unit]]:
    """Divide units by the label that names the pod."""

    def style(labels: dict[str, str]) -> str:
        return next(name for name in ("exported_pod", "pod_name", "pod") if name in labels)

    return [
        [
            replace(
                unit, samples={key: some for key, some in unit.samples.items() if style(unit.labels[key[1]]) == name}
            )
            for unit in units
        ]
        for name in ("exported_pod", "pod_name", "pod")
    ]


def _activity_metrics(unit: Unit) -> tuple[str, ...]:
    return (ENGINE, RENAMED) if unit.instance else (ENGINE, RENAMED, UTIL)


def held(unit: Unit, at: int) -> bool:
    """Tell whether any series of the unit was there, whatever its value."""
    return any(_last(samples, at) is not None for samples in unit.samples.values())


def activity(unit: Unit, at: int) -> float | None:
    """Give the activity as a share of one, by the profiling metric where it has a value."""
    engine = _present(unit, (ENGINE, RENAMED), at)
    util = None if unit.instance else _present(unit, (UTIL,), at)
    share = engine if engine is not None else None if util is None else util / 100
    return None if share is None else min(share, 1.0)


def _present(unit: Unit, metrics: tuple[str, ...], at: int) -> float | None:
    last = (_last(samples, at) for (name, _), samples in unit.samples.items() if name in metrics)
    return max((value for value in last if value is not None and value >= 0), default=None)


def _samples(unit: Unit, metric: str, after: int, until: int) -> Samples:
    return [
        (at, value)
        for (name, _), samples in unit.samples.items()
        if name == metric
        for at, value in samples
        if after < at <= until and value >= 0
    ]


def _last(samples: Samples, at: int) -> float | None:
    """Give the present value: the last sample, unless it is too old."""
    position = bisect_right(samples, at, key=itemgetter(0)) - 1
    fresh = position >= 0 and samples[position][0] > at - LOOK_BACK
    return samples[position][1] if fresh else None
