# SPDX-License-Identifier: Apache-2.0
"""Pods that share a template are read once, with the very result of reading each."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.wire import LARGEST_KEPT_BYTES, TEMPLATES_KEPT, PodTemplates, decode_asked_pod
from app.kube.pod_limits import LONGEST_NAME
from app.values.errors import OversizedPod, WireError
from tests.builders import container, gpus, pod


def as_json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def with_token(suffix: str, **metadata: Any) -> dict[str, Any]:
    """Write a pod as the API server completes it: with the volume of its service account's token."""
    volume = f"kube-api-access-{suffix}"
    mounts = [{"name": volume, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]
    made = pod(gpus(1, volumeMounts=mounts), volumes=[{"name": volume, "projected": {"sources": []}}])
    made["metadata"] |= metadata
    return made


PARTS: st.SearchStrategy[Any] = st.sampled_from(
    [None, {}, [], "x", 7, {"a": "b"}, {"gpu-usher.io/gpu-memory": "4Gi"}, {"a": 1}]
)
NAMES = st.sampled_from([None, "", "p-1", "p-2", "ü", 7, "x" * (LONGEST_NAME + 1)])
PODS = st.builds(
    lambda metadata, spec, status: {"metadata": metadata, "spec": spec, "status": status},
    st.none()
    | st.just([])
    | st.fixed_dictionaries(
        {},
        optional={
            "name": NAMES, "generateName": NAMES, "namespace": NAMES, "uid": NAMES, "labels": PARTS,
            "annotations": PARTS, "managedFields": st.just(["\udc80"]) | st.just([{"time": "now"}]),
        },
    ),
    PARTS
    | st.sampled_from([pod(), pod(gpus(2)), with_token("abcde"), with_token("fghij"), pod(container({}))]).map(
        lambda made: made["spec"]
    ),
    st.none() | st.just("x") | st.fixed_dictionaries({}, optional={"nominatedNodeName": NAMES, "phase": NAMES}),
)  # fmt: skip


def outcome(read: Any, body: bytes) -> Any:
    """Return what a function reads from a body, or its error."""
    try:
        return read(body)
    except (WireError, OversizedPod) as error:
        return type(error), str(error)


@given(st.lists(PODS, max_size=12), st.booleans())
@settings(max_examples=100, deadline=None)
def test_pods_are_read_as_each_alone(documents: list[dict[str, Any]], escaped: bool) -> None:
    """P24: templates are shared only where the results are equal, and bad pods are refused with the same words."""
    asked = PodTemplates()
    for document in documents:
        body = json.dumps(document, ensure_ascii=escaped, separators=(",", ":")).encode("utf-8", "surrogatepass")

        assert outcome(asked.read, body) == outcome(decode_asked_pod, body)


def test_pods_of_one_deployment_are_read_once() -> None:
    """P24: their names, UIDs, times and token volumes differ."""
    asked = PodTemplates()
    bodies = [
        as_json(with_token(suffix, name=f"web-{suffix}", uid=suffix, creationTimestamp=suffix))
        for suffix in ("abcde", "fghij", "klmno")
    ]

    read = [asked.read(body) for body in bodies]

    assert [made.uid for made, _ in read] == ["abcde", "fghij", "klmno"]
    assert read[0][0].containers is read[1][0].containers is read[2][0].containers
    assert read == [decode_asked_pod(body) for body in bodies]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"metadata":' * 5_000], ids=["nothing", "list", "cut", "deep"])
def test_body_that_is_no_pod_is_refused_as_before(body: bytes) -> None:
    """F125."""
    assert outcome(PodTemplates().read, body) == outcome(decode_asked_pod, body)


def test_templates_are_bounded() -> None:
    """F125: in number, and each in size."""
    asked = PodTemplates()
    for number in range(TEMPLATES_KEPT + 9):
        asked.read(as_json(pod(gpus(number))))
    before = list(asked._by_template)
    asked.read(as_json(pod(annotations={"note": "x" * LARGEST_KEPT_BYTES})))

    assert (len(before), list(asked._by_template)) == (TEMPLATES_KEPT, before)
