# SPDX-License-Identifier: Apache-2.0
"""Malformed bodies that test_hostile.py lacks: whole nodes, victims, odd fleets, and the web UI listener.

An answer is a decision or a clear 4xx, never a 5xx, and the next good request is served.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.api.app import create_tls_app
from app.api.bodies import LARGE, LARGE_AT_ONCE, SMALL_BYTES_AT_ONCE
from app.server.service import Service
from app.telemetry.metrics import Metrics
from app.web.api import create_web_app
from tests.api.conftest import Ask
from tests.builders import container, gpus, make_service, node_document, pod, review

GPU = "nvidia.com/gpu"
GOOD = {"Pod": pod(), "NodeNames": ["h200-0"]}


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def whole(item: Any, document: dict[str, Any] | None = None) -> bytes:
    """Make a call with one node in full-node mode."""
    return as_json({"Pod": document or pod(), "Nodes": {"metadata": {}, "items": [item]}, "NodeNames": None})


def node_with(**parts: Any) -> dict[str, Any]:
    return {**node_document("n"), **parts}


def offering(amount: Any) -> dict[str, Any]:
    return node_with(status={"allocatable": {GPU: amount}})


def labelled(**labels: Any) -> dict[str, Any]:
    return node_with(metadata={"name": "n", "labels": {f"nvidia.com/{key}": value for key, value in labels.items()}})


def dumped(parts: tuple[str, ...]) -> bytes:
    return "".join(parts).encode()


REFUSED = {
    "items is a string": as_json({"Pod": pod(), "Nodes": {"items": "x"}}),
    "items is an object": as_json({"Pod": pod(), "Nodes": {"items": {}}}),
    "nodes is a number": as_json({"Pod": pod(), "Nodes": 7}),
    "names is an object": as_json({"Pod": pod(), "NodeNames": {}}),
    "a name is null": as_json({"Pod": pod(), "NodeNames": [None]}),
    "a name is a list": as_json({"Pod": pod(), "NodeNames": [["a"]]}),
    "a name is a lone surrogate": dumped(('{"Pod":', json.dumps(pod()), ',"NodeNames":["\\ud800"]}')),
    "a name is not UTF-8": as_json(GOOD).replace(b"h200-0", b"\xc3\x28"),
    "a node is null": whole(None),
    "a node is a list": whole([]),
    "a node is empty": whole({}),
    "a node's name is a number": whole(node_with(metadata={"name": 5})),
    "a node's name is empty": whole(node_with(metadata={"name": ""})),
    "a node's metadata is a list": whole(node_with(metadata=[])),
    "a node's label is a number": whole(node_with(metadata={"name": "n", "labels": {"a": 1}})),
    "a node's spec is a string": whole(node_with(spec="x")),
    "a node's status is a list": whole(node_with(status=[])),
    "allocatable is a list": whole(node_with(status={"allocatable": []})),
    "an amount is an object": whole(offering({})),
    "an amount is true": whole(offering(True)),
    "a taint is a string": whole(node_with(spec={"taints": ["x"]})),
    "a taint's key is a number": whole(node_with(spec={"taints": [{"key": 1}]})),
    "5,000 levels in a node": whole(node_document()).replace(b'"spec": {}', b'"spec": ' + b"[" * 5000 + b"]" * 5000),
    "NaN in a node": whole(node_document()).replace(b'"8"', b"NaN"),
    "a node's part that is not read is not UTF-8": whole({**node_document("n"), "x": "?"}).replace(b"?", b"\xff\xfe"),
    "a byte order mark": b"\xef\xbb\xbf" + as_json(GOOD),
    "two documents": as_json(GOOD) * 2,
    "a zero byte at the end": as_json(GOOD) + b"\0",
    "UTF-16": json.dumps(GOOD).encode("utf-16"),
    "form data": b"Pod=x&NodeNames=y",
    "a key without value": b'{"Pod":}',
    "single quotes": str(GOOD).encode(),
    "a comment": b"// hello\n" + as_json(GOOD),
}
ANSWERED = {
    "no nodes at all": as_json({"Pod": pod(), "NodeNames": []}),
    "items is null": as_json({"Pod": pod(), "Nodes": {"items": None}}),
    "an empty name": as_json({"Pod": pod(), "NodeNames": [""]}),
    "a name of 100,000 characters": as_json({"Pod": pod(), "NodeNames": ["x" * 100_000]}),
    "a name with a zero byte": as_json({"Pod": pod(), "NodeNames": ["a\0b"]}),
    "a name of another script": as_json({"Pod": pod(), "NodeNames": ["\u202e\u2603\U0001f600"]}),
    "the same name twice": as_json({"Pod": pod(), "NodeNames": ["h200-0", "h200-0"]}),
    "both forms": as_json({**GOOD, "Nodes": {"items": [node_document()]}}),
    "an empty Pod": as_json({"Pod": {}, "NodeNames": ["h200-0"]}),
    "unknown members": as_json({**GOOD, "More": [1, {"a": None}]}),
    "a member twice": as_json(GOOD)[:-1] + b',"NodeNames":["h100-1"]}',
    "null for every part of a node": whole(
        {"metadata": {"name": "n", "labels": None}, "status": {"allocatable": None}}
    ),
    "2^63 GPUs": whole(offering("9223372036854775808")),
    "10^40 GPUs": whole(offering(10**40)),
    "minus one GPU": whole(offering("-1")),
    "half a GPU": whole(offering("500m")),
    "GPUs without number": whole(offering("many")),
    "a driver of letters": whole(labelled(**{"cuda.driver-version.full": "new"})),
    "a driver of 5,000 digits": whole(labelled(**{"cuda.driver-version.full": "9" * 5000})),
    "memory of another script": whole(labelled(**{"gpu.memory": "\u0668\u0661\u0665"})),
    "memory of 5,000 digits": whole(labelled(**{"gpu.memory": "9" * 5000})),
    "replicas minus one": whole(labelled(**{"gpu.replicas": "-1"})),
    "a product of spaces": whole(labelled(**{"gpu.product": "   "})),
    "a slice of another shape": whole(
        node_document("n", "NVIDIA-A100-SXM4-80GB-MIG-odd"), pod(annotations={"mig-profile": ">=1g.10gb"})
    ),
    "a slice resource of another shape": whole(
        node_document("n", offers={"nvidia.com/mig-odd": 1}),
        pod(gpus(1, "nvidia.com/mig-odd"), annotations={"gpu-memory": "1Gi"}),
    ),
    "more free than there is": whole(node_document("h200-0", "NVIDIA-H200", offers={GPU: 1})),
}
VERBS = ("filter", "prioritize")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_malformed_call_is_a_400_with_a_clear_word(service: Service, ask: Ask, verb: str, body: bytes) -> None:
    app = create_tls_app(service, Metrics())

    answer = ask(app, "POST", f"/scheduler/{verb}", content=body)

    assert answer.status_code == 400, answer.text
    assert (answer.json()["kind"], answer.json()["code"]) == ("Status", 400)
    assert len(answer.json()["message"]) > 10
    assert ask(app, "POST", f"/scheduler/{verb}", json=GOOD).status_code == 200


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("body", ANSWERED.values(), ids=ANSWERED.keys())
def test_odd_but_well_formed_call_is_answered(service: Service, ask: Ask, verb: str, body: bytes) -> None:
    answer = ask(create_tls_app(service, Metrics()), "POST", f"/scheduler/{verb}", content=body)

    assert answer.status_code == 200, answer.text
    scores = [score["Score"] for score in answer.json()] if verb == "prioritize" else []
    assert all(type(score) is int and 0 <= score <= 10 for score in scores)


def test_one_odd_node_does_not_stop_the_others(ask: Ask, tmp_path: Path) -> None:
    """A label that does not parse counts as unknown for every verb and for explain."""
    odd = node_document("odd", "NVIDIA-A100-SXM4-80GB-MIG-odd")
    service = make_service(tmp_path, [odd, node_document("good", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb")])
    document = pod(annotations={"mig-profile": ">=1g.10gb"})

    filtered = ask(
        create_tls_app(service, Metrics()),
        "POST",
        "/scheduler/filter",
        json={"Pod": document, "NodeNames": ["odd", "good"]},
    )
    explained = ask(create_web_app(service), "POST", "/explain", json=document)

    assert (filtered.status_code, explained.status_code) == (200, 200)
    assert filtered.json()["NodeNames"] == ["good"]
    assert filtered.json()["FailedAndUnresolvableNodes"].keys() == {"odd"}


MISREAD = {
    "empty": b"",
    "a list": b"[]",
    "null": b"null",
    "not UTF-8": b'{"kind":"\xff"}',
    "another kind": as_json(node_document()),
    "10,000 levels": b'{"spec":' * 10_000,
    "spec is a string": as_json({**pod(), "spec": "x"}),
    "metadata is a list": as_json({**pod(), "metadata": []}),
    "an amount is a word": as_json(pod(gpus("many"))),
    "an amount is a boolean": as_json(pod(container({GPU: True}))),
}


@pytest.mark.parametrize("path", ["/explain", "/dry-run"])
@pytest.mark.parametrize("body", MISREAD.values(), ids=MISREAD.keys())
def test_people_are_told_what_is_wrong_with_their_pod(service: Service, ask: Ask, path: str, body: bytes) -> None:
    answer = ask(create_web_app(service), "POST", path, content=body)

    assert answer.status_code == 400, answer.text
    assert answer.json()["kind"] == "Status"
    assert len(answer.json()["message"]) > 10


@pytest.mark.parametrize("path", ["/explain", "/dry-run"])
def test_people_may_not_send_more_than_the_limit(service: Service, ask: Ask, path: str) -> None:
    answer = ask(create_web_app(service), "POST", path, content=b" " * ((8 << 20) + 1))

    assert answer.status_code == 413
    assert answer.json()["kind"] == "Status"


@pytest.mark.parametrize(
    ("size", "count"),
    [
        pytest.param(LARGE + 1, LARGE_AT_ONCE, id="large ones by their number"),
        pytest.param(LARGE - (1 << 10), SMALL_BYTES_AT_ONCE // (LARGE - (1 << 10)), id="others by their bytes"),
    ],
)
def test_bodies_at_once_are_bounded_and_later_ones_are_served(service: Service, size: int, count: int) -> None:
    """Fault 50: senders that stop just before the end of the largest review cannot fill the memory.

    See docs/reference/listeners.md#body-limits.
    """
    app = create_tls_app(service, Metrics())
    piece = b" " * size

    async def exchange() -> tuple[int, list[int], int]:
        held, freed = asyncio.Semaphore(0), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield piece
            held.release()
            await freed.wait()
            yield as_json(GOOD)

        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            first = [asyncio.create_task(client.post("/scheduler/filter", content=slow())) for _ in range(count)]
            for _ in first:
                await held.acquire()
            over = await client.post("/scheduler/filter", content=piece + as_json(GOOD))
            freed.set()
            answers = [answer.status_code for answer in await asyncio.gather(*first)]
            later = await client.post("/scheduler/filter", content=piece + as_json(GOOD))
        return over.status_code, answers, later.status_code

    assert asyncio.run(exchange()) == (503, [200] * count, 200)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8) | st.sampled_from(["1", "500m", ">=1g.10gb", "NVIDIA-A100-MIG-x", "H100"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["name", "labels", "spec", "metadata", GPU]) | st.text(max_size=5), inner),
    max_leaves=8,
)  # fmt: skip
PLACES = {
    "Pod": ["metadata", "spec"],
    "metadata": ["name", "namespace", "labels", "annotations"],
    "spec": ["containers", "initContainers", "taints", "nodeName", "resourceClaims"],
}


@given(st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_json_in_any_part_of_a_call_is_no_5xx(service: Service, ask: Ask, data: st.DataObject) -> None:
    """F125: the calls are built rather than recorded, so that deeper places are reached more often."""
    app = create_tls_app(service, Metrics())
    incoming, item = pod(annotations={"mig-profile": ">=1g.10gb", "gpu-memory": "10Gi"}), node_document("h200-0")
    for document in (incoming, item):
        part = data.draw(st.sampled_from(["metadata", "spec"]))
        document[part] = {**document[part], data.draw(st.sampled_from(PLACES[part])): data.draw(JSON)}
    body = data.draw(
        st.sampled_from([
            ("filter", {"Pod": incoming, "Nodes": {"items": [item]}}),
            ("prioritize", {"Pod": incoming, "Nodes": {"items": [item]}}),
            ("preempt", {"Pod": incoming, "NodeNameToVictims": {"h200-0": {"Pods": [item], "NumPDBViolations": 1}}}),
            ("preempt", {"Pod": pod(), "NodeNameToMetaVictims": {"h200-0": data.draw(JSON)}}),
            ("mutate", review(incoming)),
            ("validate", review(incoming, namespace=data.draw(JSON))),
        ])
    )  # fmt: skip
    path = f"/{body[0]}" if body[0] in ("mutate", "validate") else f"/scheduler/{body[0]}"

    answer = ask(app, "POST", path, content=as_json(body[1]))

    assert answer.status_code in (200, 400), answer.text
