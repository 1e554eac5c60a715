# SPDX-License-Identifier: Apache-2.0
"""What `gpu-usher explain` asks of a live cluster, besides its objects, and of a running service."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from app.cli.doctor_survey import survey_webhooks
from app.cli.options import Fleet
from app.cli.output import show_progress
from app.cli.source import key_of, load_of, telling
from app.cluster.apiserver import LIST_SECONDS, ApiServer, read_object
from app.cluster.kubeconfig import service_at
from app.doctor.cluster_objects import asks_for_gpus
from app.doctor.replica_checks import creation_now
from app.explain.explanation import Explanation
from app.kube.api_kinds import EXPLAIN_GROUP, EXPLAIN_VERSION, EXPLANATIONS
from app.policy.problems import NAMESPACE_NAME
from app.values.errors import FORBIDDEN, ApiError
from app.values.json_members import JSONObject
from app.world.world import World


def explained_by_api_server(fleet: Fleet, namespace: str, name: str, refused: ApiError) -> list[Explanation]:
    """Return the explanation of a pod, after the API server has refused to show the cluster (`refused`).

    Without a name, those of the pods that wait in the namespace.

    Raises ApiError: `refused` unless it is a 403, and where no explanation is served, what to do.
    """
    if refused.status != FORBIDDEN:
        raise refused
    path = f"/apis/{EXPLAIN_GROUP}/{EXPLAIN_VERSION}/namespaces/{namespace}/{EXPLANATIONS}/{name}"
    try:
        document = asyncio.run(read_object(load_of(fleet), path.rstrip("/")))
        if document is not None:
            items = [document] if name else document["items"]
            return [msgspec.convert(item["explanation"], Explanation) for item in items]
        reason = "the cluster does not serve explanations, or there is no such pod"
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        reason = "you may not get explanations either"
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise ApiError(None, f"explanation of {namespace}/{name}: of another version of gpu-usher: {error}") from error
    raise ApiError(
        FORBIDDEN,
        f"you may not read nodes, and {reason}: `kubectl describe pod {name} -n {namespace}` shows gpu-usher's Event; "
        "ask your platform team for ClusterRole gpu-usher-explain (deploy/components/explain-api)",
    ) from refused


def shown_at(fleet: Fleet, path: str, **params: str) -> Any:
    """Read one object, or a list; None if it is not there, or not shown to the user. Raises ApiError."""
    with telling(fleet):
        try:
            return asyncio.run(read_object(load_of(fleet), path, params))
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            return None


def ask_about_creation(fleet: Fleet, cluster: World) -> Callable[[JSONObject], str]:
    """Read the webhooks; the result says what the API server would now do with a new pod that asks for GPUs."""
    webhooks = asyncio.run(survey_webhooks(load_of(fleet), cluster))

    def creation_of(pod: JSONObject) -> str:
        if not asks_for_gpus(dict(pod), webhooks.knowledge.families):
            return ""
        namespace = key_of(pod).partition("/")[0]
        return creation_now(webhooks, {NAMESPACE_NAME: namespace, **cluster.state.namespaces.labels(namespace)})

    return creation_of


def ask_service(url: str, body: JSONObject, by_node: bool) -> Explanation:
    """Ask a running service for an explanation.

    Raises ApiError, BadInput.
    """

    async def ask() -> Any:
        async with ApiServer(service_at(url)) as server:
            return await server.create("/explain", body, {"nodes": "true"} if by_node else {}, LIST_SECONDS)

    try:
        with show_progress(f"asking {url}"):
            return msgspec.convert(asyncio.run(ask()), Explanation)
    except (ApiError, msgspec.ValidationError) as error:
        if isinstance(error, ApiError) and (error.status or 0) >= 400:
            raise ApiError(error.status, f"{url} answers {error}") from error
        raise ApiError(None, f"{url}: no answer of gpu-usher: {error}; wants its web UI listener") from error
