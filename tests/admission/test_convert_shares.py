# SPDX-License-Identifier: Apache-2.0
"""A pod that asks for a share of a GPU claims a share, where a driver publishes GPUs that claims can share (S13).

The world is recorded: node-1 has two H100 of four shares each, node-2 an A100 that is shared by memory, and MIG slices.
"""

from typing import Any

import pytest

from app.admission.claim_conversion import Conversion, convert
from app.dra.allocator import allocate
from app.dra.cluster_devices import AllocatedDevices
from app.dra.selectors import Selection
from app.kube.claimed_devices import NO_SHARES
from app.kube.pods import read_pod
from app.kube.records import read_record
from app.kube.resource_claims import Allocation, ResourceClaimTemplate, result_of
from tests.admission.converted import CLASSES
from tests.builders import demand, gpus, knowledge, pod
from tests.dra.recorded_worlds import WORLDS, state_of

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
WORLD = "consumable-shares-4-and-memory"
SHARING_WORLDS = {WORLD}


def converted(document: dict[str, Any], world: str = WORLD) -> Any:
    """Convert a pod for a recorded world; the reasons where there is no equivalent."""
    shares = state_of(world).devices.shares()
    outcome = convert(read_pod(document), demand(document), knowledge(), shares)
    return outcome if isinstance(outcome, Conversion) else outcome.reasons


def pods_that_fit(conversion: Conversion, node: str) -> int:
    """Count the pods with the claim that get devices on a node, one after the other."""
    state = state_of(WORLD)
    facts = state.devices.dra.current
    allocated = AllocatedDevices()
    facts = type(facts)(facts.pools, facts.classes, facts.taint_rules, allocated, facts.claims, facts.templates)
    template = read_record(ResourceClaimTemplate, conversion.template).claim
    for number in range(20):
        verdict = allocate([template], state.nodes[node], facts, Selection())
        if not verdict.devices:
            return number
        results = tuple(result_of(one.request, one.device.id, one.consumed) for one in verdict.devices)
        allocated.put(template.allocated(f"default/{number}", Allocation.of(results)))
    raise AssertionError("more than 20 pods fit")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(pod(gpus(1, SHARED)), {"node-1": 8, "node-2": 0}, id="a share by its name"),
        pytest.param(pod(annotations={"sharing": "Shared"}), {"node-1": 8, "node-2": 0}, id="by annotation"),
        pytest.param(pod(gpus(2, SHARED)), {"node-1": 4, "node-2": 0}, id="two shares"),
        pytest.param(
            pod(gpus(1, SHARED), annotations={"gpu-memory": "20Gi"}), {"node-1": 8, "node-2": 4}, id="a quarter"
        ),
        pytest.param(
            pod(gpus(1, SHARED), annotations={"gpu-memory": "30Gi"}), {"node-1": 4, "node-2": 2}, id="30 of 80 GiB"
        ),
        pytest.param(pod(annotations={"sharing": "Exclusive"}), {"node-1": 0, "node-2": 0}, id="a whole GPU"),
    ],
)
def test_pods_with_shares_get_their_part_of_the_gpus_and_no_more(
    document: dict[str, Any], expected: dict[str, int]
) -> None:
    """S13, F135: shares of time-slicing do not count memory; a claim with memory never takes more than there is."""
    conversion = converted(document)
    assert {node: pods_that_fit(conversion, node) for node in expected} == expected


@pytest.mark.parametrize("world", WORLDS)
def test_a_share_is_asked_for_only_where_a_driver_publishes_shares(world: str) -> None:
    """S13."""
    outcome = converted(pod(gpus(1, SHARED)), world)
    if world in SHARING_WORLDS:
        assert outcome.is_share
    else:
        assert outcome == ("a share of a GPU: no DRA driver here publishes GPUs that claims can share",)


def test_a_share_of_a_slice_has_no_equivalent() -> None:
    """S13: NVIDIA's driver gives a slice's multiprocessors no policy, and the first claim takes all of them."""
    reasons = converted(pod(gpus(1, "nvidia.com/mig-1g.10gb.shared")))
    assert reasons == ("a share of a MIG slice: a claim takes a whole slice",)


def test_pods_without_a_wish_claim_as_before_whatever_is_published() -> None:
    """S13: their templates keep their names when a driver begins to share GPUs."""
    document = pod(gpus(1))
    before = convert(read_pod(document), demand(document), knowledge(), NO_SHARES)
    assert converted(document) == before
    assert CLASSES
