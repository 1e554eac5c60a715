# SPDX-License-Identifier: Apache-2.0
"""Reads the cluster or fleet that options select, and puts errors of the API server into words."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from app.cli.options import ClusterOptions, Fleet, GovernedFleet, PrometheusOptions
from app.cli.output import show_progress
from app.cluster.files import read_knowledge, read_snapshot_file
from app.cluster.garbage_collection import without_garbage_collection
from app.cluster.snapshot import fill, read_partial_snapshot, read_snapshot
from app.cluster.snapshot_policies import policies_or_last_good
from app.demo.sample_fleets import demo_fleet
from app.kube.api_kinds import DRA, FLEET
from app.kube.pod_object import FINISHED
from app.policy.compiled import PolicySet
from app.telemetry.logs import now, today
from app.values.errors import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, ApiError, SnapshotError
from app.values.json_members import Object
from app.values.reasons import counted
from app.world.state import State

if TYPE_CHECKING:
    from app.cluster.kubeconfig import Load

_REFUSED = re.compile(r'(\S+) (?:"[^"]*" )?is forbidden: User "([^"]*)" cannot (\S+) resource')
"""The API server's words (k8s.io/apiserver pkg/endpoints/handlers/responsewriters/errors.go)."""


def load_of(cluster: ClusterOptions) -> "Load":
    """Return what reads the configuration of a cluster. Raises BadInput."""
    from app.cluster.kubeconfig import find_cluster

    return find_cluster(cluster.kubeconfig, cluster.context)


@contextmanager
def telling(cluster: ClusterOptions) -> Iterator[None]:
    """Have errors of the API server in this block name the server and its context, and say what to do.

    Raises ApiError.
    """
    try:
        yield
    except ApiError as error:
        raise ApiError(error.status, _told(cluster, error)) from error


def _told(cluster: ClusterOptions, error: ApiError) -> str:
    from app.cluster.kubeconfig import choose_context

    chosen = choose_context(cluster.kubeconfig, cluster.context)
    where = f"API server {chosen.server} ({chosen.where})"
    if error.status is None:
        remedy = "see that it runs, and that this address, its CA and a proxy are right: kubectl cluster-info"
        return f"{where} does not answer: {error}; {remedy}"
    if error.status == UNAUTHORIZED:
        remedy = _expired_certificate(cluster) or "log in again, or fetch a new kubeconfig"
        return f"{where} does not accept the credentials of user {chosen.user or 'none'} (401): {remedy}"
    if error.status == FORBIDDEN:
        return f"{forbidden(error)}: ask your platform team for that right; {where}"
    if error.status == NOT_FOUND:
        return f"{where} answers {error}: is this the address of a cluster's API server?"
    return f"{where} answers {error}"


def _expired_certificate(cluster: ClusterOptions) -> str:
    """Tell whether the client certificate has expired, which is the server's reason to say no more than 401."""
    from app.tls.pem import read_certificate

    file = load_of(cluster)().cert_file
    ends = read_certificate(Path(file).read_bytes()).not_valid_after_utc if file else None
    expired = ends is not None and ends < now()
    return f"its client certificate expired on {ends:%Y-%m-%d}: renew it" if expired else ""


def forbidden(error: ApiError) -> str:
    """Return what the user may not do, as the beginning of a sentence."""
    match = _REFUSED.search(str(error))
    return f"you ({match[2]}) may not {match[3]} {match[1]}" if match else f"you may not read that ({error})"


Objects = list[Object]
Governed = tuple[Objects, State, PolicySet]
POLICY_KINDS = ("GPUPolicy", "ConfigMap")
"""Kinds that, as those of DRA, a cluster may not have, or may forbid to the user."""


def home_of(fleet: Fleet, given: str | None, default: bool = False) -> str:
    """Return the namespace of objects that name none: the given one, that of a cluster's context, or "default".

    `default` tells whether a cluster is read without an option. Raises BadInput.
    """
    if given or not (fleet.live and (fleet.given or default)):
        return given or "default"
    from app.cluster.kubeconfig import choose_context

    return choose_context(fleet.kubeconfig, fleet.context).namespace


def read(
    fleet: Fleet,
    kinds: tuple[str, ...] = FLEET,
    optional: tuple[str, ...] = (*DRA, *POLICY_KINDS),
    needs_nodes: bool = True,
    keep_whole: Callable[[dict[str, Any]], bool] | None = None,
) -> Objects:
    """Read the objects of the fleet. With `keep_whole`, only the pods that it selects are read with all fields.

    Raises SnapshotError, also for files without a Node where `needs_nodes`; ApiError; and BadInput.
    """
    if fleet.live:
        return read_live(fleet, kinds, optional)
    with without_garbage_collection():
        objects = demo_fleet(fleet.demo_fleet) if fleet.demo_fleet else []
        for path in fleet.snapshot or ():
            with show_progress(f"reading {path}"):
                data, file = read_snapshot_file(path), str(path)
                objects += read_partial_snapshot(file, data, keep_whole) if keep_whole else read_snapshot(file, data)
    wanted = "Node" if needs_nodes else "object"
    if not any(wanted in ("object", document.get("kind")) for document in objects):
        files = ", ".join(map(str, fleet.snapshot or ()))
        raise SnapshotError(f"{files}: no {wanted} in it, wants a file of kubectl get nodes,pods -A -o json")
    return objects


def read_governed(fleet: GovernedFleet, optional: tuple[str, ...] = (*DRA, *POLICY_KINDS)) -> Governed:
    """Read the objects as `read` does; return them, the state and the policies. Raises PolicyError as well."""
    return govern(fleet, read(fleet, optional=optional))


def govern(fleet: GovernedFleet, objects: Objects) -> Governed:
    """Return objects, the state with them, and the policies.

    Raises MalformedPod, QuantityError, PolicyError.
    """
    state = state_of(objects)
    return objects, state, policies_in(objects, fleet.policies, state)


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

    load, hidden = load_of(cluster), list[str]()
    reading = show_progress("reading the cluster")
    with telling(cluster), without_garbage_collection(), reading as report:
        objects = asyncio.run(
            read_objects(load, *kinds, optional=tuple(optional), report=report, report_forbidden=hidden.append)
        )
    if hidden:
        note(f"left out, because this user may not read them or the cluster has none:  {', '.join(hidden)}")
    return objects


def note(message: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[yellow]{escape(message)}[/]")


def idle_in(use: PrometheusOptions, state: State) -> Mapping[str, float]:
    """Give for how many seconds the pods of a fleet have been idle for certain; nothing without a Prometheus.

    Raises BadInput, SourceError.
    """
    from app.cli.usage import read_idle_pods  # a seldom option

    return read_idle_pods(use, state) if use.prometheus or use.prometheus_token_file else {}


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
