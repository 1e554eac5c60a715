# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the web UI: the effect of a page that is loaded on filter. The service is a process on a snapshot."""

import statistics
import sys
import tempfile
from pathlib import Path

from tests.bench.explaining import filter_body, meanwhile, p99, served, write_snapshot

ROUNDS = 6
LOAD_SECONDS = 0.5
"""Ten times as often as an open page asks."""


def bench(node_count: int, pod_count: int) -> float:
    """Write the snapshot, and return the p99 of filter with the page loaded twice a second, against that without it.

    The median over rounds of ratios by the wall clock, each within a round.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot = folder / "snapshot.json"
        write_snapshot(snapshot, node_count, pod_count)
        body = filter_body(node_count)
        ratios = []
        with served(folder, snapshot) as (people, tls, _process):
            p99(tls, body)
            for _ in range(ROUNDS):
                quiet = p99(tls, body)
                with meanwhile(lambda client: client.get(people + "/"), LOAD_SECONDS):
                    ratios.append(p99(tls, body) / quiet)
    return statistics.median(ratios)


if __name__ == "__main__":
    print(bench(*map(int, sys.argv[1:3])))
