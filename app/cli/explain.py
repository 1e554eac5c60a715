# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher explain`: shows why a pod is Pending, and the smallest change that would help.

It reads a fleet, asks a running service, or the aggregated API where the user may not read nodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from app.cli.explain_text import print_explanation, print_first_change
from app.cli.explained_objects import (
    POD,
    ObjectName,
    PodToExplain,
    claims_of_file,
    not_explained,
    of_file,
    of_fleet,
    read_name,
    waiting_in,
)
from app.cli.mutate import read_file
from app.cli.options import Fleet, PrometheusOptions, refuse_several
from app.cli.output import show, show_progress
from app.cli.source import (
    POLICY_KINDS,
    Objects,
    forbidden,
    home_of,
    idle_in,
    key_of,
    note,
    policies_in,
    read,
    state_of,
)
from app.cluster.files import read_knowledge
from app.cluster.garbage_collection import without_garbage_collection
from app.cluster.snapshot import bound_volumes
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.knowledge.workload_templates import Workloads
from app.kube.admission_objects import ADMISSION_KINDS
from app.kube.api_kinds import DRA, FLEET
from app.kube.existing_pods import existing_pods_of
from app.values.computations import finish
from app.values.errors import FORBIDDEN, ApiError, BadInput
from app.values.json_members import JSONObject
from app.values.reasons import counted
from app.world.state import State
from app.world.world import World, world_of

OPTIONAL = (
    *ADMISSION_KINDS,
    "PersistentVolume",
    "PersistentVolumeClaim",
    "NodeResourceTopology",
    "PodGroup",
    *DRA,
    *POLICY_KINDS,
)
"""Kinds that a cluster may not have or may forbid to the user; policies are among them."""


def explain_pod(
    *,
    kind: str,
    name: str,
    file: str | None,
    namespace: str | None,
    fleet: Fleet,
    url: str | None,
    use: PrometheusOptions,
    policies: Path | None,
    details: bool,
    registry: bool,
    nodes: bool,
    output: str,
) -> None:
    words = [word for word in (kind, name) if word]
    if (words and file) or not (words or file or (namespace and not url)):
        raise BadInput(
            "explain: wants the name of a pod or a workload, -f with a file, or -n with a namespace; one of them"
        )
    by_node = nodes or output == "wide"
    if url:
        others = (
            ("--prometheus", use.prometheus),
            ("--policies", policies),
            ("another fleet", fleet.given),
            ("--registry", registry),
        )
        for other in others:
            refuse_several(("--url", url), other)
    home = home_of(fleet, namespace, default=not url)
    workloads = read_knowledge().workloads
    wanted = None if file else read_name(words, home, workloads) if words else ObjectName(POD, home, "")
    documents = [] if file is None else read_file(file)
    pods = [] if file is None else of_file(file, documents, home, workloads)
    if unknown := not_explained(documents, workloads):
        note(
            f"not explained, since their kind is not known here: {unknown}; explain the pods that are created for them"
        )
    with without_garbage_collection():
        if url:
            asked = pods or [PodToExplain(pod_reference(wanted), live=True)]
            from app.cli.explain_live import ask_service

            answers = ((each, ask_service(url, each.pod, by_node)) for each in asked)
            explanations = [replace(one, notes=(*_notes_beside(each), *one.notes)) for each, one in answers]
        else:
            try:
                objects = [*read_fleet(fleet, wanted), *claims_of_file(documents, home)]
                if wanted:
                    found = _named(fleet, wanted, objects, workloads) if words else waiting_in(home, objects)
                    pods = list(found)
                cluster = snapshot_of(objects, policies, lambda state: idle_in(use, state))
                if registry:
                    from app.cli.image import read_images

                    read_images(cluster.state, [each.pod for each in pods])
                creation_of = None
                if fleet.live:
                    from app.cli.explain_live import ask_about_creation

                    creation_of = ask_about_creation(fleet, cluster)
                with show_progress(f"explaining on {counted(len(cluster.nodes), 'node')}"):
                    explanations = [
                        _explained(each, cluster, by_node, _events_of(each, objects, fleet), creation_of)
                        for each in pods
                    ]
            except ApiError as refused:
                if wanted is None or wanted.kind != POD:
                    raise
                from app.cli.explain_live import explained_by_api_server

                explanations = explained_by_api_server(fleet, wanted.namespace, wanted.name, refused)
    if not explanations:
        note(f"no pod of namespace {home} waits for a node")
    brief = not (words or file or by_node or details)
    titles = [pod.of for pod in pods] or [""] * len(explanations)
    show(
        explanations[0] if len(explanations) == 1 else explanations,
        "text" if output == "wide" else output,
        lambda console: _show(console, explanations, titles, by_node, details or output == "wide", brief),
    )
    raise typer.Exit(0 if all(explanation.fits for explanation in explanations) else 1)


def _notes_beside(pod: PodToExplain) -> tuple[str, ...]:
    """Say of a workload what a service, which is sent one pod of each template, does not."""
    number = len(pod.workload.waiting) if pod.workload else 0
    text = f"how many of its {number} pods fit together is not asked of a service; without --url, explain counts them"
    return (*pod.notes, *((text,) if number else ()))


