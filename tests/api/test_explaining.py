# SPDX-License-Identifier: Apache-2.0
"""POST /explain: a Pod or a reference, with every node on request, one call at a time, in short steps (F83, F84).

See docs/reference/listeners.md#state.
"""

import asyncio
import time
from collections.abc import Generator, Mapping
from typing import Any

import httpx
import pytest

from app.api.explain_api import Explainer
from app.cluster.time_slices import MOST_WAITING, in_slices
from app.server.service import Service
from app.values.errors import WireError
from app.web.api import create_web_app
from tests.api.conftest import Ask
from tests.builders import gpus, pod

NOWHERE = pod(gpus(1), annotations={"products": "H100"}, nodeSelector={"pool": "gold"})


class Live:
    """A service with a live cluster in which there is one pod."""

    def __init__(self, service: Service, document: Mapping[str, Any]) -> None:
        self._service = service
        self._document = document
        self.asked: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def fetch_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        self.asked.append((namespace, name))
        return self._document


def test_answer_has_the_keys_of_old_and_the_funnel_and_the_fixes(service: Service, ask: Ask) -> None:
    """F83, F84."""
    explanation = ask(create_web_app(service), "POST", "/explain", json=NOWHERE).json()

    assert {"policies", "asks", "needs", "origins", "conflicts", "nodes", "fits", "refused", "best", "claims", "dra",
            "unsourced", "admission", "funnel", "fixes", "in_tree"} <= explanation.keys()  # fmt: skip
    assert explanation["fits"] == 0
    assert explanation["primary"]["reason"] == "NodeAffinityMismatch"
    assert explanation["fixes"][0]["edits"][0]["kind"] == "drop-selector"
    assert explanation["verdicts"] is None


def test_verdict_of_every_node_is_given_on_demand(service: Service, ask: Ask) -> None:
    """F83."""
    explanation = ask(create_web_app(service), "POST", "/explain?nodes=true", json=NOWHERE).json()

    assert {verdict["node"] for verdict in explanation["verdicts"]} == set(service.nodes)
    assert all(verdict["reasons"] and not verdict["fits"] for verdict in explanation["verdicts"])


def test_pod_of_the_cluster_is_explained_as_it_is(service: Service, ask: Ask) -> None:
    """F83: without admission, the missing toleration is the cause, and creating the pod again the remedy."""
    live: Any = Live(service, pod(gpus(1)))

    explanation = ask(create_web_app(live), "POST", "/explain", json={"name": "p"}).json()

    assert live.asked == [("default", "p")]
    assert explanation["primary"]["reason"] == "UntoleratedTaint"
    assert [edit["kind"] for edit in explanation["fixes"][0]["edits"]] == ["recreate"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"namespace": "team-a", "name": "p"}, 404),
        ({"name": ""}, 400),
        ({"name": 7}, 400),
        ({"kind": "Node"}, 400),
        ([], 400),
        ({"spec": {"nodeSelector": {"a": 1}}}, 400),
    ],
    ids=["no live cluster", "no name", "name of another type", "no pod", "no object", "malformed"],
)
def test_what_cannot_be_explained_is_refused_with_the_reason(
    service: Service, ask: Ask, body: Any, status: int
) -> None:
    """F83."""
    answer = ask(create_web_app(service), "POST", "/explain", json=body)

    assert answer.status_code == status
    assert answer.json()["message"]


def test_more_than_eight_waiting_are_told_when_to_come_again(service: Service) -> None:
    """One explanation runs at a time, and beyond eight waiting there is a 429 (RFC 9110 §10.2.3).

    See docs/reference/listeners.md#state.
    """

    async def crowd() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=create_web_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            many = (client.post("/explain", json=NOWHERE) for _ in range(MOST_WAITING + 3))
            return await asyncio.gather(*many)

    responses = asyncio.run(crowd())

    assert sorted(response.status_code for response in responses) == [200] * (MOST_WAITING + 1) + [429] * 2
    assert {response.headers.get("retry-after") for response in responses if response.status_code == 429} == {"2"}


def test_others_have_their_turn_while_one_is_explained(service: Service) -> None:
    """An explanation rests between its steps (docs/reference/listeners.md#state)."""

    async def beside() -> int:
        turns = 0
        task = asyncio.create_task(Explainer(service).answer(NOWHERE, by_node=False))
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(beside()) > 5


class Hanging(Live):
    """A service whose API server never answers."""

    async def fetch_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        self.asked.append((namespace, name))
        return await asyncio.Event().wait() and {}


def test_explanation_that_is_not_done_in_time_says_what_it_waited_for(service: Service) -> None:
    """F83: both the wait for the API server and the wait for other explanations end.

    The second may have its turn in the moment in which the first gives up.
    """
    live: Any = Hanging(service, {})

    async def crowd() -> list[BaseException | Any]:
        explainer = Explainer(live, seconds=0.1)
        many = (explainer.answer({"name": name}, by_node=False) for name in ("first", "second"))
        async with asyncio.timeout(10):
            return await asyncio.gather(*many, return_exceptions=True)

    first, second = asyncio.run(crowd())

    running, behind = "it was still running", "others were ahead of it"
    for error, where in ((first, running), (second, running if len(live.asked) > 1 else behind)):
        assert isinstance(error, WireError)
        assert error.status == 503
        assert where in str(error)


def test_stalled_machine_does_not_make_every_step_a_turn_of_the_loop() -> None:
    """F83: a step that only waited for the CPU did no work, so no rest is due after it."""

    def stalled() -> Generator[None, None, str]:
        for _ in range(20):
            time.sleep(0.002)  # waits for the machine without using CPU
            yield
        return "done"

    async def beside() -> tuple[int, str]:
        turns = 0
        task = asyncio.create_task(in_slices(stalled()))
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        return turns, task.result()

    turns, result = asyncio.run(beside())

    assert result == "done"
    assert turns < 10
