# SPDX-License-Identifier: Apache-2.0
"""Events as objects: their names and fields within the API server's limits; tests/e2e has it take them."""

import pytest

from app.events.planning import EventWrite, Statement, event_document, event_name, series_patch
from app.kube.pods import ObjectReference

SAID = Statement("DriverTooOld", "words", "5 nodes: driver too old.")


def write(name: str = "p", statement: Statement = SAID) -> EventWrite:
    return EventWrite(ObjectReference("v1", "Pod", "team", name, f"uid-{name}"), statement)


def test_event_names_its_object_its_cause_and_who_says_it() -> None:
    """F139."""
    document = event_document(write(), "replica-1", "2026-11-24T00:00:00.000000Z")

    assert document["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "p", "uid": "uid-p"}  # fmt: skip
    assert (document["reason"], document["note"], document["type"]) == (SAID.reason, SAID.note, "Warning")
    assert document["reportingController"] == "gpu-usher"
    assert "series" not in document


def test_same_words_on_the_same_object_have_the_same_name() -> None:
    """F139: so that a replica that takes over finds the Event that stands already."""
    assert event_name(write()) == event_name(write(statement=Statement("DriverTooOld", "words", "other counts")))
    assert event_name(write()) != event_name(write("q"))
    assert event_name(write()) != event_name(write(statement=Statement("DriverTooOld", "other", SAID.note)))


@pytest.mark.parametrize("name", ["p" * 253, "a" * 235 + "-.b" + "c" * 15])
def test_name_is_a_dns_subdomain_however_long_that_of_the_pod_is(name: str) -> None:
    """F139."""
    made = event_name(write(name))

    assert len(made) <= 253
    assert "-." not in made
    assert ".." not in made


def test_patch_changes_the_series_alone() -> None:
    """F139."""
    assert series_patch(3, "t") == {"series": {"count": 3, "lastObservedTime": "t"}}
