# SPDX-License-Identifier: Apache-2.0
"""A made week of DCGM metrics in the layouts of real exporters, as OpenMetrics, and the truth about it.

The truth is worked out from the samples alone, by loops over every minute, and knows nothing of windows of queries but
that idleness is told in whole windows.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

START = 1_790_000_100
"""A multiple of a minute; the week ends seven days later."""
HOURS = 168
SCRAPE = 240
"""Seconds between two scrapes, the first seven seconds after START."""
END = START + HOURS * 3600
LOOK_BACK = 300
"""Seconds for which Prometheus takes a sample for the present value, unless another comes (--query.lookback-delta)."""
ENGINE, UTIL, SM, MEMORY = (
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_DEV_FB_USED",
)
Value = Callable[[float], float | None]
"""The value of a metric at an hour of the week; None where there was no sample."""
A100, H100, T4 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla T4"


@dataclass(frozen=True)
class Series:
    """Series of one GPU and pod as one exporter has them. `job` is the scrape's; `labels` are the exporter's."""

    pod: str
    labels: dict[str, str]
    values: dict[str, Value]
    job: str = "dcgm"
    shared: bool = False
    real: bool = True
    """Whether the pod held the GPU; False for the exporter's own pods."""
    trusted: tuple[str, ...] = (ENGINE, UTIL)
    """The metrics of activity that say something, the preferred one first."""
    samples: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    def sampled(self, scrape: int) -> "Series":
        """Take the samples, with `scrape` seconds between two of them."""
        for metric, value in self.values.items():
            at = range(START + 7, END, scrape)
            taken = ((second, value((second - START) / 3600)) for second in at)
            self.samples[metric] = [(second, number) for second, number in taken if number is not None]
        return self


def during(first: float, last: float, value: float) -> Value:
    """Give a constant value between two hours."""
    return lambda hour: value if first <= hour < last else None


def steps(*parts: tuple[float, float]) -> Value:
    """Give values from hours on: (hour, value) pairs; NaN stands for a value that is none, infinity for no sample."""

    def value(hour: float) -> float | None:
        number = next((number for first, number in reversed(parts) if hour >= first), math.inf)
        return None if number == math.inf else number

    return value


def wave(hour: float) -> float:
    """Give an activity that goes up and down between 0.2 and 0.9."""
    return 0.55 + 0.35 * math.sin(hour / 3)


def gpu(node: str, index: int, model: str = A100, **more: str) -> dict[str, str]:
    """Give the labels of a GPU."""
    uuid = f"GPU-{node}-{index}"
    return {"gpu": str(index), "UUID": uuid, "device": f"nvidia{index}", "modelName": model, "Hostname": node, **more}


def holder(pod: str, prefix: str = "") -> dict[str, str]:
    """Give the labels of the pod that holds a GPU."""
    namespace, _, name = pod.partition("/")
    return {f"{prefix}namespace": namespace, f"{prefix}pod": name, f"{prefix}container": "main"}


def whole(pod: str, labels: dict[str, str], active: Value, memory: Value, **more: object) -> Series:
    """Make the series of a pod on a whole GPU with profiling metrics."""

    def percent(hour: float) -> float | None:
        value = active(hour)
        return None if value is None else round(100 * value) if value == value else value

    values = {ENGINE: active, UTIL: percent, MEMORY: memory}
    return Series(pod, {**labels, **holder(pod)}, values, **more)  # type: ignore[arg-type]


INFINITE = math.inf
EXPORTERS_OWN = {"namespace": "gpu-operator", "container": "exporter"}


