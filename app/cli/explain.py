# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher explain`: shows why a pod is Pending, and the smallest change that would help."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
import typer
import yaml

from app.cli.explain_text import print_explanation
from app.cli.output import output_of, show
from app.cli.progress import show_progress
from app.cli.source import POLICY_KINDS, DemoFleet, Kubeconfig, policies_in, read_live, state_of
from app.cli.tenant_explain import explained_by_api_server
from app.cli.usage_history import PrometheusURL, TokenFile, idle_of_fleet
from app.cluster.access import find_cluster
from app.cluster.fast_snapshot import read_partial_snapshot
from app.cluster.files import read_snapshot_file
from app.cluster.state import State
from app.cluster.view import bound_volumes, view
from app.demo.sample_fleets import demo_fleet as demo_fleet_objects
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.explain.survey import ClusterSnapshot
from app.intree.existing_pods import existing_pods_of
from app.kube.api_kinds import DRA, FLEET
from app.schedulerconfig.verify import managed_by_scheduler
from app.values.errors import ApiError, BadInput
from app.values.steps import finish

Object = Mapping[str, Any]
OPTIONAL = ("PersistentVolume", "PersistentVolumeClaim", *DRA, *POLICY_KINDS)
"""Kinds that a cluster may not have or may forbid to the user; policies are among them."""
ANSWER_SECONDS = 60.0
"""For the answer of a running service; eight others may be ahead, a second each."""


