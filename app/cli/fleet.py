# SPDX-License-Identifier: Apache-2.0
"""Where a command that answers and ends takes a fleet from: the demo, snapshots, or a live cluster read once."""

import asyncio
from pathlib import Path

from app.cluster.access import find_cluster
from app.cluster.files import read_knowledge, read_snapshot_file
from app.cluster.once import read_objects
from app.cluster.snapshot import fill, read_snapshot
from app.cluster.state import State
from app.demo.fleet import demo_fleet


def read_fleet(demo: str | None, snapshots: list[Path], kubeconfig: Path | None, *kinds: str) -> State:
    """Read a fleet. `demo`: the name of a sample fleet. `kinds`: of a live cluster only these.

    Raises SnapshotError, ApiError, BadInput.
    """
    state = State(read_knowledge())
    if demo:
        fill(state, demo_fleet(demo))
    for path in snapshots:
        fill(state, read_snapshot(str(path), read_snapshot_file(path)))
    if kubeconfig is not None:
        fill(state, asyncio.run(read_objects(find_cluster(kubeconfig, None), *kinds)))
    return state
