# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs as DCGM's metrics tell it: samples of one poll in, what is known of each node out.

Pure: what an earlier poll showed is handed back in, and so is the time. Absent is unknown, and unknown is no fault.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.knowledge.dcgm import DCGM, GPUCondition, MetricMeaning, MetricRule
from app.knowledge.tables import Knowledge
from app.knowledge.xids import XID

XID_SECONDS = 24 * 3600.0
"""An XID that has stood so long is history: the gauge never resets by itself (app/knowledge/dcgm.yaml). A judgement:
longer than a night without anybody at hand, shorter than a node may run after an error that it got over."""
RISING_SECONDS = 600.0
"""A counter that rose within this time is rising. A judgement: some twenty polls, so that errors every few minutes
do not make a node change its state all the time."""
BLANK = float(0x7FFFFFF0)
"""DCGM_INT32_BLANK; this and more stands for `no value` (NVIDIA/DCGM dcgm_structs.h), no GPU counts so many errors."""
INT64_BLANK = float(0x7FFFFFFFFFFFFFF0)
"""DCGM_INT64_BLANK, as a float; nanoseconds of throttling pass BLANK within seconds."""
CAUSES = 4
"""Causes told of one node; a person who reads four goes and looks."""
LONGEST_NAME = 253
"""Of a node (Kubernetes: DNS subdomain); the labels of GPUs and their parts are far shorter."""

GPU = tuple[str, str]
"""Node and GPU."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of one GPU. `part`: which of several values, such as an NVLink's; empty where there is one."""

    metric: str
    node: str
    gpu: str
    part: str
    value: float


@dataclass(frozen=True, slots=True)
class Health:
    """How many GPUs of a node are ill (drain now), how many others are ailing (better not), and why, worst first."""

    ill: int = 0
    ailing: int = 0
    causes: tuple[str, ...] = ()


HEALTHY = Health()


@dataclass(frozen=True, slots=True)
class ReportedXIDs:
    """The XIDs of a GPU: those of the last poll that told, when that was, and since when each is known."""

    codes: frozenset[int]
    seen: float
    since: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class CounterState:
    """A counter as last seen. `rose`: when it was last seen to have risen; None: never."""

    value: float
    seen: float
    rose: float | None


@dataclass(frozen=True, slots=True)
class Memory:
    """What one poll hands to the next."""

    xids: Mapping[GPU, ReportedXIDs] = field(default_factory=dict)
    counts: Mapping[tuple[Any, ...], CounterState] = field(default_factory=dict)


def read_sample(metric: str, labels: Mapping[str, str], value: float, dcgm: DCGM) -> MetricSample | None:
    """Take what is looked at out of a sample; None for a metric that is not read, or one that names no node."""
    if metric not in dcgm.readings:
        return None
    node = next((labels[key] for key in dcgm.node_labels if labels.get(key)), "")
    if not node or len(node) > LONGEST_NAME:
        return None
    gpu = next((labels[key] for key in dcgm.gpu_labels if labels.get(key)), "")
    part = " ".join(labels.get(key, "") for key in dcgm.part_labels).strip()
    return MetricSample(metric, node, gpu[:LONGEST_NAME], part[:LONGEST_NAME], value)


def examine(
    samples: Iterable[MetricSample], memory: Memory, knowledge: Knowledge, now: float
) -> tuple[Memory, dict[str, Health]]:
    """Fold the samples of one poll in; gives what to remember, and the health of every node that they name.

    `now`: seconds of a monotonic clock, the same at every call.
    """
    nodes: set[str] = set()
    faults: set[tuple[GPU, GPUCondition, str]] = set()
    codes: dict[GPU, set[int]] = {}
    counters: dict[tuple[Any, ...], float] = {}
    for sample in samples:
        nodes.add(sample.node)
        gpu, row = (sample.node, sample.gpu), knowledge.dcgm.readings[sample.metric]
        if row.judge is MetricRule.Rising:
            if 0 <= sample.value < INT64_BLANK:
                key = (row, gpu, sample.part)
                counters[key] = max(sample.value, counters.get(key, 0.0))
        elif 0 <= sample.value < BLANK:
            if row.judge is MetricRule.XID:
                codes.setdefault(gpu, set()).add(int(sample.value))
            elif sample.value > 0 and row.condition:
                faults.add((gpu, row.condition, row.meaning))
    xids = _xids(codes, memory.xids, now)
    counts = _counts(counters, memory.counts, now)
    faults |= set(_xid_faults(codes, xids, knowledge, now))
    faults |= set(_rising(counters, counts, now))
    return Memory(xids, counts), _by_node(nodes, faults)