def made_week(scrape: int = SCRAPE) -> list[Series]:
    """Make the series of the week."""
    mib = 1024.0
    mig = {"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": "7"}
    mig3 = {"GPU_I_PROFILE": "3g.40gb", "GPU_I_ID": "2"}
    only_util = during(0, HOURS, 85.0)
    both = steps((0, 0.7), (100, 0.4))
    week = [
        # Works, and has been idle for nine hours.
        whole("vision/ablation-a", gpu("a100-0", 0), lambda h: wave(h) if h < 159 else 0.0, during(0, HOURS, 30 * mib)),
        # A StatefulSet's pod that was gone for two hours, and whose GPU another pod got afterwards.
        whole("vision/train-0", gpu("a100-0", 1), steps((10, 0.9), (40, INFINITE), (42, 0.8), (80, INFINITE)),
              steps((10, 70 * mib), (40, INFINITE), (42, 71 * mib), (80, INFINITE))),
        whole("nlp/eval-7d9f8b6c5d-x2bqz", gpu("a100-0", 1), steps((90.5, 0.5)), steps((90.5, 12 * mib))),
        # Idle, but nothing was seen of it for two hours in the last night: idle for certain since then only.
        whole("nlp/idle-with-a-gap", gpu("a100-0", 2), steps((0, 0.0), (160, INFINITE), (162, 0.0)),
              steps((0, 1 * mib), (160, INFINITE), (162, 1 * mib))),
        # Works only where nothing was scraped of it, and else is silent: its activity has no value for the last hours.
        whole("nlp/no-number", gpu("a100-0", 3), steps((0, 0.0), (150, math.nan)), during(0, HOURS, 2 * mib)),
        Series("nlp/no-activity", {**gpu("a100-1", 0), **holder("nlp/no-activity")},
               {MEMORY: during(0, HOURS, 5 * mib)}),
        Series("nlp/negative", {**gpu("a100-1", 1), **holder("nlp/negative")},
               {ENGINE: during(0, HOURS, -1.0), MEMORY: during(0, HOURS, 3 * mib)}),
        # GPUs that no pod holds: the target's label names the exporter's pod, once by its name, once by `up` alone.
        Series("gpu-operator/dcgm-exporter-abcde", {**gpu("a100-1", 2), **EXPORTERS_OWN, "pod": "dcgm-exporter-abcde"},
               {ENGINE: during(0, HOURS, 0.0), MEMORY: during(0, HOURS, 0.0)}, real=False),
        Series("gpu-operator/metrics-abcde", {**gpu("a100-1", 3), **EXPORTERS_OWN, "pod": "metrics-abcde"},
               {ENGINE: during(0, HOURS, 0.0), MEMORY: during(0, HOURS, 0.0)}, job="renamed", real=False),
        # MIG: the value of GPU_UTIL is not the instance's own; the extent is beyond one, as DCGM has shown it.
        Series("nb/notebook", {**gpu("h100-0", 0, H100, **mig), **holder("nb/notebook")},
               {ENGINE: lambda h: 0.05 if h < 165 else 0.0, UTIL: during(0, HOURS, 100.0),
                MEMORY: during(0, HOURS, 4 * mib)},
               trusted=(ENGINE,)),
        Series("nb/infer", {**gpu("h100-0", 0, H100, **mig3), **holder("nb/infer")},
               {ENGINE: during(20, HOURS, 0.6), SM: during(20, HOURS, 3.2), MEMORY: during(20, HOURS, 38 * mib)},
               trusted=(ENGINE,)),
        # Time-slicing with --kubernetes-virtual-gpus: both have the values of the GPU.
        *(whole(f"share/{name}", {**gpu("t4-0", 0, T4), "vgpu": vgpu}, both, during(0, HOURS, 9 * mib), shared=True)
          for name, vgpu in (("one", "0"), ("two", "1"))),
        # Two pods of one claim: nothing but the overlap tells. Idle together for the last twelve hours.
        *(whole(f"share/{name}", gpu("t4-0", 1, T4), lambda h: 0.3 if h < 156 else 0.0, during(0, HOURS, 6 * mib),
                shared=True) for name in ("claim-a", "claim-b")),
        # Without profiling metrics, scraped by two jobs, of which one has stood still at zero; honorLabels false.
        Series("web/serve-0", {**gpu("t4-1", 0, T4), **holder("web/serve-0", "exported_"), **EXPORTERS_OWN,
                               "pod": "metrics-t4"},
               {UTIL: only_util, MEMORY: during(0, HOURS, 8 * mib)}, job="renamed"),
        Series("web/serve-0", {**gpu("t4-1", 0, T4), **holder("web/serve-0")},
               {UTIL: during(0, HOURS, 0.0), MEMORY: during(0, HOURS, 0.0)}, job="stale"),
        # Labels of --use-old-namespace.
        Series("web/old", {"gpu": "1", "uuid": "GPU-t4-1-1", "modelName": T4, "Hostname": "t4-1", "pod": "exporter-x",
                           "namespace": "gpu-operator", "pod_name": "old", "pod_namespace": "web"},
               {UTIL: steps((5, 10.0), (30, INFINITE)), MEMORY: steps((5, 2 * mib), (30, INFINITE))}),
    ]  # fmt: skip
    return [series.sampled(scrape) for series in week]


