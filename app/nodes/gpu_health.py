# SPDX-License-Identifier: Apache-2.0
"""GPU health from the metrics of the DCGM exporter: it turns the samples of one poll into the health of each node.

The functions are pure: the caller passes in the time and the memory of the previous poll (`PollMemory`). A metric that
is absent is unknown, and an unknown value is not a fault.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from app.knowledge.dcgm import DCGM, XID, GPUCondition, MetricMeaning, MetricRule
from app.knowledge.tables import Knowledge
from app.kube.pod_limits import LONGEST_NAME

XID_SECONDS = 24 * 3600.0
"""Seconds after which a reported XID no longer counts, as the gauge never resets by itself (app/knowledge/dcgm.yaml).
The value is a judgement: longer than a night without an operator, shorter than a node runs on after a passing error."""
RISING_SECONDS = 600.0
"""Seconds for which a counter counts as rising after an increase. The value is a judgement: about twenty polls, so that
errors every few minutes do not make a node flap between two states."""
BLANK = float(0x7FFFFFF0)
"""DCGM_INT32_BLANK. This value and larger ones mean "no value" (NVIDIA/DCGM dcgm_structs.h); no count is as large."""
INT64_BLANK = float(0x7FFFFFFFFFFFFFF0)
"""DCGM_INT64_BLANK as a float, for rising counters: nanoseconds of throttling exceed BLANK within seconds."""
MOST_CAUSES = 4
"""Causes that are reported of one node. A guess: four are enough to make an operator look at the node itself."""

GPUKey = tuple[str, str]
"""The key of a GPU: the name of its node, and its own."""
CounterKey = tuple[MetricMeaning, GPUKey, str]
"""The key of a counter: its metric, the GPU, and the part of the GPU."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric of one GPU; `part` names the part of the GPU that it is of, such as an NVLink, if any."""

    metric: str
    node: str
    gpu: str
    part: str
    value: float


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a node's GPUs.

    `ill` is the number of GPUs that are to be drained now, `ailing` that of other GPUs which pods had better avoid (the
    policy field `health` uses the same words), and `causes` are the reasons in words, worst first.
    """

    ill: int = 0
    ailing: int = 0
    causes: tuple[str, ...] = ()


HEALTHY = Health()


@dataclass(frozen=True, slots=True)
class ReportedXIDs:
    """The XID errors of a GPU.

    `codes` are those in the last poll that had the metric, `seen` is the time of that poll, and `since` is the time at
    which each code that still counts was first seen.
    """

    codes: frozenset[int]
    seen: float
    since: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class CounterState:
    """The last `value` of a counter, the time `seen` of that poll, and the time `rose` of the last increase, if any."""

    value: float
    seen: float
    rose: float | None


@dataclass(frozen=True, slots=True)
class PollMemory:
    """The state that one poll passes to the next: XIDs by GPU, and counters by metric, GPU and part."""

    xids: Mapping[GPUKey, ReportedXIDs] = field(default_factory=dict)
    counts: Mapping[CounterKey, CounterState] = field(default_factory=dict)


def read_sample(metric: str, labels: Mapping[str, str], value: float, dcgm: DCGM) -> MetricSample | None:
    """Read one sample; None for a metric that is not in dcgm.yaml, or a sample that names no node."""
    if metric not in dcgm.readings:
        return None
    node = next((labels[key] for key in dcgm.node_labels if labels.get(key)), "")
    if not node or len(node) > LONGEST_NAME:
        return None
    gpu = next((labels[key] for key in dcgm.gpu_labels if labels.get(key)), "")
    part = " ".join(labels.get(key, "") for key in dcgm.part_labels).strip()
    return MetricSample(metric, node, gpu[:LONGEST_NAME], part[:LONGEST_NAME], value)


def evaluate_poll(
    samples: Iterable[MetricSample], memory: PollMemory, knowledge: Knowledge, now: float
) -> tuple[PollMemory, dict[str, Health]]:
    """Evaluate the samples of one poll; gives the memory for the next poll, and the health of each node in the samples.

    `now` is in seconds of a monotonic clock, which must be the same at every call.
    """
    nodes: set[str] = set()
    faults: set[tuple[GPUKey, GPUCondition, str]] = set()
    codes: dict[GPUKey, set[int]] = {}
    counters: dict[CounterKey, float] = {}
    for sample in samples:
        nodes.add(sample.node)
        gpu, row = (sample.node, sample.gpu), knowledge.dcgm.readings[sample.metric]
        if row.rule is MetricRule.Rising:
            if 0 <= sample.value < INT64_BLANK:
                key = (row, gpu, sample.part)
                counters[key] = max(sample.value, counters.get(key, 0.0))
        elif 0 <= sample.value < BLANK:
            if row.rule is MetricRule.XID:
                codes.setdefault(gpu, set()).add(int(sample.value))
            elif sample.value > 0 and row.condition:
                faults.add((gpu, row.condition, row.meaning))
    xids = _update_xids(codes, memory.xids, now)
    counts = _update_counters(counters, memory.counts, now)
    faults |= set(_xid_faults(codes, xids, knowledge, now))
    faults |= set(_counter_faults(counters, counts, now))
    return PollMemory(xids, counts), _health_by_node(nodes, faults)


def _update_xids(
    codes: Mapping[GPUKey, set[int]], before: Mapping[GPUKey, ReportedXIDs], now: float
) -> dict[GPUKey, ReportedXIDs]:
    """Update the time since which each XID counts.

    The gauge shows only the last XID, and a serious XID is followed by milder ones (45, 154), so that an XID which
    another has replaced still counts. Only the value 0 clears them, since the exporter or the driver has restarted.
    """
    reported = {gpu: shown for gpu, shown in before.items() if now - shown.seen < XID_SECONDS}
    for gpu, values in codes.items():
        reported_before, shown = reported.get(gpu), frozenset(values - {0})
        if reported_before is None or not shown:
            reported[gpu] = ReportedXIDs(shown, now, dict.fromkeys(shown, now))
            continue
        since = {
            code: start for code, start in reported_before.since.items() if code in shown or now - start < XID_SECONDS
        }
        since |= {code: now for code in shown if code not in reported_before.codes}
        reported[gpu] = ReportedXIDs(shown, now, since)
    return reported


def _xid_faults(
    gpus: Iterable[GPUKey], xids: Mapping[GPUKey, ReportedXIDs], knowledge: Knowledge, now: float
) -> Iterator[tuple[GPUKey, GPUCondition, str]]:
    for gpu in gpus:
        for code, start in xids[gpu].since.items():
            xid: XID | None = knowledge.xids.get(code)
            condition = knowledge.dcgm.conditions.get(xid.severity) if xid else None
            if xid and condition and now - start < XID_SECONDS:
                yield gpu, condition, f"XID {code}: {xid.meaning}"


def _update_counters(
    counters: Mapping[CounterKey, float], before: Mapping[CounterKey, CounterState], now: float
) -> dict[CounterKey, CounterState]:
    """Update the time at which each counter last rose; a counter that fell has been reset, which is no increase."""
    states = {key: count for key, count in before.items() if now - count.seen < RISING_SECONDS}
    for key, value in counters.items():
        state_before = states.get(key)
        rises = state_before is not None and value > state_before.value
        states[key] = CounterState(value, now, now if rises else state_before.rose if state_before else None)
    return states


def _counter_faults(
    keys: Iterable[CounterKey], counts: Mapping[CounterKey, CounterState], now: float
) -> Iterator[tuple[GPUKey, GPUCondition, str]]:
    for key in keys:
        row, gpu, _part = key
        rose = counts[key].rose
        if rose is not None and now - rose < RISING_SECONDS and row.condition:
            yield gpu, row.condition, row.meaning


def _health_by_node(nodes: Iterable[str], faults: Iterable[tuple[GPUKey, GPUCondition, str]]) -> dict[str, Health]:
    gpus: dict[str, dict[GPUCondition, set[str]]] = {}
    causes: dict[str, dict[GPUCondition, set[str]]] = {}
    for (node, gpu), condition, cause in faults:
        gpus.setdefault(node, {}).setdefault(condition, set()).add(gpu)
        causes.setdefault(node, {}).setdefault(condition, set()).add(cause)
    health = dict.fromkeys(nodes, Health())
    for node, by_condition in gpus.items():
        ill, ailing = (by_condition.get(state, set()) for state in (GPUCondition.Ill, GPUCondition.Ailing))
        cause_texts = [cause for state in GPUCondition for cause in sorted(causes[node].get(state, ()))]
        health[node] = Health(len(ill), len(ailing - ill), tuple(cause_texts[:MOST_CAUSES]))
    return health