def _xids(codes: Mapping[GPU, set[int]], before: Mapping[GPU, ReportedXIDs], now: float) -> dict[GPU, ReportedXIDs]:
    """Note since when each XID is known.

    The gauge shows the last XID alone, and a serious one draws milder ones after it (45, 154): one that another
    took the place of goes on counting. Only 0 takes them back: the exporter or the driver was started again.
    """
    found = {gpu: shown for gpu, shown in before.items() if now - shown.seen < XID_SECONDS}
    for gpu, told in codes.items():
        known, shown = found.get(gpu), frozenset(told - {0})
        if known is None or not shown:
            found[gpu] = ReportedXIDs(shown, now, dict.fromkeys(shown, now))
            continue
        since = {code: start for code, start in known.since.items() if code in shown or now - start < XID_SECONDS}
        since |= {code: now for code in shown if code not in known.codes}
        found[gpu] = ReportedXIDs(shown, now, since)
    return found


def _xid_faults(
    told: Iterable[GPU], xids: Mapping[GPU, ReportedXIDs], knowledge: Knowledge, now: float
) -> Iterator[tuple[GPU, GPUCondition, str]]:
    for gpu in told:
        for code, start in xids[gpu].since.items():
            xid: XID | None = knowledge.xids.get(code)
            condition = knowledge.dcgm.conditions.get(xid.severity) if xid else None
            if xid and condition and now - start < XID_SECONDS:
                yield gpu, condition, f"XID {code}: {xid.meaning}"


def _counts(
    counters: Mapping[tuple[Any, ...], float], before: Mapping[tuple[Any, ...], CounterState], now: float
) -> dict[tuple[Any, ...], CounterState]:
    """Note which counters rose; one that fell was started again."""
    found = {key: count for key, count in before.items() if now - count.seen < RISING_SECONDS}
    for key, value in counters.items():
        known = found.get(key)
        rises = known is not None and value > known.value
        found[key] = CounterState(value, now, now if rises else known.rose if known else None)
    return found


def _rising(
    told: Iterable[tuple[MetricMeaning, GPU, str]], counts: Mapping[tuple[Any, ...], CounterState], now: float
) -> Iterator[tuple[GPU, GPUCondition, str]]:
    for key in told:
        row, gpu, _part = key
        rose = counts[key].rose
        if rose is not None and now - rose < RISING_SECONDS and row.condition:
            yield gpu, row.condition, row.meaning


def _by_node(nodes: Iterable[str], faults: Iterable[tuple[GPU, GPUCondition, str]]) -> dict[str, Health]:
    gpus: dict[str, dict[GPUCondition, set[str]]] = {}
    causes: dict[str, dict[GPUCondition, set[str]]] = {}
    for (node, gpu), condition, cause in faults:
        gpus.setdefault(node, {}).setdefault(condition, set()).add(gpu)
        causes.setdefault(node, {}).setdefault(condition, set()).add(cause)
    found = dict.fromkeys(nodes, Health())
    for node, by_condition in gpus.items():
        ill, ailing = (by_condition.get(each, set()) for each in (GPUCondition.Ill, GPUCondition.Ailing))
        words = [cause for each in GPUCondition for cause in sorted(causes[node].get(each, ()))]
        found[node] = Health(len(ill), len(ailing - ill), tuple(words[:CAUSES]))
    return found
