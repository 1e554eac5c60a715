# SPDX-License-Identifier: Apache-2.0
"""The options that select a cluster or a fleet, its objects, and errors of the API server in words."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from app.cli.output import show_progress
from app.cluster.files import read_knowledge, read_snapshot_file
from app.cluster.garbage_collection import without_garbage_collection
from app.cluster.kubeconfig import ChosenContext, Load, choose_context, find_cluster
from app.cluster.snapshot import fill, read_partial_snapshot, read_snapshot
from app.cluster.snapshot_policies import policies_or_last_good
from app.demo.notation import DEFAULT, fleet_names
from app.demo.sample_fleets import demo_fleet
from app.kube.api_kinds import DRA, FLEET
from app.kube.pod_object import FINISHED
from app.policy.compiled import PolicySet
from app.telemetry.logs import now, today
from app.values.errors import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, ApiError, BadInput, SnapshotError
from app.values.json_members import Object
from app.values.reasons import counted
from app.world.state import State

_REFUSED = re.compile(r'(\S+) (?:"[^"]*" )?is forbidden: User "([^"]*)" cannot (\S+) resource')
"""The API server's words (k8s.io/apiserver pkg/endpoints/handlers/responsewriters/errors.go)."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options that select a cluster, as kubectl does; the kubeconfig's `as` is honoured as well."""

    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="Read the cluster of this file; by default that of kubectl.")
    ] = None
    context: Annotated[
        str | None, typer.Option("--context", help="Context of the kubeconfig; by default its current one.")
    ] = None

    @property
    def given(self) -> bool:
        """Whether an option selects the cluster."""
        return bool(self.kubeconfig or self.context)

    def load(self) -> Load:
        """Return what reads the configuration. Raises BadInput."""
        return find_cluster(self.kubeconfig, self.context)

    def chosen(self) -> ChosenContext:
        """Return the context that is used. Raises BadInput."""
        return choose_context(self.kubeconfig, self.context)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Have errors of the API server in this block name the server and its context, and say what to do.

        Raises ApiError.
        """
        try:
            yield
        except ApiError as error:
            raise ApiError(error.status, self._told(error)) from error

    def _told(self, error: ApiError) -> str:
        chosen = self.chosen()
        where = f"API server {chosen.server} ({chosen.where})"
        if error.status is None:
            remedy = "see that it runs, and that this address, its CA and a proxy are right: kubectl cluster-info"
            return f"{where} does not answer: {error}; {remedy}"
        if error.status == UNAUTHORIZED:
            remedy = self._expired_certificate() or "log in again, or fetch a new kubeconfig"
            return f"{where} does not accept the credentials of user {chosen.user or 'none'} (401): {remedy}"
        if error.status == FORBIDDEN:
            return f"{forbidden(error)}: ask your platform team for that right; {where}"
        if error.status == NOT_FOUND:
            return f"{where} answers {error}: is this the address of a cluster's API server?"
        return f"{where} answers {error}"

    def _expired_certificate(self) -> str:
        """Tell whether the client certificate has expired, which is the server's reason to say no more than 401."""
        from app.tls.pem import read_certificate

        file = self.load()().cert_file
        ends = read_certificate(Path(file).read_bytes()).not_valid_after_utc if file else None
        expired = ends is not None and ends < now()
        return f"its client certificate expired on {ends:%Y-%m-%d}: renew it" if expired else ""


def forbidden(error: ApiError) -> str:
    """Return what the user may not do, as the beginning of a sentence."""
    match = _REFUSED.search(str(error))
    return f"you ({match[2]}) may not {match[3]} {match[1]}" if match else f"you may not read that ({error})"


Snapshots = Annotated[
    list[Path] | None,
    typer.Option(
        "--snapshot",
        help="Read a file of `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json`; may be repeated.",
    ),
]
DemoFleet = Annotated[
    str | None,
    typer.Option(
        "--demo-fleet",
        help=f"Use a sample fleet. --demo is short for --demo-fleet {DEFAULT}. One of {', '.join(fleet_names())}.",
        autocompletion=fleet_names,
    ),
]
Policies = Annotated[
    Path | None, typer.Option("--policies", help="Directory of policies; the shipped ones by default.")
]
OwnNamespace = Annotated[str, typer.Option(envvar="GPU_USHER_NAMESPACE", help="Where gpu-usher runs.")]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="For what names no namespace; by default that of the context."),
]


Objects = list[Object]
POLICY_KINDS = ("GPUPolicy", "ConfigMap")
"""Kinds that, as those of DRA, a cluster may not have, or may forbid to the user."""


