# SPDX-License-Identifier: Apache-2.0
"""F135: nodes whose devices are alike are judged once, and get what each would get by itself."""

import random
from functools import partial

import pytest

from app.dra.cluster_devices import AllocatedDevices, ClusterDevices, PoolIndex
from app.dra.pod_claims import PodClaims
from app.dra.pod_judge import AlikeNodes, ClaimJudge, reads_of
from app.dra.selectors import Selection
from app.kube.device_classes import DeviceClass, DeviceTaintRule
from app.kube.devices import ResourceSlice
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaim
from tests.builders import node
from tests.dra.worlds import (
    DRIVER,
    Document,
    allocated_document,
    claim_document,
    class_document,
    device,
    request,
    slice_document,
)

MODEL = f"device.attributes['{DRIVER}'].model == 'a'"
MEMORY = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('20Gi')) >= 0"
TAINT = {"key": "xid", "value": "79", "effect": "NoSchedule"}
NAMES = [f"n{index}" for index in range(60)]


def drawn_cluster(chance: random.Random) -> ClusterDevices:
    """Draw nodes of up to three devices of few kinds; some are held, some are tainted, each has a UUID of its own."""
    slices, claims = [], []
    for name in NAMES:
        devices: list[Document] = []
        for number in range(chance.randint(0, 3)):
            body: Document = {"capacity": {"memory": {"value": chance.choice(["10Gi", "40Gi"])}}}
            if chance.random() < 0.2:
                body["taints"] = [TAINT]
            attributes = {"model": chance.choice("ab"), "uuid": f"{name}-{number}", "numa": chance.randint(0, 1)}
            devices.append(device(f"d{number}", attributes, **body))
            if chance.random() < 0.3:
                held = allocated_document(f"{name}-{number}", f"d{number}")
                held["status"]["allocation"]["devices"]["results"][0]["pool"] = name
                claims.append(read_record(ResourceClaim, held))
        slices.append(read_record(ResourceSlice, slice_document(name, devices, nodeName=name, pool={"name": name})))
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"pool": chance.choice(NAMES)}, "taint": TAINT}}
    classes = {"any": read_record(DeviceClass, class_document("any", f"device.driver == '{DRIVER}'"))}
    return ClusterDevices(PoolIndex(slices), classes, (read_record(DeviceTaintRule, rule),), AllocatedDevices(claims))


REQUESTS = [
    (request(selectors=[MODEL]),),
    (request(count=2),),
    (request(count=2, selectors=[MEMORY]),),
    (request(allocationMode="All"),),
    (request("one", selectors=[MODEL]), request("two", selectors=[MEMORY])),
]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("requests", REQUESTS, ids=range(len(REQUESTS)))
@pytest.mark.parametrize("constraint", [None, "numa", "uuid"])
def test_answer_for_nodes_that_are_alike_is_that_of_each_by_itself(
    seed: int, requests: tuple[Document, ...], constraint: str | None
) -> None:
    facts = drawn_cluster(random.Random(seed))
    constraints = [{"matchAttribute": f"{DRIVER}/{constraint}"}] if constraint else []
    claim = read_record(ResourceClaim, claim_document("c", *requests, constraints=constraints))
    together = ClaimJudge(PodClaims((claim,)), facts, Selection())

    for name in NAMES:
        alone = ClaimJudge(PodClaims((claim,)), facts, Selection())
        assert together.refusal(node(name)) == alone.refusal(node(name)), name
    keys = {together.alike.key(node(name)) for name in NAMES}
    assert (len(keys) == len(NAMES)) is False or constraint == "uuid"


def test_two_pools_are_not_taken_for_one_pool_of_more_devices() -> None:
    """F135: seen with nodes of three devices in one pool, and of two in two pools."""
    one = slice_document("one", [device("a"), device("b"), device("c")], nodeName="one")
    pools = [
        slice_document(f"two-{index}", [device("a")], nodeName="two", pool={"name": f"two-{index}"}) for index in (0, 1)
    ]
    facts = ClusterDevices(pools=PoolIndex(map(partial(read_record, ResourceSlice), (one, *pools))))
    keys = AlikeNodes(facts, frozenset())

    assert len(facts.pools.pools(node("two"))) == 2
    assert keys.key(node("one")) != keys.key(node("two"))


def test_devices_that_share_counters_or_capacity_are_not_alike_to_any() -> None:
    counters = [{"name": "g", "counters": {"memory": {"value": "10"}}}]
    shared = [
        slice_document("s", [device("d", allowMultipleAllocations=True)]),
        slice_document("s", sharedCounters=counters),
    ]
    for document in shared:
        facts = ClusterDevices(PoolIndex([read_record(ResourceSlice, document)]))
        assert AlikeNodes(facts, frozenset()).key(node("n")) is None


def test_facts_that_are_read_are_those_of_selectors_classes_and_constraints() -> None:
    facts = drawn_cluster(random.Random(0))
    constraints = [{"matchAttribute": f"{DRIVER}/numa"}]
    claim = read_record(ResourceClaim, claim_document("c", request(selectors=[MODEL]), constraints=constraints))
    reads = reads_of([claim], facts)

    assert {str(read) for read in reads or ()} == {"device.driver", f"{DRIVER}/model", f"{DRIVER}/numa"}
    capacity = read_record(ResourceClaim, claim_document("c", request(capacity={"memory": "1Gi"})))
    assert reads_of([capacity], facts) is None
