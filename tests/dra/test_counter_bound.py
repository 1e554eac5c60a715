# SPDX-License-Identifier: Apache-2.0
"""Claims for more than eight H100 with slices on demand have: judged by sums of counters, without a search."""

import copy
from typing import Any

import pytest

from app.dra.allocator import NodeAllocation, Outcome, allocate
from app.dra.selectors import Selection
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaim
from app.world.state import State
from tests.dra.recorded_worlds import objects_of, state_of

PROFILE = "device.attributes['gpu.nvidia.com'].profile == '{}'"


def renamed(value: Any, old: str, new: str) -> Any:
    """Copy a document with one GPU's name in place of another's."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [renamed(item, old, new) for item in value]
    return {key: renamed(item, old, new) for key, item in value.items()} if isinstance(value, dict) else value


def eight_h100() -> State:
    """Make node-1 of the recorded world with eight GPUs of its kind."""
    slices = [
        item
        for item in objects_of("dynamic-mig-h100-a100")
        if item["kind"] == "ResourceSlice" and item["spec"].get("nodeName") == "node-1"
    ]
    counters, first = slices[0], slices[1]
    sets = [renamed(counters["spec"]["sharedCounters"][0], "gpu-0", f"gpu-{index}") for index in range(8)]
    documents = [{**counters, "spec": {**counters["spec"], "sharedCounters": sets}}]
    for index in range(8):
        document = renamed(copy.deepcopy(first), "gpu-0", f"gpu-{index}")
        document["metadata"]["name"] = f"0000{index + 1}-devices"
        documents.append(document)
    state = state_of("dynamic-mig-h100-a100")
    for item in slices:
        state.devices.drop_slice(item["metadata"]["name"])
    for document in documents:
        document["spec"]["pool"] = {**document["spec"]["pool"], "resourceSliceCount": 9}
        state.devices.put_slice(document)
    return state


def decide(*requests: tuple[str, int]) -> NodeAllocation:
    """Allocate GPUs (profile "") and slices on the node of eight H100."""
    documents = []
    for index, (profile, count) in enumerate(requests):
        selectors = [{"cel": {"expression": PROFILE.format(profile)}}] if profile else []
        device_class = "mig.nvidia.com" if profile else "gpu.nvidia.com"
        exactly = {"deviceClassName": device_class, "count": count, "selectors": selectors}
        documents.append({"name": f"r{index}", "exactly": exactly})
    claims = [
        read_record(ResourceClaim, {"metadata": {"name": f"c{number}"}, "spec": {"devices": {"requests": [document]}}})
        for number, document in enumerate(documents)
    ]
    state = eight_h100()
    return allocate(claims, state.nodes["node-1"], state.devices.dra.current, Selection())


@pytest.mark.parametrize(
    ("requests", "outcome"),
    [
        ((("", 8),), Outcome.ALLOCATED),
        ((("", 9),), Outcome.REFUSED),
        ((("", 8), ("1g.10gb", 1)), Outcome.REFUSED),
        ((("1g.10gb", 30), ("1g.10gb", 26)), Outcome.ALLOCATED),
        ((("1g.10gb", 30), ("1g.10gb", 27)), Outcome.REFUSED),
        ((("", 4), ("1g.10gb", 29)), Outcome.REFUSED),
        ((("3g.40gb", 17),), Outcome.REFUSED),
        ((("", 1), ("3g.40gb", 15)), Outcome.REFUSED),
        ((("7g.80gb", 8), ("1g.20gb", 1)), Outcome.REFUSED),
    ],
    ids=str,
)
def test_claims_beyond_the_counters_of_a_node_are_refused_and_not_left_unjudged(
    requests: tuple[tuple[str, int], ...], outcome: Outcome
) -> None:
    """F135, S13."""
    assert outcome is decide(*requests).outcome
