# SPDX-License-Identifier: Apache-2.0
"""F135: what becomes of each device, and the sums by kind."""

from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.verbs import app
from app.demo.sample_fleets import demo_fleet
from app.dra.cluster_devices import ClusterDevices
from app.explain.gpu_inventory import device_rows, devices_of_node
from tests.builders import node, state_of
from tests.dra.worlds import allocated_document, class_document, cluster, device, slice_document

TAINT = {"key": "xid", "value": "79", "effect": "NoSchedule"}
COUNTERS = [{"name": "g", "counters": {"memory": {"value": "10"}}}]
USES: dict[str, Any] = {"consumesCounters": [{"counterSet": "g", "counters": {"memory": {"value": "6"}}}]}
COUNTER_SLICE = slice_document("counters", sharedCounters=COUNTERS, pool={"resourceSliceCount": 2})
PARTS = slice_document("parts", [device("a", **USES), device("b", **USES)], pool={"resourceSliceCount": 2})
HELD = allocated_document("x", "a")
HELD["status"]["reservedFor"] = [{"resource": "pods", "name": "train-0", "uid": "1"}]


@pytest.mark.parametrize(
    ("facts", "states"),
    [
        pytest.param(cluster([slice_document("s", [device("a")])]), [("a", "free", "")], id="free"),
        pytest.param(cluster([slice_document("s", [device("a")])], [HELD]), [("a", "held", "pod default/train-0")],
                     id="held"),
        pytest.param(cluster([slice_document("s", [device("a", taints=[TAINT])])]),
                     [("a", "tainted", "xid=79:NoSchedule")], id="tainted"),
        pytest.param(cluster([COUNTER_SLICE, PARTS], [HELD]),
                     [("a", "held", "pod default/train-0"), ("b", "blocked", "too little is left of memory of g")],
                     id="a part of a GPU that is given away"),
        pytest.param(cluster([slice_document("s", [device("a"), device("a")])]),
                     [("a", "not usable", "it has two devices a")] * 2, id="an invalid pool"),
    ],
)  # fmt: skip
def test_state_of_a_device_and_why(facts: ClusterDevices, states: list[tuple[str, str, str]]) -> None:
    assert [(one.name, one.state, one.because) for one in devices_of_node(node("n"), facts)] == states


def test_device_that_all_nodes_can_reach_counts_once() -> None:
    facts = cluster([slice_document("s", [device("a")], allNodes=True)], classes=[class_document()])
    (row,) = device_rows({name: node(name) for name in ("n", "m")}, facts)
    assert (row.devices, row.free) == (1, 1)


def test_kinds_of_the_sample_fleet_without_labels() -> None:
    """F89, F135."""
    state = state_of(demo_fleet("gpucluster"))
    rows = device_rows(state.nodes, state.devices.dra.current)
    assert [(row.kind, row.devices, row.free, row.held, row.tainted, row.holders) for row in rows] == [
        ("1g.10gb", 7, 7, 0, 0, ()),
        ("gpu", 24, 14, 9, 1, (("team-a", 8), ("team-b", 1))),
        ("gpu", 4, 4, 0, 0, ()),
    ]


def test_command_shows_who_holds_devices() -> None:
    assert "team-a 8, team-b 1" in CliRunner().invoke(app, ["inventory", "--demo-fleet", "gpucluster"]).output
    assert "devices that pods claim" not in CliRunner().invoke(app, ["inventory", "--demo-fleet", "mixed"]).output
