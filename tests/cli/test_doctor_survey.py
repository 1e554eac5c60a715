# SPDX-License-Identifier: Apache-2.0
"""The doctor reads a live cluster once: it notes what is refused, ignores kinds not served, and compares the clocks."""

import asyncio
import datetime as dt
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from kubernetes.client import Configuration

from app.cli.doctor_survey import ClusterObjects, survey_cluster, try_gpu_pod
from app.doctor.cluster_objects import GPUPodTried
from tests.cluster.fake_apiserver import Answer, FakeApi, served, status

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
GROUPS = {"groups": [{"name": "apps"}, {"name": "node.k8s.io"}]}
VERSION = {"gitVersion": "v1.36.3"}


def json_answer(document: Any, **headers: str) -> Answer:
    return lambda _request: web.json_response(document, headers=headers)


def survey_of(faults: dict[str, Answer], pods: tuple[str, ...] = ()) -> ClusterObjects:
    """Survey a cluster that serves nodes, pods, DaemonSets and RuntimeClasses, with these answers to some requests."""

    async def go() -> ClusterObjects:
        lists = ("/api/v1/nodes", "/api/v1/pods", "/apis/apps/v1/daemonsets", "/apis/node.k8s.io/v1/runtimeclasses")
        first = {"/version": json_answer(VERSION), "/apis": json_answer(GROUPS), **faults}
        apis = {path: FakeApi() for path in {*lists, *first}}
        for path, answer in first.items():
            apis[path].faults.append(answer)
        for name in pods:
            apis["/api/v1/pods"].put({"metadata": {"name": name}})
        async with served(apis):
            host = apis["/version"].url
            return await survey_cluster(lambda: Configuration(host=host), "ours", lambda: NOW, lambda pod: is_kept(pod))

    return asyncio.run(go())


def is_kept(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["name"].startswith("gpu"))


def test_what_is_refused_is_noted_and_the_rest_is_read() -> None:
    """F87."""
    survey = survey_of({"/apis/apps/v1/daemonsets": status(403), "/api/v1/nodes": status(500)}, ("gpu-1", "cpu-1"))

    assert survey.reached
    assert {"Node": "500: no: 500", "DaemonSet": "403: no: 403"}.items() <= survey.refused.items()
    assert [document["metadata"]["name"] for document in survey.objects["Pod"]] == ["gpu-1"]
    assert survey.objects["RuntimeClass"] == []


def test_kind_whose_group_is_not_served_is_neither_read_nor_missed() -> None:
    survey = survey_of({})

    assert "NodePool" not in survey.objects
    assert "NodePool" not in survey.refused
    assert "Namespace" not in survey.refused  # 404: this API server has none


POLICIES = {
    "/apis": json_answer({"groups": [{"name": "gpu-usher.io"}]}),
    "/apis/gpu-usher.io/v1alpha1/gpupolicies": json_answer({"items": [], "metadata": {}}),
}
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpupolicies.gpu-usher.io"


@pytest.mark.parametrize(
    ("answer", "expected", "refused"),
    [
        pytest.param(json_answer({"spec": {}}), [{"spec": {}}], False, id="read"),
        pytest.param(status(403), [], True, id="forbidden"),
        pytest.param(status(404), [], False, id="an API of another kind"),
        pytest.param(json_answer([]), [], True, id="JSON of something else"),
    ],
)
def test_definition_of_policies_is_read_alone(answer: Answer, expected: list[Any], refused: bool) -> None:
    """F131."""
    survey = survey_of({**POLICIES, DEFINITION: answer})

    assert survey.objects["CustomResourceDefinition"] == expected
    assert ("CustomResourceDefinition gpupolicies.gpu-usher.io" in survey.refused) is refused


def test_definition_of_policies_is_not_asked_for_where_there_is_none() -> None:
    """F131: a user who may not read definitions gets no finding about them there."""
    survey = survey_of({DEFINITION: status(403)})

    assert "CustomResourceDefinition" not in survey.objects
    assert not any(kind.startswith("CustomResourceDefinition") for kind in survey.refused)


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        pytest.param(format_datetime(NOW, usegmt=True), 0.5, id="the same"),
        pytest.param(format_datetime(NOW + dt.timedelta(minutes=10), usegmt=True), 600.5, id="ahead"),
        pytest.param(format_datetime(NOW - dt.timedelta(minutes=10), usegmt=True), -599.5, id="behind"),
        pytest.param("yesterday", None, id="no date"),
    ],
)
def test_clock_of_the_api_server_is_compared_with_ours(date: str, expected: float | None) -> None:
    """Fault 46."""
    survey = survey_of({"/version": json_answer(VERSION, Date=date)})

    assert (survey.version, survey.ahead_seconds) == ("v1.36.3", expected)


@pytest.mark.parametrize(
    ("answer", "reached"),
    [
        pytest.param(status(403), True, id="may not ask for the version"),
        pytest.param(status(401), False, id="not known there"),
        pytest.param(status(503), False, id="not ready"),
        pytest.param(lambda _request: web.Response(text="<html>"), False, id="something else"),
        pytest.param(json_answer([]), False, id="JSON of something else"),
    ],
)
def test_answer_to_the_first_question_decides_whether_to_go_on(answer: Answer, reached: bool) -> None:
    """An unreachable API server is a finding and never an error."""
    survey = survey_of({"/version": answer})

    assert survey.reached is reached
    assert "API server" in survey.refused
    assert bool(survey.objects) is reached


CREATED = {"metadata": {"name": "p", "annotations": {"gpu-usher.io/decision": "{}"}}}
WORDS = 'Internal error occurred: failed calling webhook "a.b": context deadline exceeded'


def message(status_code: int, words: str) -> Answer:
    return lambda _request: web.json_response({"kind": "Status", "message": words}, status=status_code)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            lambda _request: web.json_response(CREATED, status=201), GPUPodTried("team-a"), id="admitted by us"
        ),
        pytest.param(
            lambda _request: web.json_response({}, status=201), GPUPodTried("team-a", reviewed=False), id="unseen"
        ),
        pytest.param(message(500, WORDS), GPUPodTried("team-a", f"500: {WORDS}"), id="a webhook fails"),
        pytest.param(message(504, "Timeout: x"), GPUPodTried("team-a", "504: Timeout: x"), id="no decision in time"),
        pytest.param(message(403, 'User "u" cannot create resource "pods"'), None, id="no right"),
        pytest.param(message(403, "exceeded quota"), None, id="quota"),
        pytest.param(message(400, 'admission webhook "a.b" denied the request'), None, id="policy of a webhook"),
        pytest.param(message(404, 'namespaces "team-a" not found'), None, id="no such namespace"),
        pytest.param(message(422, "invalid"), None, id="ValidatingAdmissionPolicy"),
    ],
)
def test_gpu_pod_is_created_by_dry_run_and_only_what_nobody_decided_is_told(
    answer: Answer, expected: GPUPodTried | None
) -> None:
    """F87: the request says dryRun=All, by which the API server stores nothing."""
    queries: list[dict[str, str]] = []

    def post(request: web.Request) -> web.Response | None:
        queries.append(dict(request.query))
        return answer(request)

    async def go() -> GPUPodTried | None:
        api = FakeApi()
        api.faults.append(post)
        async with served({"/api/v1/namespaces/team-a/pods": api}):
            return await try_gpu_pod(lambda: Configuration(host=api.url), "team-a", "nvidia.com/gpu")

    assert asyncio.run(go()) == expected
    assert queries == [{"dryRun": "All", "timeout": "30s"}]
