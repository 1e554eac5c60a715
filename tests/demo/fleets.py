# SPDX-License-Identifier: Apache-2.0
"""Sample fleets as states and as lists of nodes."""

from functools import cache
from typing import Any

from app.demo.sample_fleets import demo_fleet
from app.world.state import State
from tests.builders import state_of


@cache
def state(name: str) -> State:
    """Put the objects of a fleet into a state."""
    return state_of(demo_fleet(name))


def nodes(name: str) -> list[dict[str, Any]]:
    """List the Nodes of a fleet."""
    return [document for document in demo_fleet(name) if document["kind"] == "Node"]
