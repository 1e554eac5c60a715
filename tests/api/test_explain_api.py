# SPDX-License-Identifier: Apache-2.0
"""The application behind the aggregated API: its paths, its answers, and its limits, without a control plane."""

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.api.explain_api import API_VERSION, DISCOVERY, ExplainAPI
from app.demo.sample_fleets import demo_fleet
from app.server.service import Service
from tests.builders import make_service

PATH = f"/apis/{API_VERSION}/namespaces/language/explanations/distill"
USER = [(b"x-remote-user", b"tina")]
Headers = list[tuple[bytes, bytes]]
Answered = tuple[int, dict[str, Any], dict[bytes, bytes]]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """The service on a fleet in which language/distill waits."""
    return make_service(tmp_path, demo_fleet("weekday"))


def make_api(
    service: Service, problem: Callable[[str | None, ssl.SSLObject | None], str] = lambda *_: ""
) -> ExplainAPI:
    return ExplainAPI(service, problem, lambda: ("x-remote-user",))


async def call(api: ExplainAPI, path: str, headers: Headers, method: str = "GET", query: bytes = b"") -> Answered:
    """Call the application once, as the server does."""
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query}
    await api({**scope, "headers": headers}, receive, send)
    start, *rest = sent
    return start["status"], json.loads(b"".join(part.get("body", b"") for part in rest)), dict(start["headers"])


def ask(
    api: ExplainAPI, path: str = PATH, headers: Headers = USER, method: str = "GET", query: bytes = b""
) -> Answered:
    return asyncio.run(call(api, path, headers, method, query))


def test_pod_that_waits_is_explained_with_its_cause(service: Service) -> None:
    """F83: as `explain` does, in an object of its own kind."""
    code, body, _ = ask(make_api(service), query=b"nodes=true&namespace=vision")

    assert (code, body["kind"], body["apiVersion"]) == (200, "Explanation", API_VERSION)
    assert body["metadata"] == {"name": "distill", "namespace": "language"}
    assert body["explanation"]["primary"]["reason"] == "InsufficientGPUs"
    assert body["cause"].startswith("Fits on none of ")
    assert body["explanation"]["verdicts"] is None


def test_list_has_what_waits_in_a_namespace_and_nothing_of_others(service: Service) -> None:
    """F83, F104: the longest waiting first, one pod of each controller; `list` is a right of its own."""
    path = PATH.rpartition("/")[0]
    accept = (b"accept", b"application/json;as=Table;v=v1;g=meta.k8s.io,application/json")

    code, body, _ = ask(make_api(service), path.replace("language", "vision"))
    table = ask(make_api(service), path, headers=[*USER, accept])[1]

    assert (code, body["kind"]) == (200, "ExplanationList")
    assert {item["metadata"]["namespace"] for item in body["items"]} == {"vision"}
    assert "thumbnails" in [item["metadata"]["name"] for item in body["items"]]
    assert [row["cells"][0] for row in table["rows"]] == ["distill"]
    assert ask(make_api(service), path.replace("language", "nobody"))[1]["items"] == []


def test_kubectl_is_given_a_table(service: Service) -> None:
    """F83: `kubectl get` asks for one (meta/v1 Table)."""
    accept = (b"accept", b"application/json;as=Table;v=v1;g=meta.k8s.io,application/json")

    _, body, _ = ask(make_api(service), headers=[*USER, accept])

    names = [column["name"] for column in body["columnDefinitions"]]
    (row,) = body["rows"]
    assert (body["kind"], names) == ("Table", ["Name", "Fits", "Nodes", "Reason", "Cause"])
    assert row["cells"][:2] == ["distill", 0]
    assert row["cells"][4].startswith("Fits on none of 23 nodes: not enough free GPUs")


@pytest.mark.parametrize("path", DISCOVERY)
def test_discovery_needs_no_user_and_no_state(service: Service, path: str) -> None:
    """ADM-10: the aggregation layer asks it often, and takes the API for absent where it fails."""
    service.synced = False

    code, body, _ = ask(make_api(service), path, [])

    assert code == 200
    assert body["kind"] in ("APIGroupList", "APIGroup", "APIResourceList")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{PATH}/", 404),
        (f"{PATH}%2f..", 404),
        (PATH.replace("distill", "..%2fdistill"), 404),
        (PATH.replace("distill", "../distill"), 404),
        (PATH.replace("distill", "Distill"), 404),
        (PATH.replace("language/", "language%00/"), 404),
        (PATH.replace("/explanations", "//explanations"), 404),
        (PATH.replace("language", "lan.guage"), 404),
        (PATH.replace("explanations", "pods"), 404),
        (PATH.replace("distill", "a" * 300), 404),
        ("/", 404),
        ("/explain", 404),
        ("/metrics", 404),
        ("/openapi/v2", 404),
        (PATH.replace("distill", "absent"), 404),
    ],
)
def test_no_other_path_is_answered(service: Service, path: str, code: int) -> None:
    """F104: the path is compared as it was sent."""
    assert ask(make_api(service), path)[0] == code


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param([], 401, id="no user"),
        pytest.param([(b"x-remote-user", b"")], 401, id="an empty one"),
        pytest.param([*USER, (b"x-remote-user", b"admin")], 401, id="two"),
        pytest.param([(b"x-remote-group", b"system:masters")], 401, id="a group alone"),
    ],
)
def test_request_without_one_user_is_refused(service: Service, headers: Headers, code: int) -> None:
    """F104."""
    assert ask(make_api(service), headers=headers)[0] == code


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT"])
def test_only_get_is_answered_and_the_connection_ends(service: Service, method: str) -> None:
    """F104: the body stays unread."""
    code, _, headers = ask(make_api(service), method=method)

    assert (code, headers[b"connection"]) == (405, b"close")


def test_whoever_is_not_the_front_proxy_learns_nothing(service: Service) -> None:
    """F104: discovery included."""
    api = make_api(service, lambda *_: "no client certificate")

    assert {ask(api, path)[0] for path in (PATH, *DISCOVERY, "/")} == {403}


def test_state_that_is_not_known_yet_is_said(service: Service) -> None:
    """F83: an explanation on half a cluster would be wrong."""
    service.synced = False

    code, body, headers = ask(make_api(service))

    assert (code, headers[b"retry-after"]) == (503, b"2")
    assert body["reason"] == "ServiceUnavailable"


def test_one_user_cannot_take_every_turn(service: Service) -> None:
    """F104: two of a user are in hand at most; another user is answered meanwhile."""
    api = make_api(service)

    async def go() -> list[int]:
        users = [USER] * 5 + [[(b"x-remote-user", b"bob")]]
        return [code for code, _, _ in await asyncio.gather(*(call(api, PATH, user) for user in users))]

    assert asyncio.run(go()) == [200, 200, 429, 429, 429, 200]
    assert ask(api)[0] == 200
