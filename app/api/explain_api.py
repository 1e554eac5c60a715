# SPDX-License-Identifier: Apache-2.0
"""The aggregated API explain.gpu-usher.io: why a pod is Pending, for users with the right to `get` explanations in its
namespace.

kube-apiserver authenticates the user, asks RBAC for `get explanations` in the pod's namespace, and passes the request
on with the client certificate of its front proxy; other callers get 401. An answer names nothing of other namespaces
(app/explain/tenant_view.py). See docs/decisions/0049-explain-to-tenants-by-an-aggregated-api.md.
"""

import re
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from app.api.allowed_callers import CONNECTION, SUBJECT
from app.api.wire import encode, status_body
from app.cluster.core import Core
from app.cluster.time_slices import JOB_SECONDS, RETRY_SECONDS, JobQueue, in_slices
from app.explain.explanation import Explanation
from app.explain.pending_cause import cause_of
from app.explain.pending_pod import explain
from app.explain.tenant_view import for_tenant
from app.kube.api_kinds import EXPLAIN_GROUP as GROUP
from app.kube.api_kinds import EXPLAIN_VERSION as VERSION
from app.kube.api_kinds import EXPLANATIONS as RESOURCE
from app.telemetry.logs import event
from app.values.errors import BadInput, MalformedPod, WireError
from app.values.json_members import JSON, member
from app.world.world import World


class Explainer:
    """Explains pods, one at a time."""

    def __init__(self, core: Core, seconds: float = JOB_SECONDS) -> None:
        self._core = core
        self._turns = JobQueue("explanations", seconds)

    async def answer(self, body: Any, by_node: bool) -> Explanation:
        """Explain a Pod in the body, or the pod of the cluster that the body names.

        Raises WireError (400, 404, 429, 502, 503), MalformedPod, QuantityError.
        """
        async with self._turns.turn():
            document, live = await self._pod(body)
            return await in_slices(explain(document, await self._snapshot(document), live, by_node))

    async def of(self, document: Mapping[str, Any], live: bool) -> Explanation:
        """Explain a pod as it is in the cluster (with `live`), or as it would be.

        Raises WireError (429, 503), MalformedPod, QuantityError.
        """
        async with self._turns.turn():
            return await in_slices(explain(document, await self._snapshot(document), live))

    async def _snapshot(self, document: Mapping[str, Any]) -> World:
        """Return the cluster, with the PodGroup of the pod that is explained."""
        group = await self._core.fetch_pod_group(document)
        return replace(self._core.world_copied(), pod_group=group)

    async def _pod(self, body: Any) -> tuple[Mapping[str, Any], bool]:
        if not isinstance(body, dict) or body.get("kind", "Pod") != "Pod":
            raise WireError(400, 'body: wants a Pod as JSON, or {"namespace": …, "name": …} of one')
        if body.keys() - {"namespace", "name"} or "name" not in body:
            return body, False
        namespace, name = member(body, "namespace", str, "") or "default", member(body, "name", str, "")
        if not name:
            raise MalformedPod("name: got nothing, wants the name of a pod")
        return await self._core.fetch_pod(namespace, name), True


KIND = "Explanation"
API_VERSION = f"{GROUP}/{VERSION}"
MOST_OF_A_USER = 2
"""Explanations of one user that are worked on or wait; of nine in all, so that one user cannot take every turn."""
AS_TABLE = b"as=Table"
"""In the Accept header of `kubectl get`, which then prints the columns of a Table."""
_PATH = re.compile(
    rf"/apis/{re.escape(API_VERSION)}/namespaces/(?P<namespace>[a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?)"
    rf"/{RESOURCE}/(?P<name>[a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?)"
)
"""The one path of an answer, compared before anything in it is decoded: `%2F` and `..` are no part of it."""
_VERSION: Mapping[str, str] = {"groupVersion": API_VERSION, "version": VERSION}
_API_GROUP = {"name": GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}
_API_RESOURCE = {
    "name": RESOURCE,
    "singularName": "explanation",
    "namespaced": True,
    "kind": KIND,
    "verbs": ["get"],
}
DISCOVERY: Mapping[str, bytes] = {
    "/apis": encode({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_API_GROUP]}),
    f"/apis/{GROUP}": encode({"kind": "APIGroup", "apiVersion": "v1", **_API_GROUP}),
    f"/apis/{API_VERSION}": encode(
        {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION, "resources": [_API_RESOURCE]}
    ),
}
"""What kube-apiserver asks to list our resource and to see that we are there (k8s.io/apimachinery meta/v1 types.go)."""
_COLUMNS = [
    {"name": name, "type": kind, "format": "name" if name == "Name" else "", "description": what, "priority": 0}
    for name, kind, what in (
        ("Name", "string", "Name of the pod."),
        ("Fits", "integer", "Nodes that the pod fits on now."),
        ("Nodes", "integer", "Nodes of the cluster."),
        ("Reason", "string", "Code of the reason to look at first."),
        ("Cause", "string", "The cause, and the smallest change that helps."),
    )
]


