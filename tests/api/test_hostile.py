# SPDX-License-Identifier: Apache-2.0
"""Malformed and hostile bodies get a 400 or 413 with a clear message, never a 500, and the next request is served."""

import json
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.api.bodies import ADMISSION_LIMIT, EXTENDER_LIMIT
from tests.api.client import post, reviewed
from tests.builders import CONTRACT, gpus, pod, review

GOOD = review(pod())
ARGS = {"Pod": pod(), "NodeNames": ["h100-1"]}
VICTIMS = {"Pod": pod(), "NodeNameToMetaVictims": {"h100-1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}}


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def with_pod(**spec: Any) -> bytes:
    return as_json(review({**pod(), "spec": spec}))


def with_container(**fields: Any) -> bytes:
    return with_pod(containers=[{"name": "main", **fields}])


def with_amount(amount: Any) -> bytes:
    return with_container(resources={"limits": {"nvidia.com/gpu": amount}})


REVIEWS = {
    "empty": b"",
    "white space": b"  \n ",
    "null": b"null",
    "a list": b"[]",
    "a number": b"17",
    "truncated": as_json(GOOD)[:-40],
    "trailing garbage": as_json(GOOD) + b"}",
    "not UTF-8": as_json(GOOD).replace(b"main", b"ma\xff\xfe"),
    "byte order mark": b"\xef\xbb\xbf" + as_json(GOOD),
    "null bytes": b"\0" * 64,
    "HTML": b"<html>hello</html>",
    "YAML": b"apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\n",
    "NaN": as_json(GOOD).replace(b'"team-a"', b"NaN", 1),
    "infinity": as_json(GOOD).replace(b'"team-a"', b"Infinity", 1),
    "lone surrogate": as_json(GOOD).replace(b'"main"', b'"\\ud800"'),
    "100,000 levels": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "1,500 levels of lists": b"[" * 1500 + b"]" * 1500,
    "deep below the pod": as_json(GOOD).replace(b'"main"', b"[" * 5000 + b"]" * 5000),
    "5,000 digits": as_json(GOOD).replace(b'"main"', b"1" * 5000),
    "wrong kind": as_json({**GOOD, "kind": "TokenReview"}),
    "kind is a number": as_json({**GOOD, "kind": 1}),
    "v1beta1": as_json({**GOOD, "apiVersion": "admission.k8s.io/v1beta1"}),
    "apiVersion is a list": as_json({**GOOD, "apiVersion": []}),
    "no request": as_json({key: value for key, value in GOOD.items() if key != "request"}),
    "request is a string": as_json({**GOOD, "request": "x"}),
    "no uid": as_json({**GOOD, "request": {**GOOD["request"], "uid": None}}),
    "empty uid": as_json({**GOOD, "request": {**GOOD["request"], "uid": ""}}),
    "uid is a number": as_json({**GOOD, "request": {**GOOD["request"], "uid": 5}}),
    "object is a list": as_json(review(None, object=[])),
    "namespace is a number": as_json(review(pod(), namespace=3)),
    "resource is a string": as_json(review(pod(), resource="pods")),
    "spec is a list": as_json(review({**pod(), "spec": []})),
    "metadata is a string": as_json(review({**pod(), "metadata": "x"})),
    "labels are a list": as_json(review({**pod(), "metadata": {"labels": ["a"]}})),
    "label value is a number": as_json(review({**pod(), "metadata": {"labels": {"a": 1}}})),
    "annotation value is an object": as_json(review({**pod(), "metadata": {"annotations": {"gpu-usher.io/cuda": {}}}})),
    "containers are an object": with_pod(containers={}),
    "container is a string": with_pod(containers=["main"]),
    "container is null": with_pod(containers=[None]),
    "init containers are a number": with_pod(initContainers=3),
    "resources are a list": with_container(resources=[]),
    "limits are a string": with_container(resources={"limits": "all"}),
    "amount is true": with_amount(True),
    "amount is a list": with_amount([1]),
    "amount is a word": with_amount("many"),
    "amount is empty": with_amount(""),
    "image is a list": with_container(image=["a"], resources={"limits": {"nvidia.com/gpu": "1"}}),
    "env is an object": with_container(env={"A": "b"}),
    "env value is a number": with_container(env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": 12}]),
    "tolerations are an object": with_pod(containers=[gpus(1)], tolerations={}),
    "affinity is a list": with_pod(containers=[gpus(1)], affinity=[]),
    "runtimeClassName is a number": with_pod(containers=[gpus(1)], runtimeClassName=1),
    "schedulerName is an object": with_pod(containers=[gpus(1)], schedulerName={}),
}
CALLS = {
    "empty": b"",
    "a list": b"[1,2]",
    "truncated": as_json(ARGS)[:-9],
    "not UTF-8": as_json(ARGS).replace(b"h100-1", b"h100-\xff"),
    "100,000 levels": b'{"Pod":' * 100_000,
    "no Pod": as_json({"NodeNames": ["a"]}),
    "Pod is a string": as_json({**ARGS, "Pod": "x"}),
    "Pod is a list": as_json({**ARGS, "Pod": []}),
    "Pod without sense": as_json({**ARGS, "Pod": {"metadata": 1, "spec": 2}}),
    "Pod with a wrong amount": as_json({**ARGS, "Pod": pod(gpus("many"))}),
    "unknown spelling": as_json({"pod": pod(), "node_names": ["a"]}),
}
NODE_CALLS = {
    "neither names nor nodes": as_json({"Pod": pod(), "NodeNames": None, "Nodes": None}),
    "names are a string": as_json({**ARGS, "NodeNames": "h100-1"}),
    "a name is a number": as_json({**ARGS, "NodeNames": ["h100-1", 7]}),
    "nodes are a list": as_json({"Pod": pod(), "Nodes": []}),
    "a node is a number": as_json({"Pod": pod(), "Nodes": {"items": [3]}}),
    "a node without name": as_json({"Pod": pod(), "Nodes": {"items": [{"metadata": {}}]}}),
    "node labels are a list": as_json({"Pod": pod(), "Nodes": {"items": [{"metadata": {"name": "n", "labels": []}}]}}),
    "taints are a string": as_json(
        {"Pod": pod(), "Nodes": {"items": [{"metadata": {"name": "n"}, "spec": {"taints": "x"}}]}}
    ),
}
PREEMPT_CALLS = {
    "victims are a list": as_json({**VICTIMS, "NodeNameToMetaVictims": []}),
    "a node's victims are a string": as_json({**VICTIMS, "NodeNameToMetaVictims": {"h100-1": "x"}}),
    "a victim without uid": as_json({"Pod": pod(), "NodeNameToVictims": {"h100-1": {"Pods": [{"metadata": {}}]}}}),
    "a victim is a number": as_json({"Pod": pod(), "NodeNameToVictims": {"h100-1": {"Pods": [4]}}}),
    "pods are an object": as_json({"Pod": pod(), "NodeNameToVictims": {"h100-1": {"Pods": {}}}}),
}
CASES = [
    *(("/mutate", name, body) for name, body in REVIEWS.items()),
    *(("/validate", name, body) for name, body in REVIEWS.items()),
    *(
        (f"/scheduler/{verb}", name, body)
        for verb in ("filter", "prioritize", "preempt")
        for name, body in CALLS.items()
    ),
    *((f"/scheduler/{verb}", name, body) for verb in ("filter", "prioritize") for name, body in NODE_CALLS.items()),
    *(("/scheduler/preempt", name, body) for name, body in PREEMPT_CALLS.items()),
]


@pytest.mark.parametrize(
    ("path", "body"), [pytest.param(path, body, id=f"{path} {name}") for path, name, body in CASES]
)
def test_malformed_body_is_a_400_with_a_clear_word_and_the_next_is_served(path: str, body: bytes) -> None:
    """F1, F103, F125, P20, faults 27, 28, 30, 31."""
    answer = post(path, body)

    assert answer.status_code == 400, answer.text
    assert answer.json()["kind"] == "Status"
    assert answer.json()["code"] == 400
    assert len(answer.json()["message"]) > 10
    assert reviewed(GOOD)["allowed"]


@pytest.mark.parametrize(
    "amount",
    ["9" * 39, "1e999", "1E18Ei", "0." + "0" * 38 + "1", "9223372036854775808"],
    ids=["39 digits", "1e999", "Ei", "tiny", "2^63"],
)
def test_huge_and_tiny_amounts_are_judged_not_computed_to_death(amount: str) -> None:
    assert post("/mutate", with_amount(amount)).status_code in (200, 400)


async def chunks(size: int) -> AsyncIterator[bytes]:
    """Send this many bytes in pieces, without a Content-Length."""
    for _ in range(0, size, 1 << 20):
        yield b" " * (1 << 20)


@pytest.mark.parametrize(
    ("path", "limit"),
    [("/mutate", ADMISSION_LIMIT), ("/validate", ADMISSION_LIMIT), ("/scheduler/filter", EXTENDER_LIMIT)],
)
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in chunks"])
def test_oversized_body_is_a_413_never_a_silent_cut(path: str, limit: int, announced: bool) -> None:
    """F103, fault 22."""
    answer = post(path, b" " * (limit + 1) if announced else chunks(limit + (1 << 20)))

    assert answer.status_code == 413
    assert f"wants at most {limit >> 20} MiB" in answer.json()["message"].replace("that", f"{limit >> 20} MiB")
    assert reviewed(GOOD)["allowed"]


RECORDED = sorted(CONTRACT.glob("*.request.json"))
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1.5, 10**30, "", "x", "\u2603", [], {}, [None], {"": None}, [[]], "9" * 50]
)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_payload_changed_anywhere_never_breaks_the_server(data: st.DataObject) -> None:
    """F125: any value at any place of a recorded payload gives a decision or a clear 4xx."""
    path = data.draw(st.sampled_from(RECORDED))
    document = json.loads(path.read_text("utf-8"))
    for _ in range(data.draw(st.integers(1, 3))):
        _change(document, data)
    admission = path.name.startswith("admission-")
    route = data.draw(
        st.sampled_from(
            ["/mutate", "/validate"]
            if admission
            else ["/scheduler/filter", "/scheduler/prioritize", "/scheduler/preempt"]
        )
    )

    answer = post(route, as_json(document))

    assert answer.status_code in (200, 400), answer.text


def _change(document: Any, data: st.DataObject) -> None:
    """Walk down a random way, and put a drawn value there."""
    place = document
    while True:
        keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys[:50]))
        following = place[key]
        if not isinstance(following, dict | list) or not data.draw(st.booleans()):
            place[key] = deepcopy(data.draw(VALUES))
            return
        place = following
