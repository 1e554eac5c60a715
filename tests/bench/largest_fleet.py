# SPDX-License-Identifier: Apache-2.0
"""The largest clusters that clouds sell, 65,000 nodes, beside one of 5,000: time, memory, and the longest step.

`python -m tests.bench.largest_fleet` prints tests/results/largest-fleet.md; eight minutes of two quiet cores.
"""

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.tls.serving_certificates import issue_if_needed
from tests.bench.cloud_fleet import MIXED, models
from tests.bench.list_server import played_by
from tests.controlplane.processes import free_port

NODES, PODS = 65_000, 500_000
SUPPORTED_NODES, SUPPORTED_PODS = 5_000, 40_000
"""The size that upstream Kubernetes supports; the ratios are to it."""
REFERENCE_MS = 2.0
"""The reference loop of the machine for which the budgets are meant; they are scaled by that of this run."""
STEP_MS = 50.0
SECONDS_FOR_ONE = 1_200
Figures = Mapping[str, tuple[float, float]]
"""The figure of each row, and the ms of the reference loop at its time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the key of its figure, and its budgets as an absolute value and as a ratio, if any."""

    key: str
    what: str
    unit: str
    budget: float | None = None
    ratio: float | None = None
    scaled: bool = True
    """Whether the figure is a CPU time, which depends on the machine's pace."""


def _pair(key: str, what: str, budget: float | None = None, ratio: float | None = None) -> tuple[Row, Row]:
    return Row(f"{key}_p50", what, "ms p50"), Row(f"{key}_p99", what, "ms p99", budget, ratio)


def _step(key: str, what: str = "the longest step of that") -> Row:
    return Row(f"{key}_step", what, "ms", STEP_MS)


ROWS = (
    Row("ready_cpu", "lists read until ready, as after each restart", "s of CPU", 60),
    Row("ready_wall", "the same by the clock, beside the server that writes the lists", "s", scaled=False),
    _step("ready"),
    Row("resident", "memory then", "MiB", 2048, scaled=False),
    Row("peak", "memory at most until then", "MiB", 2048, scaled=False),
    Row("peak_end", "memory at most in the end", "MiB", 2048, scaled=False),
    Row("event", "an event of a pod", "µs of CPU", None, 1.2),
    Row("stream_cpu", "a second with 500 of them, and all else that runs", "ms of CPU"),
    _step("stream"),
    Row("first_sight", "first sight of a demand: filter of 3,250 names, in one step", "ms", STEP_MS),
    *_pair("filter_sample", "filter of 3,250 names", 5, 1.2),
    *_pair("prioritize_sample", "prioritize of 3,250 names"),
    *_pair("filter_all", "filter of all names"),
    *_pair("prioritize_all", "prioritize of all names"),
    Row("page_first_cpu", "the fleet page, for the first time", "ms of CPU"),
    _step("page_first"),
    Row("page_cpu", "the fleet page again", "ms of CPU"),
    _step("page"),
    Row("page_mb", "its HTML", "MB", scaled=False),
    Row("table_cpu", "the same as a table", "ms of CPU"),
    _step("table"),
    Row("explain_cpu", "explanation of a pod that fits nowhere", "ms of CPU"),
    _step("explain"),
    Row("explain_nodes_cpu", "the same with the verdict on every node, as JSON", "ms of CPU"),
    _step("explain_nodes"),
    Row("compare_cpu", "comparison of the pods with the API server's list, every ten minutes", "ms of CPU"),
    _step("compare"),
    Row("relist_cpu", "pods listed again after 410", "ms of CPU"),
    _step("relist"),
)