def _explained(
    pod: PodToExplain,
    cluster: World,
    by_node: bool,
    events: list[JSONObject] | None,
    creation_of: Callable[[JSONObject], str] | None,
) -> Explanation:
    """Explain a pod, and first what is to say of its creation and of its workload."""
    answer = finish(explain(pod.pod, cluster, pod.live, by_node, events=events, workload=pod.workload))
    now = creation_of(pod.pod) if creation_of else ""
    return replace(answer, notes=(*filter(None, (now,)), *pod.notes, *answer.notes))


def _show(
    console: Console, explanations: list[Explanation], titles: list[str], by_node: bool, details: bool, brief: bool
) -> None:
    for number, (explanation, title) in enumerate(zip(explanations, titles, strict=True)):
        if number:
            console.print()
        if title:
            console.print(f"[bold]{escape(title)}[/]")
        if brief:
            print_first_change(console, explanation)
        else:
            print_explanation(console, explanation, by_node, details)


def read_fleet(fleet: Fleet, wanted: ObjectName | None) -> Objects:
    """Read the objects that an explanation needs.

    Raises SnapshotError, ApiError, BadInput.
    """
    kept = wanted.namespace if wanted else None
    try:
        return read(fleet, FLEET, OPTIONAL, keep_whole=lambda pod: key_of(pod).partition("/")[0] == kept)
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        raise ApiError(FORBIDDEN, without_rights(error, wanted)) from error


def without_rights(error: ApiError, wanted: ObjectName | None) -> str:
    """Say where a user who may not read the fleet finds an answer."""
    cause = error.__cause__ if isinstance(error.__cause__, ApiError) else error
    name = f"{wanted.kind.lower()} {wanted.name} -n {wanted.namespace}" if wanted else "pod NAME"
    return (
        f"{forbidden(cause)}: `kubectl describe {name}` shows gpu-usher's Event; "
        "ask your platform team for the ClusterRole gpu-usher-explain"
    )


def _named(fleet: Fleet, wanted: ObjectName, objects: Objects, workloads: Workloads) -> list[PodToExplain]:
    """Find what was named; the object of a workload is read from the cluster by itself.

    Raises BadInput, ApiError.
    """
    workload = next((document for document in objects if wanted.names(document)), None)
    if fleet.live and wanted.kind != POD:
        from app.cli.explain_live import shown_at

        version = "v1"
        if wanted.is_of_other_projects:
            group = shown_at(fleet, f"/apis/{wanted.resource[0]}") or {}
            version = (group.get("preferredVersion") or {}).get("version") or version
        workload = shown_at(fleet, wanted.path(version))
    listing = f": kubectl get {wanted.resource[1]} -n {wanted.namespace} lists them" if fleet.live else ""
    return of_fleet(wanted, objects, workload, listing, workloads)


def pod_reference(wanted: ObjectName | None) -> JSONObject:
    """Return a pod's name in the form that a service takes.

    Raises BadInput for a workload.
    """
    if wanted is None or wanted.kind != POD:
        raise BadInput("explain --url: takes the name of a pod, or -f with a file")
    return {"namespace": wanted.namespace, "name": wanted.name}


def snapshot_of(
    objects: list[Any], policies: Path | None, idle_of: Callable[[State], Mapping[str, float]] = lambda _: {}
) -> World:
    """Return the cluster of whole objects, with the policies among them, and with the idle pods that `idle_of` finds.

    Raises PolicyError, MalformedPod, QuantityError, and what `idle_of` raises.
    """
    state = state_of(objects)
    pods = (document for document in objects if document.get("kind") == "Pod")
    return world_of(
        state,
        policies_in(objects, policies, state),
        volumes=bound_volumes(objects),
        existing_pods=existing_pods_of(pods),
        idle=idle_of(state),
        managed_resources=_managed_resources(objects),
    )


def _managed_resources(objects: list[Any]) -> dict[str, frozenset[str] | None]:
    """Return by schedulerName what the configurations of schedulers in ConfigMaps ask us about."""
    texts = (
        text
        for document in objects
        if document.get("kind") == "ConfigMap"
        for text in (document.get("data") or {}).values()
        if "KubeSchedulerConfiguration" in text
    )
    from app.schedulerconfig.verify import managed_by_scheduler  # few snapshots have one

    return {name: managed for text in texts for name, managed in managed_by_scheduler(text).items()}


def _events_of(pod: PodToExplain, objects: list[Any], fleet: Fleet) -> list[JSONObject] | None:
    """List the Events about a pod of the cluster or of a snapshot; None where there are none to read."""
    metadata = pod.pod.get("metadata") or {}
    if fleet.live and pod.live:
        path = f"/api/v1/namespaces/{metadata.get('namespace')}/events"
        from app.cli.explain_live import shown_at

        found = shown_at(fleet, path, fieldSelector=f"involvedObject.name={metadata['name']}")
        events = None if found is None else found.get("items") or []
    else:
        events = [document for document in objects if document.get("kind") == "Event"] or None
    return events and [event for event in events if _is_about(event.get("involvedObject") or {}, pod.pod)]


def _is_about(involved: JSONObject, pod: JSONObject) -> bool:
    """Tell whether an Event is about a pod, and not about an earlier one of its name."""
    uid = (pod.get("metadata") or {}).get("uid")
    return key_of({"metadata": involved}) == key_of(pod) and involved.get("uid") in (None, "", uid)