class ExplainAPI:
    """The ASGI application of the listener.

    `problem_of` says why a connection is not the front proxy's, by the common name of its certificate; empty if it is.
    `user_headers` are the names, in lower case, of the headers in which the front proxy names the user.
    """

    def __init__(
        self,
        core: Core,
        problem_of: Callable[[str | None, ssl.SSLObject | None], str],
        user_headers: Callable[[], tuple[str, ...]],
    ) -> None:
        self._core = core
        self._explainer = Explainer(core)
        self._problem_of = problem_of
        self._user_headers = user_headers
        self._in_hand: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; its body, if it has one, is not read."""
        if scope["type"] == "http":
            answer = await self._answer(scope)
            await answer(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response:
        if problem := self._problem_of(scope.get(SUBJECT), scope.get(CONNECTION)):
            return _status(403, f"gpu-usher: {problem}")
        path = (scope.get("raw_path") or b"").decode("latin-1")
        if scope["method"] != "GET":
            return _status(405, f"gpu-usher: {scope['method'][:20]}: wants GET: explanations can only be read")
        if path in DISCOVERY:
            return Response(DISCOVERY[path], media_type=JSON)
        if (match := _PATH.fullmatch(path)) is None:
            return _status(
                404, f"gpu-usher: no such path: wants /apis/{API_VERSION}/namespaces/NAMESPACE/{RESOURCE}/POD"
            )
        names = (_header(scope, header.encode("latin-1")) for header in self._user_headers())
        user = next((name.decode("latin-1") for name in names if name), "")
        if not user:
            return _status(401, "gpu-usher: no user: wants a request authenticated by kube-apiserver")
        return await self._explain(user, match["namespace"], match["name"], _header(scope, b"accept"))

    async def _explain(self, user: str, namespace: str, name: str, accept: bytes) -> Response:
        if self._in_hand[user] >= MOST_OF_A_USER:
            return _status(
                429, f"gpu-usher: {MOST_OF_A_USER} explanations of this user are waiting already: try again later"
            )
        self._in_hand[user] += 1
        code = 200
        try:
            if problem := self._core.cache_problem():
                raise WireError(503, problem)
            explanation = await self._explainer.answer({"namespace": namespace, "name": name}, False)
            known = for_tenant(explanation, namespace, self._core.state.namespaces.by_name)
            return Response(encode(_document(known, namespace, name, AS_TABLE in accept)), media_type=JSON)
        except BadInput as error:
            code = error.status if isinstance(error, WireError) else 400
            return _status(code, f"gpu-usher: {error}")
        finally:
            self._in_hand[user] -= 1
            if not self._in_hand[user]:
                del self._in_hand[user]
            event("explained", user=user[:200], namespace=namespace, pod=name, code=code)


def _document(explanation: Explanation, namespace: str, name: str, as_table: bool) -> Mapping[str, Any]:
    """Write the object, or the table that kubectl prints."""
    cause = cause_of(explanation)
    metadata = {"name": name, "namespace": namespace}
    if not as_table:
        document = {"kind": KIND, "apiVersion": API_VERSION, "metadata": metadata}
        return {**document, "cause": cause.note, "explanation": explanation}
    cells = [name, explanation.fits, explanation.nodes, cause.reason or "Fits", cause.note]
    row = {
        "cells": cells,
        "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata},
    }
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": _COLUMNS,
        "rows": [row],
    }


def _header(scope: Scope, name: bytes) -> bytes:
    """Return the value of a header; empty where there is none, or more than one."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0] if len(values) == 1 else b""


def _status(code: int, message: str) -> Response:
    """Answer with a Status; what else the request sends stays unread, so that its connection ends."""
    headers = {"Connection": "close", **({"Retry-After": str(RETRY_SECONDS)} if code in (429, 503) else {})}
    return Response(status_body(code, message[:500]), code, headers, JSON)
