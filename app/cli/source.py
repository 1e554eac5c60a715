# SPDX-License-Identifier: Apache-2.0
"""The options that select a fleet, and its objects as they were read."""

import asyncio
import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from app.cli.progress import show_progress
from app.cluster.access import find_cluster
from app.cluster.files import read_knowledge, read_snapshot_file
from app.cluster.list_once import read_objects
from app.cluster.snapshot import fill, read_snapshot
from app.cluster.snapshot_policies import policies_of
from app.cluster.state import State
from app.demo.notation import DEFAULT, fleet_names
from app.demo.sample_fleets import demo_fleet
from app.kube.api_kinds import DRA, FLEET
from app.policy.compiled import PolicySet
from app.telemetry.clock import today
from app.values.errors import BadInput

Snapshots = Annotated[
    list[Path] | None,
    typer.Option("--snapshot", help="A file of `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json`."),
]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="A live cluster, read once; by default the one of kubectl.")
]
DemoFleet = Annotated[
    str | None,
    typer.Option("--demo-fleet", help=f"A sample fleet; --demo is {DEFAULT}. One of {', '.join(fleet_names())}."),
]
Policies = Annotated[
    Path | None, typer.Option("--policies", help="Directory of policies; the shipped ones by default.")
]


Objects = list[dict[str, Any]]
POLICY_KINDS = ("GPUPolicy", "ConfigMap")
"""Kinds that, as those of DRA, a cluster may not have, or may forbid to the user."""


def read_objects_of(
    snapshots: list[Path] | None,
    kubeconfig: Path | None,
    demo: str | None,
    kinds: tuple[str, ...] = FLEET,
    optional: tuple[str, ...] = (*DRA, *POLICY_KINDS),
) -> Objects:
    """Read the objects of a fleet: those of the sample fleet, the files and the cluster that are given, together.

    Where none is given, it is the cluster that kubectl would use (`find_cluster`).
    Raises SnapshotError, ApiError, and BadInput if there is none, or if files without a Node are given.
    """
    gc.disable()  # 50,000 pods are millions of objects; walking them repeatedly takes four times as long as reading
    try:
        objects = demo_fleet(demo) if demo else []
        for path in snapshots or ():
            with show_progress(f"reading {path}"):
                objects += read_snapshot(str(path), read_snapshot_file(path))
        if snapshots and not any(document.get("kind") == "Node" for document in objects):
            files = ", ".join(map(str, snapshots))
            remedy = "make it by kubectl get nodes,pods,namespaces,runtimeclasses -A -o json"
            raise BadInput(f"{files}: no Node in it; {remedy}")
        if kubeconfig or not (snapshots or demo):
            objects += read_live(kubeconfig, None, kinds, optional)
        return objects
    finally:
        gc.enable()


def read_live(kubeconfig: Path | None, context: str | None, kinds: Iterable[str], optional: Iterable[str]) -> Objects:
    """Read a live cluster, and name on stderr the kinds that it does not show to the user.

    Raises ApiError, BadInput.
    """
    hidden: list[str] = []
    with show_progress("reading the cluster") as report:
        load = find_cluster(kubeconfig, context)
        objects = asyncio.run(
            read_objects(load, *kinds, optional=tuple(optional), report=report, report_forbidden=hidden.append)
        )
    if hidden:
        message = f"not shown to this user, or not there, and left out: {', '.join(hidden)}"
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[yellow]{escape(message)}[/]")
    return objects


def policies_in(objects: Objects, directory: Path | None, state: State) -> PolicySet:
    """Load the policies of a fleet. `directory` is that of --policies.

    Raises PolicyError.
    """
    return policies_of(objects, directory, state.knowledge, today())


def state_of(objects: Objects) -> State:
    """Return a state with the objects.

    Raises MalformedPod, QuantityError.
    """
    state = State(read_knowledge())
    with show_progress(f"taking in {len(objects)} objects"):
        fill(state, objects)
    return state