@dataclass(frozen=True, slots=True)
class Fleet(ClusterOptions):
    """The options that select a fleet: a cluster, the files of a snapshot, or a sample fleet.

    Where none is given, it is the cluster that kubectl would use. Raises BadInput where several are.
    """

    snapshot: Snapshots = None
    demo_fleet: DemoFleet = None

    def __post_init__(self) -> None:
        """Refuse several sources, of which all but one would be ignored."""
        refuse_several(
            ("--demo-fleet", self.demo_fleet),
            ("--snapshot", self.snapshot),
            ("--kubeconfig" if self.kubeconfig else "--context", self.kubeconfig or self.context),
        )

    @property
    def live(self) -> bool:
        """Whether a cluster is read."""
        return not (self.snapshot or self.demo_fleet)

    @property
    def given(self) -> bool:
        """Whether an option selects a fleet."""
        return bool(self.snapshot or self.demo_fleet or self.kubeconfig or self.context)

    def namespace(self, given: str | None, default: bool = False) -> str:
        """Return the namespace of what names none: the given one, that of the context of a cluster, or "default".

        `default` tells whether a cluster is read without an option. Raises BadInput.
        """
        return given or (self.chosen().namespace if self.live and (self.given or default) else "default")

    def read(
        self,
        kinds: tuple[str, ...] = FLEET,
        optional: tuple[str, ...] = (*DRA, *POLICY_KINDS),
        needs_nodes: bool = True,
        keep_whole: Callable[[dict[str, Any]], bool] | None = None,
    ) -> Objects:
        """Read the objects of the fleet. With `keep_whole`, only the pods that it selects are read with all fields.

        Raises SnapshotError, also for files without a Node where `needs_nodes`; ApiError; and BadInput.
        """
        if self.live:
            return read_live(self, kinds, optional)
        with without_garbage_collection():
            objects = demo_fleet(self.demo_fleet) if self.demo_fleet else []
            for path in self.snapshot or ():
                with show_progress(f"reading {path}"):
                    data, file = read_snapshot_file(path), str(path)
                    objects += (
                        read_partial_snapshot(file, data, keep_whole) if keep_whole else read_snapshot(file, data)
                    )
        wanted = "Node" if needs_nodes else "object"
        if not any(wanted in ("object", document.get("kind")) for document in objects):
            files = ", ".join(map(str, self.snapshot or ()))
            raise SnapshotError(f"{files}: no {wanted} in it, wants a file of kubectl get nodes,pods -A -o json")
        return objects


@dataclass(frozen=True, slots=True)
class GovernedFleet(Fleet):
    """The options that select a fleet and its policies."""

    policies: Policies = None

    def read_governed(self, **selection: Any) -> tuple[Objects, State, PolicySet]:
        """Read the objects as `read` does; return them, the state and the policies. Raises PolicyError as well."""
        return self.govern(self.read(**selection))

    def govern(self, objects: Objects) -> tuple[Objects, State, PolicySet]:
        """Return objects, the state with them, and the policies.

        Raises MalformedPod, QuantityError, PolicyError.
        """
        state = state_of(objects)
        return objects, state, policies_in(objects, self.policies, state)


def unfinished_pods(objects: Iterable[Object]) -> Iterator[Object]:
    """Yield the pods that have not ended."""
    for document in objects:
        if document.get("kind") == "Pod" and (document.get("status") or {}).get("phase") not in FINISHED:
            yield document


def key_of(document: Mapping[str, Any]) -> str:
    """Return namespace/name of an object."""
    metadata = document.get("metadata") or {}
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}"


def read_live(cluster: ClusterOptions, kinds: Iterable[str], optional: Iterable[str]) -> Objects:
    """Read a live cluster, and name on stderr the kinds that it does not show to the user.

    Raises ApiError, BadInput.
    """
    from app.cluster.listing import read_objects  # no file needs the client of the API server

    load, hidden = cluster.load(), list[str]()
    reading = show_progress("reading the cluster")
    with cluster.telling(), without_garbage_collection(), reading as report:
        objects = asyncio.run(
            read_objects(load, *kinds, optional=tuple(optional), report=report, report_forbidden=hidden.append)
        )
    if hidden:
        note(f"left out, because this user may not read them or the cluster has none:  {', '.join(hidden)}")
    return objects


def refuse_several(*sources: tuple[str, object]) -> None:
    """Refuse options of which one makes the others meaningless.

    Raises BadInput.
    """
    given = [name for name, value in sources if value]
    if len(given) > 1:
        raise BadInput(f"got {' and '.join(given)}, wants one of them")


def note(message: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[yellow]{escape(message)}[/]")


def policies_in(objects: Objects, directory: Path | None, state: State) -> PolicySet:
    """Load the policies of a fleet. `directory` is that of --policies.

    Where those of the cluster are invalid, what a replica would serve of them is loaded, and stderr says so in a line.
    Raises PolicyError for an invalid directory.
    """
    policies, serving, problems = policies_or_last_good(objects, directory, state.knowledge, today())
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        note(f"the policies of the cluster are invalid, answering by the {serving}: {problems[0]}{more}")
    return policies


def state_of(objects: Objects) -> State:
    """Return a state with the objects.

    Raises MalformedPod, QuantityError.
    """
    state = State(read_knowledge())
    with show_progress(f"reading {counted(len(objects), 'object')}"):
        fill(state, objects)
    return state