def openmetrics(week: list[Series]) -> Iterator[str]:
    """Write the week, with `up` of each target, as `promtool tsdb create-blocks-from openmetrics` reads it."""
    for metric in (ENGINE, UTIL, SM, MEMORY):
        yield f"# TYPE {metric} gauge\n"
        for series in week:
            labels = _pairs(_target(series))
            for second, number in series.samples.get(metric, ()):
                yield f"{metric}{{{labels}}} {number} {second}\n"
    yield "# TYPE up gauge\n"
    targets = (("renamed", "metrics-abcde"), ("renamed", "metrics-t4"), ("dcgm", "exporter-x"))
    for job, pod in targets:
        for second in range(START + 7, END, SCRAPE):
            yield f'up{{job="{job}",instance="{job}:9400",namespace="gpu-operator",pod="{pod}"}} 1 {second}\n'
    yield "# EOF\n"


def _pairs(labels: dict[str, str]) -> str:
    return ",".join(f'{key}="{value}"' for key, value in labels.items())


def _target(series: Series) -> dict[str, str]:
    return {**series.labels, "job": series.job, "instance": f"{series.job}:9400"}


@dataclass
class Truth:
    """What is true of one pod on one GPU, by minutes: the values of its metrics at every minute of the week."""

    pod: str
    shared: bool
    minutes: list[int]
    held: list[bool]
    activity: list[float | None]
    peaks: list[float | None]
    """The highest activity of any metric at each minute."""
    memory: float | None


def truths(week: list[Series], look_back: int = LOOK_BACK) -> Iterator[Truth]:
    """Work out the truth for each pod and GPU, of all exporters that say something of them."""
    groups: dict[tuple[str, str, str], list[Series]] = {}
    for series in week:
        if series.real:
            uuid = series.labels.get("UUID") or series.labels["uuid"]
            groups.setdefault((series.pod, uuid, series.labels.get("GPU_I_ID", "")), []).append(series)
    for (pod, _, _), group in groups.items():
        yield _truth(pod, group, look_back)


def _truth(pod: str, group: list[Series], look_back: int) -> Truth:
    minutes = list(range(START, END, 60))
    present = {metric: [_value_at(series.samples.get(metric, []), minutes, look_back) for series in group]
               for metric in (ENGINE, UTIL, SM, MEMORY)}  # fmt: skip
    held = [
        any(column[row] is not None for columns in present.values() for column in columns)
        for row in range(len(minutes))
    ]
    activity: list[float | None] = []
    peaks: list[float | None] = []
    for row in range(len(minutes)):
        shares = [_share(metric, [column[row] for column in present[metric]]) for metric in group[0].trusted]
        activity.append(next((share for share in shares if share is not None), None))
        peaks.append(max((share for share in shares if share is not None), default=None))
    memory = [number for series in group for _, number in series.samples.get(MEMORY, ())]
    return Truth(pod, group[0].shared, minutes, held, activity, peaks, max(memory, default=None))


def _share(metric: str, numbers: list[float | None]) -> float | None:
    """Give the share of one that a metric says, of several exporters the highest; NaN and negative ones say nothing."""
    said = [number for number in numbers if number is not None and number >= 0]
    return max(said) / (100 if metric == UTIL else 1) if said else None


def _value_at(samples: list[tuple[int, float]], minutes: list[int], look_back: int) -> list[float | None]:
    """Give the present value at each minute: the last sample, unless it is too old."""
    values: list[float | None] = []
    position = -1
    for minute in minutes:
        while position + 1 < len(samples) and samples[position + 1][0] <= minute:
            position += 1
        fresh = position >= 0 and minute - samples[position][0] <= look_back
        values.append(samples[position][1] if fresh else None)
    return values
