# SPDX-License-Identifier: Apache-2.0
"""Declared objects of Kubernetes: nulls, bounds, and the words for what does not match."""

from typing import Annotated, Any

import msgspec
import pytest

from app.kube.records import MOST_NULLS, KubeObject, Record, mismatch, read_record
from app.values.errors import MalformedPod, OversizedPod


class Port(Record, frozen=True):
    host_port: int = 0
    host_name: Annotated[str, msgspec.Meta(max_length=8)] = ""


class Spec(Record, frozen=True):
    node_name: str = ""
    ports: Annotated[tuple[Port, ...], msgspec.Meta(max_length=MOST_NULLS + 1)] = ()
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=2)] = msgspec.field(default_factory=dict)
    size: int | str | None = None


class Thing(KubeObject, frozen=True):
    spec: Spec = Spec()


def thing(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": spec}


def test_null_field_counts_as_absent_wherever_it_stands() -> None:
    written = {"metadata": {"name": "a", "uid": None}, "spec": {"nodeName": None, "ports": [{}, {"hostPort": None}]}}

    assert read_record(Thing, written) == read_record(Thing, thing(ports=[{}, {}]))
    assert read_record(Thing, {"metadata": {}, "spec": None}) == read_record(Thing, {"metadata": {}})


WRONG = {
    "type": (thing(nodeName=5), "spec.nodeName: got an integer, wants a string"),
    "type in a list": (
        thing(ports=[{}, {"hostPort": True}]),
        "spec.ports[1].hostPort: got a boolean, wants an integer",
    ),
    "one of several types": (thing(size=[]), "spec.size: got a list, wants an integer or a string"),
    "null in a map": (thing(labels={"a": None}), "spec.labels[a]: got null, wants a string"),
    "null in a list": (thing(ports=[None]), "spec.ports[0]: got null, wants an object"),
    "no object": (5, "got an integer, wants an object"),
    "no metadata": ({}, "metadata: got none, wants one"),
}


@pytest.mark.parametrize(("document", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_match_is_said_by_path_got_and_wants(document: object, words: str) -> None:
    with pytest.raises(MalformedPod) as error:
        read_record(Thing, document)

    assert str(error.value) == words


LARGE = {
    "list": (thing(ports=[{}] * (MOST_NULLS + 2)), "spec.ports: got more, wants at most 65"),
    "map": (thing(labels={"a": "", "b": "", "c": ""}), "spec.labels: got more, wants at most 2 entries"),
    "text": (thing(ports=[{"hostName": "too long: "}]), "spec.ports[0].hostName: got more, wants at most 8 characters"),
    "nulls": (thing(ports=[{"hostPort": None}] * (MOST_NULLS + 1)), "got more than 64 fields that are null"),
}  # fmt: skip


@pytest.mark.parametrize(("document", "words"), LARGE.values(), ids=LARGE.keys())
def test_more_than_is_read_is_refused_as_oversized(document: object, words: str) -> None:
    with pytest.raises(OversizedPod) as error:
        read_record(Thing, document)

    assert str(error.value) == words


def test_message_of_a_declaration_follows_the_path() -> None:
    error = msgspec.ValidationError("capacity[x]: got no amount - at `$.spec.devices[1]`")

    assert str(mismatch(error)) == "spec.devices[1].capacity[x]: got no amount"
