# SPDX-License-Identifier: Apache-2.0
"""MIG layouts of nodes with DRA: why another one is not shown is said of each node as its slices are."""

from typing import Any

import pytest

from app.demo.sample_fleets import demo_fleet
from app.whatif.mig_relayout import CARVED, PUBLISHED, parse_layout, relayout
from tests.builders import knowledge, node_document, state_of
from tests.cluster.dynamic import carved, counter_set, resource_slice


def problems(objects: list[dict[str, Any]], *chosen: str) -> dict[str, str]:
    state = state_of(objects)
    result = relayout(state.nodes, chosen, [], parse_layout("all-1g.10gb"), knowledge())
    return {node.node: node.problem for node in result.nodes}


@pytest.mark.parametrize("fleet", ["dra", "gpucluster"])
def test_layout_of_slices_without_counters_is_what_they_publish(fleet: str) -> None:
    """F64: also where no DeviceClass serves a resource, as for the slices of mig-0 in gpucluster."""
    h100, mig = {"dra": ("dra-h100-0", "dra-mig-0"), "gpucluster": ("h100-0", "mig-0")}[fleet]

    assert problems(list(demo_fleet(fleet)), h100, mig) == {h100: PUBLISHED, mig: PUBLISHED}


def test_gpus_with_shared_counters_are_carved_on_demand() -> None:
    """F64, F135: the whole GPU and each placement consume the counters of the GPU (KEP-4815)."""
    node = node_document("n", offers={}, labels={})
    made = resource_slice(carved())
    made["spec"]["sharedCounters"] = [counter_set()]

    assert problems([node, made], "n") == {"n": CARVED}


def test_node_of_a_device_plugin_has_the_layout() -> None:
    """F64: what is said of DRA does not keep the nodes of a device plugin from their layout."""
    assert problems([node_document("n", "NVIDIA-H100-80GB-HBM3")], "n") == {"n": ""}
