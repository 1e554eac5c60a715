# SPDX-License-Identifier: Apache-2.0
"""A node of the watch is read anew only where something that is read of it changed."""

from typing import Any

import pytest

from app.cluster.watched_kinds import nodes_kind
from app.kube.objects import NodeObject
from app.kube.records import read_record
from app.world.state import State
from tests.builders import knowledge, node_document


def changed(**amounts: Any) -> dict[str, Any]:
    """Write a node that offers these amounts."""
    document = node_document()
    return {**document, "status": {**document["status"], "allocatable": amounts}}


def test_heartbeat_gives_the_same_node_and_a_change_another() -> None:
    read = nodes_kind(State(knowledge())).read
    first, again = (read(read_record(NodeObject, changed(cpu="4"))) for _ in range(2))

    assert first is again
    assert read(read_record(NodeObject, changed(cpu="5"))).allocatable == {"cpu": "5"}


@pytest.mark.parametrize("amount", [10**30, -(10**30), 1e300], ids=str)
def test_amount_of_any_size_is_read(amount: float) -> None:
    """An API server writes amounts as texts; whatever else came, the watch must go on."""
    read = nodes_kind(State(knowledge())).read

    assert read(read_record(NodeObject, changed(cpu=amount))).allocatable == {"cpu": amount}