def explain_pod(
    kind: Annotated[str, typer.Argument(help="pod; it can be left out.")] = "",
    name: Annotated[str, typer.Argument(help="NAMESPACE/NAME of a pod in the cluster or the snapshot.")] = "",
    file: Annotated[
        Path | None, typer.Option("--filename", "-f", help="A Pod to explain instead, YAML or JSON.")
    ] = None,
    demo_fleet: DemoFleet = None,
    snapshot: Annotated[
        list[Path] | None,
        typer.Option(
            help="Against a file of `kubectl get nodes,pods,namespaces,runtimeclasses,pv,pvc,events -A -o json`."
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Ask a running service, at its web UI listener.")] = None,
    kubeconfig: Kubeconfig = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    prometheus: PrometheusURL = None,
    prometheus_token_file: TokenFile = None,
    policies: Annotated[Path | None, typer.Option(help="Directory of policies; the shipped ones by default.")] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Show the reasons against every single node.")] = False,
    output: Annotated[str, output_of("text", "wide", "json", "yaml")] = "text",
) -> None:
    """Explain why a pod is Pending, or where it would run; exit code 1 if no node will do now.

    Of a pod in the cluster: gpu-usher explain pod team-a/train-0. Of one that is not there yet: explain -f pod.yaml.
    Of one that has ended, how it did, such as UnexpectedAdmissionError; and where it would run if created again.
    """
    key = name or (kind if "/" in kind else "")
    if bool(key) == bool(file):
        raise BadInput("explain: wants NAMESPACE/NAME of a pod, or -f with a file; one of them")
    document = read_document(file) if file else None
    by_node = nodes or output == "wide"
    if url and prometheus:
        raise BadInput("explain: got --url and --prometheus, wants one: a service asks the Prometheus that it is given")
    if url:
        explanation = ask_service(url, document or pod_reference(key), by_node)
    else:
        try:
            with without_garbage_collection():
                objects = _objects(demo_fleet, snapshot or [], kubeconfig, context, key)
                cluster = snapshot_of(objects, policies, partial(idle_of_fleet, prometheus, prometheus_token_file))
                with show_progress(f"explaining on {len(cluster.nodes)} nodes"):
                    pod, live = document or _pod(objects, key), document is None
                    explanation = finish(explain(pod, cluster, live, by_node, events=_events_of(pod, objects)))
        except ApiError as refused:
            if document is not None:
                raise
            load, named = find_cluster(kubeconfig, context), pod_reference(key)
            explanation = explained_by_api_server(load, named["namespace"], named["name"], refused)
    show(
        explanation,
        "text" if output == "wide" else output,
        lambda console: print_explanation(console, explanation, by_node),
    )
    raise typer.Exit(0 if explanation.fits else 1)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: nothing is freed while a fleet is read, and walking all of it takes seconds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def read_document(file: Path) -> Object:
    """Read a Pod from a file, or from stdin for `-`.

    Raises BadInput.
    """
    try:
        text = Path("/dev/stdin" if str(file) == "-" else file).read_text("utf-8")
        document = yaml.load(text, yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{file}: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(document, dict) or document.get("kind", "Pod") != "Pod":
        raise BadInput(f"{file}: wants one Pod, as YAML or JSON")
    return document


def pod_reference(key: str) -> Object:
    """Return a pod's key in the form that a service takes."""
    namespace, _, name = key.rpartition("/")
    return {"namespace": namespace or "default", "name": name}


def ask_service(url: str, body: Object, by_node: bool) -> Explanation:
    """Ask a running service for an explanation.

    Raises ApiError.
    """
    try:
        params = {"nodes": "true"} if by_node else {}
        with show_progress(f"asking {url}"), httpx.Client(timeout=ANSWER_SECONDS, trust_env=False) as client:
            answer = client.post(url.rstrip("/") + "/explain", json=body, params=params)
        if answer.status_code != 200:
            raise ApiError(answer.status_code, f"{url}: {answer.status_code}: {answer.text[:300]}")
        return msgspec.json.decode(answer.content, type=Explanation)
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        raise ApiError(None, f"{url}: {error or type(error).__name__}") from error


def _objects(
    fleet: str | None, snapshots: list[Path], kubeconfig: Path | None, context: str | None, key: str
) -> list[Any]:
    if fleet:
        return demo_fleet_objects(fleet)
    if snapshots:
        key_members = pod_reference(key)
        objects: list[Any] = []
        for path in snapshots:
            with show_progress(f"reading {path}"):
                objects += read_partial_snapshot(
                    str(path), read_snapshot_file(path), lambda pod: _has_key(pod, key_members)
                )
        return objects
    return read_live(kubeconfig, context, FLEET, OPTIONAL)


def snapshot_of(
    objects: list[Any], policies: Path | None, idle_of: Callable[[State], Mapping[str, float]] = lambda _: {}
) -> ClusterSnapshot:
    """Return the cluster of whole objects, with the policies among them, and with the idle pods that `idle_of` finds.

    Raises PolicyError, MalformedPod, QuantityError, and what `idle_of` raises.
    """
    state = state_of(objects)
    pods = (document for document in objects if document.get("kind") == "Pod")
    cluster = view(state, policies_in(objects, policies, state), bound_volumes(objects), existing_pods_of(pods))
    return replace(cluster, idle=idle_of(state), managed_resources=_managed_resources(objects))


def _managed_resources(objects: list[Any]) -> dict[str, frozenset[str] | None]:
    """Return by schedulerName what the configurations of schedulers in ConfigMaps ask us about."""
    texts = (
        text
        for document in objects
        if document.get("kind") == "ConfigMap"
        for text in (document.get("data") or {}).values()
        if "KubeSchedulerConfiguration" in text
    )
    return {name: managed for text in texts for name, managed in managed_by_scheduler(text).items()}


def _pod(objects: list[Any], key: str) -> Object:
    key_members = pod_reference(key)
    for document in objects:
        if document.get("kind") == "Pod" and _has_key(document, key_members):
            pod: Object = document
            return pod
    raise BadInput(f"pod {key_members['namespace']}/{key_members['name']}: there is none; see kubectl get pods -A")


def _events_of(pod: Object, objects: list[Any]) -> list[Object]:
    """List the Events about a pod, where the snapshot or the cluster has them."""
    metadata = {"namespace": "default", **(pod.get("metadata") or {})}
    key = {name: metadata.get(name) for name in ("namespace", "name")}
    events = (document for document in objects if document.get("kind") == "Event")
    return [event for event in events if _has_key({"metadata": event.get("involvedObject")}, key)]


def _has_key(pod: Object, key_members: Object) -> bool:
    metadata = {"namespace": "default", **(pod.get("metadata") or {})}
    return {key: metadata.get(key) for key in key_members} == key_members
