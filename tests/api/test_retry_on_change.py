# SPDX-License-Identifier: Apache-2.0
"""A pod that asks again before our watch has shown the deletion, or the label, that makes room for it (F65)."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.app import LOOK_SECONDS, SHARE_WAITED, WAIT_SECONDS, RetryOnChange, create_tls_app
from app.api.decision_line import Decision
from app.server.service import Service
from app.telemetry.metrics import Metrics
from app.values.reasons import Code
from tests.builders import gpus, make_service, node_document, pod

NODE, HOLDER = "a10-shared-0", "the-uid-of-the-holder"
LACKING = Decision("none_fits", reasons={Code.GPUMemoryBudgetExceeded: 1, Code.ProductNotAllowed: 3})


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """Make a service with one shared node whose memory is promised to another pod."""
    made = make_service(tmp_path)
    holder = pod(gpus(1), annotations={"gpu-memory": "20Gi"}, nodeName=NODE)
    holder["metadata"]["uid"] = HOLDER
    made.state.put_pod(holder)
    return made


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return a function that sets what happens each time that an answer waits."""

    def say(what: Callable[[], object]) -> None:
        async def wait(_seconds: float) -> None:
            what()

        monkeypatch.setattr("app.api.app.asyncio.sleep", wait)

    return say


def ask(service: Service, memory: str = "12Gi", **more: Any) -> dict[str, Any]:
    document = pod(gpus(1), annotations={"gpu-memory": memory}, **more)
    body = json.dumps({"Pod": document, "NodeNames": [NODE]})

    async def exchange() -> dict[str, Any]:
        transport = httpx.ASGITransport(app=create_tls_app(service, Metrics()))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer: dict[str, Any] = (await client.post("/scheduler/filter", content=body)).json()
            return answer

    return asyncio.run(exchange())


def test_deletion_that_comes_while_the_answer_waits_is_in_it(
    service: Service, during: Callable[[Callable[[], object]], None]
) -> None:
    """P4."""
    during(lambda: service.state.drop_pod(HOLDER))

    assert ask(service)["NodeNames"] == [NODE]


@pytest.mark.parametrize(
    ("key", "changing", "settled"),
    [
        pytest.param("nvidia.com/mig.config.state", "pending", "success", id="MIG layout"),
        pytest.param("nvidia.com/gpu-driver-upgrade-state", "uncordon-required", "upgrade-done", id="driver upgrade"),
    ],
)
def test_end_of_a_change_that_comes_while_the_answer_waits_is_in_it(
    service: Service, during: Callable[[Callable[[], object]], None], key: str, changing: str, settled: str
) -> None:
    """The label's edit activates the pod, and the scheduler may ask before our watch has shown the edit."""
    service.state.drop_pod(HOLDER)
    service.state.put_node(node_document(NODE, labels={key: changing}))
    during(lambda: service.state.put_node(node_document(NODE, labels={key: settled})))

    assert ask(service)["NodeNames"] == [NODE]


def test_change_that_helps_nothing_is_waited_past(
    service: Service, during: Callable[[Callable[[], object]], None]
) -> None:
    """The wait goes on until no time is left; the answer is then the first refusal."""
    during(lambda: service.state.changes.note("another"))

    answer = ask(service)

    assert answer["NodeNames"] == []
    assert "memory of the shared GPUs is promised to other pods" in answer["FailedNodes"][NODE]


@pytest.mark.parametrize(
    "decision",
    [
        Decision("answered", kept=1, reasons={Code.GPUMemoryBudgetExceeded: 1}),
        Decision("none_fits", reasons={Code.InsufficientGPUs: 1}),
    ],
    ids=["a node fits", "kube-scheduler counts it itself"],
)
def test_nothing_else_is_waited_for(service: Service, decision: Decision) -> None:
    assert looks(RetryOnChange(service), decision) == 0


def test_shadow_never_waits(tmp_path: Path) -> None:
    assert looks(RetryOnChange(make_service(tmp_path, shadow=True)), LACKING) == 0


def test_waits_are_far_apart(service: Service, during: Callable[[Callable[[], object]], None]) -> None:
    """kube-scheduler handles one pod at a time, of whose time waits take at most a twentieth."""
    now = [0.0]

    def passes() -> None:
        now[0] += WAIT_SECONDS / 4
        service.state.changes.note(NODE)

    during(passes)
    seconds = RetryOnChange(service, lambda: now[0])
    first, second = looks(seconds, LACKING), looks(seconds, LACKING)
    now[0] += WAIT_SECONDS / SHARE_WAITED

    assert (first, second, looks(seconds, LACKING)) == (4, 0, 4)


def test_short_wait_is_soon_followed_by_the_next(
    service: Service, during: Callable[[Callable[[], object]], None]
) -> None:
    """The share of time counts, not the number of waits: most end by a change within milliseconds."""
    now = [0.0]

    def passes() -> None:
        now[0] += LOOK_SECONDS
        service.state.changes.note(NODE)

    during(passes)
    seconds = RetryOnChange(service, lambda: now[0])

    async def ends_at_once() -> bool:
        waits = seconds.changes(LACKING)
        async for _ in waits:
            return True
        return False

    first, second = asyncio.run(ends_at_once()), asyncio.run(ends_at_once())
    now[0] += 2 * LOOK_SECONDS / SHARE_WAITED

    assert (first, second, asyncio.run(ends_at_once())) == (True, False, True)


def test_pod_for_which_others_were_evicted_always_waits(
    service: Service, during: Callable[[Callable[[], object]], None]
) -> None:
    """F43: for the scheduler its victims are gone, or it would not ask about that node."""
    now = [0.0]

    def passes() -> None:
        now[0] += WAIT_SECONDS / 4
        service.state.changes.note(NODE)

    during(passes)
    seconds, nominated = RetryOnChange(service, lambda: now[0]), replace(LACKING, nominated=True)

    assert (looks(seconds, LACKING), looks(seconds, nominated), looks(seconds, nominated)) == (4, 4, 4)


def looks(seconds: RetryOnChange, decision: Decision) -> int:
    async def count() -> int:
        return len([None async for _ in seconds.changes(decision)])

    return asyncio.run(count())