def measure(nodes: int, pods: int, gpu_share: float) -> Figures:
    """Play the API server of a fleet, and measure a service that follows it, in a process each."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        issue_if_needed(Path(folder), dt.datetime.now(dt.UTC))
        fleet = [f"--certs={folder}", f"--nodes={nodes}", f"--pods={pods}", f"--gpu-share={gpu_share}"]
        with played_by("tests.bench.cloud_server", f"--port={port}", *fleet):
            words = [sys.executable, "-m", "tests.bench.large_service", f"--api=https://127.0.0.1:{port}", *fleet]
            answer = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=SECONDS_FOR_ONE)
    figures: Figures = json.loads(answer.stdout.splitlines()[-1])
    return figures


def table(small: Figures, fleets: Sequence[Figures]) -> Iterator[str]:
    """Write the rows: the small fleet, then each large one with its ratio to the small one and whether budgets hold."""
    for row in ROWS:
        cells = [f"{row.what}, {row.unit}", _number(small[row.key][0])]
        for figures in fleets:
            cells += [_number(figures[row.key][0]), f"{_ratio(row, small, figures):.2f}"]
        yield "| " + " | ".join([*cells, *_budget(row, small, fleets[0])]) + " |"


def _ratio(row: Row, small: Figures, large: Figures) -> float:
    """Return the ratio of two figures; times are first divided by those of the reference loop."""
    figures = [value / (pace if row.scaled else 1.0) for value, pace in (small[row.key], large[row.key])]
    return figures[1] / figures[0]


def _budget(row: Row, small: Figures, large: Figures) -> tuple[str, str]:
    """Return the budget as text, and whether the large fleet holds it."""
    parts, holds = [], True
    value, pace = large[row.key]
    if row.budget is not None:
        most = row.budget * (pace / REFERENCE_MS if row.scaled else 1.0)
        parts.append(_number(most))
        holds &= value <= most
    if row.ratio is not None:
        parts.append(f"{row.ratio} x")
        holds &= _ratio(row, small, large) <= row.ratio
    return " and ".join(parts), ("holds" if holds else "**missed**") if parts else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


INTRO = """# {nodes:,} nodes

`python -m tests.bench.largest_fleet` wrote this. A service as `gpu-usher serve` runs it, with all listeners and
background tasks, follows an API server that is played: nodes of 20 kB of EKS, GKE and AKS, pods of 4 kB, lists and
watches over TLS. {mixed:,} of {nodes:,} nodes have GPUs, of {models} kinds with MIG, time-slicing and MPS among them.
Times are CPU times, but for the one by the clock. A step is what the event loop does without a turn for others, and is
found up to 2 ms too long.

The budgets are for a machine on which a loop of 100,000 additions takes {reference_ms:g} ms; in these runs it took
{low:.1f} to {high:.1f} ms, and the budgets and the ratios of CPU times are scaled by that of their time.
"""


def page(nodes: int, pods: int, shares: Sequence[float]) -> Iterator[str]:
    """Measure the small fleet and large ones with these shares of GPU nodes; write the page."""
    small = measure(SUPPORTED_NODES, SUPPORTED_PODS, MIXED)
    fleets = [measure(nodes, pods, share) for share in shares]
    pace = [pace for figures in (small, *fleets) for _, pace in figures.values()]
    yield INTRO.format(
        nodes=nodes,
        mixed=round(nodes * MIXED),
        models=len(models()[0]),
        reference_ms=REFERENCE_MS,
        low=min(pace),
        high=max(pace),
    )
    heads = [f"{SUPPORTED_NODES:,} nodes, {SUPPORTED_PODS:,} pods"]
    for share in shares:
        heads += [f"{nodes:,} nodes, {pods:,} pods, {share:.0%} with GPUs", "ratio"]
    yield "| " + " | ".join(["what, unit", *heads, "budget", ""]) + " |"
    yield "|---|" + "---:|" * (len(heads) + 1) + "---|"
    yield from table(small, fleets)


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--pods", type=int, default=PODS)
    parser.add_argument("--all-gpus", action="store_true", help="measure a fleet of GPU nodes only, too")
    words = parser.parse_args()
    for line in page(words.nodes, words.pods, (MIXED, 1.0) if words.all_gpus else (MIXED,)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
