# SPDX-License-Identifier: Apache-2.0
"""What a claim gets of a device that several claims may use, by the policy field `sharing` and by memory (F135).

The world is recorded: node-1 has two H100 of four shares each, node-2 an A100 that is shared by memory, and MIG slices
that are.
"""

from typing import Any

import pytest

from app.admission.reviewed_pod import ReviewContext
from app.dra.counters import share_of
from app.kube.devices import ResourceSlice
from app.kube.pods import read_pod
from app.kube.records import read_record
from app.placement.engine import class_for_demand, judge_class
from app.policy.compiled import PolicySet
from app.values.quantity import parse_quantity
from app.world.world import world_of
from tests.builders import policies
from tests.dra.recorded_worlds import state_of
from tests.dra.worlds import body, claim_document, device, slice_document

WORLD = "consumable-shares-4-and-memory"
GPU, MIG = "gpu.nvidia.com", "mig.nvidia.com"


def refusals(world: str, annotations: dict[str, str], **request: Any) -> dict[str, str]:
    """Say why filter refuses each node to a pod with a claim; "" for a node that it accepts."""
    claim = claim_document("c", {"name": "r", "exactly": body(**request)})
    claim["kind"], claim["apiVersion"] = "ResourceClaim", "resource.k8s.io/v1"
    state = state_of(world, claim)
    pod = read_pod(
        {
            "metadata": {
                "name": "p",
                "namespace": "default",
                "annotations": {f"gpu-usher.io/{key}": value for key, value in annotations.items()},
            },
            "spec": {
                "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
                "containers": [{"name": "main", "image": "train:1", "resources": {"claims": [{"name": "c"}]}}],
            },
        }
    )
    set_of: PolicySet = policies()
    demand = ReviewContext(world_of(state, set_of)).ruling(pod, {}).demand
    found = {name: judge_class(demand, class_for_demand(demand, node)) for name, node in state.nodes.items()}
    return {name: refusal.code.name if refusal else "" for name, refusal in sorted(found.items())}


NOT = "SharingNotAllowed"


@pytest.mark.parametrize(
    ("wish", "request_fields", "expected"),
    [
        pytest.param("Exclusive", {}, {"node-1": NOT, "node-2": ""}, id="by default a quarter, or all memory"),
        pytest.param("Shared", {}, {"node-1": "", "node-2": NOT}, id="the same for a share"),
        pytest.param("Exclusive", {"capacity": {"shares": "4"}}, {"node-1": ""}, id="all four shares"),
        pytest.param("Exclusive", {"capacity": {"shares": "3"}}, {"node-1": NOT}, id="three shares"),
        pytest.param("Shared", {"capacity": {"shares": "3"}}, {"node-1": ""}, id="three shares, shared"),
        pytest.param("Shared", {"capacity": {"memory": "30Gi"}}, {"node-1": "", "node-2": ""}, id="30 Gi"),
        pytest.param("Exclusive", {"capacity": {"memory": "80Gi"}}, {"node-1": NOT, "node-2": ""}, id="all memory"),
        pytest.param("Any", {"capacity": {"memory": "30Gi"}}, {"node-1": "", "node-2": ""}, id="no wish"),
    ],
)
def test_sharing_is_judged_by_what_the_claim_leaves_of_a_gpu(
    wish: str, request_fields: dict[str, Any], expected: dict[str, str]
) -> None:
    """F135."""
    found = refusals(WORLD, {"sharing": wish}, deviceClassName=GPU, **request_fields)
    assert expected.items() <= found.items()


@pytest.mark.parametrize("capacity", [None, {"memory": "5Gi"}])
@pytest.mark.parametrize(("wish", "expected"), [("Exclusive", ""), ("Shared", NOT)])
def test_a_claim_has_a_slice_alone_also_if_it_requests_a_part_of_its_memory(
    wish: str, expected: str, capacity: dict[str, str] | None
) -> None:
    """F135: the driver gives a slice's multiprocessors no policy, so that the first claim consumes all of them."""
    more: dict[str, Any] = {"capacity": capacity} if capacity else {}
    assert refusals(WORLD, {"sharing": wish}, deviceClassName=MIG, **more)["node-2"] == expected


@pytest.mark.parametrize("world", ["h100-and-a100-static-mig", "gb200-and-gb10", "dynamic-mig-h100-a100"])
def test_gpus_that_are_not_shared_are_whole(world: str) -> None:
    """F135."""
    assert set(refusals(world, {"sharing": "Exclusive"}, deviceClassName=GPU).values()) == {""}
    assert set(refusals(world, {"sharing": "Shared"}, deviceClassName=GPU).values()) == {NOT}


@pytest.mark.parametrize(
    ("memory", "capacity", "expected"),
    [
        ("40Gi", {"memory": "30Gi"}, "GPUMemoryTooSmall"),
        ("40Gi", {"memory": "60Gi"}, ""),
        ("40Gi", {}, ""),
        ("100Gi", {}, "GPUMemoryTooSmall"),
    ],
)
def test_memory_of_a_share_is_what_the_claim_requests(memory: str, capacity: dict[str, str], expected: str) -> None:
    """F135: on node-2 a claim without a request has all memory; node-1 bounds the memory of a share by nothing."""
    more: dict[str, Any] = {"capacity": capacity} if capacity else {}
    found = refusals(WORLD, {"gpu-memory": memory}, deviceClassName=GPU, **more)
    assert found["node-2"] == expected


POLICIES = {
    "range": {"default": "1", "validRange": {"min": "1", "step": "1", "max": "4"}},
    "values": {"default": "2", "validValues": ["2", "4"]},
    "free": {"default": "0", "validRange": {"min": "0"}},
    "default only": {"default": "4"},
    "none": None,
}


@pytest.mark.parametrize(
    ("policy", "requested", "alone"),
    [
        ("range", None, False),
        ("range", "4", True),
        ("range", "3", False),
        ("values", None, False),
        ("values", "3", True),
        ("free", None, False),
        ("free", "4", False),
        ("default only", None, True),
        ("default only", "1", False),
        ("none", None, True),
        ("none", "3", False),
    ],
)
def test_a_claim_has_a_device_alone_if_no_other_fits_beside_it(policy: str, requested: str | None, alone: bool) -> None:
    """F135."""
    shown = {"value": "4", **({"requestPolicy": POLICIES[policy]} if POLICIES[policy] else {})}
    document = slice_document("s", [device("d", capacity={"units": shown}, allowMultipleAllocations=True)])
    (one,) = read_record(ResourceSlice, document).devices
    amounts = {"units": parse_quantity(requested)} if requested else None
    assert (share_of(one, amounts) is None) == alone
