# SPDX-License-Identifier: Apache-2.0
"""Rules of kube-scheduler's allocator one by one: pools, order, errors, limits, taints, admin access (F135, S13)."""

from fractions import Fraction
from typing import Any

import pytest

from app.dra import allocator
from app.dra.allocator import Outcome
from tests.dra.worlds import (
    DRIVER,
    MODEL_A,
    MODEL_B,
    OWN,
    TWO_SLOTS,
    allocated_document,
    body,
    claim_document,
    class_document,
    cluster,
    decide,
    device,
    devices_of,
    request,
    slice_document,
)

ONE = claim_document("c", request())


def test_pools_are_tried_by_driver_and_name_and_slices_by_name() -> None:
    facts = cluster(
        [
            slice_document("z", [device("z0")], pool={"resourceSliceCount": 2}),
            slice_document("a", [device("a0")], pool={"resourceSliceCount": 2}),
            slice_document("other", [device("o0")], driver="a.example.com"),
        ]
    )
    assert devices_of(decide(facts, claim_document("c", request(count=3)))) == ["o0", "a0", "z0"]


def test_a_pool_with_devices_that_wait_for_their_driver_is_tried_last() -> None:
    waiting = device("w0", bindingConditions=["ready"], bindingFailureConditions=["failed"])
    facts = cluster(
        [slice_document("a", [waiting], pool={"name": "a"}), slice_document("b", [device("b0")], pool={"name": "b"})]
    )
    assert devices_of(decide(facts, ONE)) == ["b0"]


def test_only_the_newest_generation_counts_and_a_pool_without_all_of_it_gives_nothing() -> None:
    old, new = (slice_document(f"s{number}", [device(f"d{number}")], pool={"generation": number}) for number in (1, 2))
    assert devices_of(decide(cluster([old, new]), ONE)) == ["d2"]
    partial = slice_document("s", [device("d")], pool={"resourceSliceCount": 2})
    assert decide(cluster([partial]), ONE).outcome is Outcome.REFUSED
    every = decide(cluster([partial]), claim_document("c", request(allocationMode="All")))
    assert (every.outcome, "still publishing" in every.text) == (Outcome.ERROR, True)


def test_a_newer_generation_that_has_nothing_for_the_node_hides_the_older_one() -> None:
    old = slice_document("old", [device("d")], pool={"resourceSliceCount": 2})
    rest = slice_document("rest", [device("e")], nodeName="other", pool={"resourceSliceCount": 2})
    new = slice_document("new", [device("d")], nodeName="other", pool={"generation": 2})
    assert decide(cluster([old, rest]), ONE).outcome is Outcome.ALLOCATED
    assert decide(cluster([old, rest, new]), ONE).outcome is Outcome.REFUSED


def test_two_devices_of_one_name_make_the_pool_invalid() -> None:
    assert decide(cluster([slice_document("s", [device("d"), device("d")])]), ONE).outcome is Outcome.REFUSED


@pytest.mark.parametrize(
    ("where", "reached"),
    [
        ({"nodeName": "n"}, True),
        ({"nodeName": "m"}, False),
        ({"allNodes": True}, True),
        (_selector := {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "rack", "operator": "In", "values": ["r1"]}]}]}}, True),
        ({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "rack", "operator": "In", "values": ["r2"]}]}]}}, False),
    ],
)  # fmt: skip
def test_a_slice_and_a_device_say_from_which_nodes_they_are_reached(where: dict[str, Any], reached: bool) -> None:
    outcome = Outcome.ALLOCATED if reached else Outcome.REFUSED
    labels = {"rack": "r1"}
    assert decide(cluster([slice_document("s", [device("d")], **where)]), ONE, labels=labels).outcome is outcome
    alone = slice_document("s", [device("d", **where)], perDeviceNodeSelection=True)
    assert decide(cluster([alone]), ONE, labels=labels).outcome is outcome


def test_counters_may_be_in_a_slice_of_their_own_and_in_the_slice_of_the_devices() -> None:
    counters = [{"name": "g", "counters": {"memory": {"value": "10Gi"}}}]
    parts = [
        device(f"d{number}", consumesCounters=[{"counterSet": "g", "counters": {"memory": {"value": "6Gi"}}}])
        for number in range(2)
    ]
    pool = {"resourceSliceCount": 2}
    apart = [slice_document("a", parts, pool=pool), slice_document("b", sharedCounters=counters, pool=pool)]
    together = [slice_document("a", parts, sharedCounters=counters)]
    for slices in (apart, together):
        assert devices_of(decide(cluster(slices), ONE)) == ["d0"]
        assert decide(cluster(slices), claim_document("c", request(count=2))).outcome is Outcome.REFUSED
        assert decide(cluster(slices, [allocated_document("x", "d1")]), ONE).outcome is Outcome.REFUSED


def test_counters_that_devices_of_other_nodes_consume_are_gone_here_too() -> None:
    counters = [{"name": "g", "counters": {"memory": {"value": "10Gi"}}}]
    use = [{"counterSet": "g", "counters": {"memory": {"value": "6Gi"}}}]
    pool = {"resourceSliceCount": 3}
    slices = [
        slice_document("a", [device("d0", consumesCounters=use)], pool=pool),
        slice_document("b", [device("d1", consumesCounters=use)], pool=pool, nodeName="m"),
        slice_document("c", sharedCounters=counters, pool=pool, allNodes=True),
    ]
    assert decide(cluster(slices), ONE).outcome is Outcome.ALLOCATED
    assert decide(cluster(slices, [allocated_document("x", "d1")]), ONE).outcome is Outcome.REFUSED


def test_taints_of_the_device_and_of_a_rule_must_be_tolerated() -> None:
    tainted = device("d", taints=[{"key": "xid", "value": "79", "effect": "NoExecute"}])
    rule = {"metadata": {"name": "r"}, "spec": {
        "deviceSelector": {"driver": DRIVER, "pool": "n", "device": "d"},
        "taint": {"key": "repair", "value": "", "effect": "NoSchedule"}}}  # fmt: skip
    facts = cluster([slice_document("s", [tainted])], rules=[rule])
    assert decide(facts, ONE).outcome is Outcome.REFUSED
    both = [{"key": "xid", "value": "79"}, {"key": "repair", "operator": "Exists"}]
    assert decide(facts, claim_document("c", request(tolerations=both))).outcome is Outcome.ALLOCATED
    assert decide(facts, claim_document("c", request(tolerations=both[:1]))).outcome is Outcome.REFUSED


def test_an_expression_that_fails_on_a_device_ends_the_search_on_every_node() -> None:
    slices = [slice_document("s", [device("d0", {"model": "a"}), device("d1", {"model": "c"})])]
    missing, unknown = f"{OWN}.absent == 1", "isURL('x')"
    verdict = decide(cluster(slices), claim_document("c", request(selectors=[missing])))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.text == f"the selector {missing} fails on device d0: no such key: absent"
    assert decide(cluster(slices), claim_document("c", request(selectors=[unknown]))).outcome is Outcome.NOT_JUDGED
    behind = decide(cluster(slices), claim_document("c", request(selectors=[MODEL_A, missing])))
    assert behind.outcome is Outcome.ERROR
    before = decide(cluster(slices), claim_document("c", request(selectors=[MODEL_B, missing])))
    assert before.outcome is Outcome.REFUSED


def test_a_class_that_is_not_there_ends_the_search() -> None:
    verdict = decide(cluster([slice_document("s", [device("d")])], classes=[class_document("other")]), ONE)
    assert (verdict.outcome, "DeviceClass any does not exist" in verdict.text) == (Outcome.ERROR, True)


def test_a_claim_is_given_32_devices_at_most_and_alternatives_are_tried_within_that() -> None:
    facts = cluster([slice_document("s", [device(f"d{number}") for number in range(40)])])
    assert decide(facts, claim_document("c", request(count=33))).outcome is Outcome.ERROR
    assert decide(facts, claim_document("c", request(count=32))).outcome is Outcome.ALLOCATED
    choices = {"name": "b", "firstAvailable": [{"name": "many", **body(count=8)}, {"name": "few", **body(count=2)}]}
    verdict = decide(facts, claim_document("c", request("a", count=30), choices))
    assert [granted.request for granted in verdict.devices].count("b/few") == 2


def test_admin_access_takes_a_device_that_others_have_and_not_twice() -> None:
    facts = cluster([slice_document("s", [device("d")])], [allocated_document("x", "d")])
    admin = request("a", adminAccess=True)
    assert decide(facts, ONE).outcome is Outcome.REFUSED
    assert devices_of(decide(facts, claim_document("c", admin))) == ["d"]
    assert decide(facts, claim_document("c", admin, request("b", adminAccess=True))).outcome is Outcome.REFUSED


def test_devices_of_different_requests_must_differ_where_the_claim_says_so() -> None:
    facts = cluster(
        [slice_document("s", [device("d0", {"numa": 0}), device("d1", {"numa": 0}), device("d2", {"numa": 1})])]
    )
    apart = [{"distinctAttribute": f"{DRIVER}/numa"}]
    verdict = decide(facts, claim_document("c", request("a"), request("b"), constraints=apart))
    assert devices_of(verdict) == ["d0", "d2"]


def test_a_requested_capacity_is_rounded_as_the_policy_says() -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "6Gi", "step": "2Gi"}}
    shared = device("d", capacity={"memory": {"value": "8Gi", "requestPolicy": policy}}, allowMultipleAllocations=True)
    facts = cluster([slice_document("s", [shared])])
    two = [request(name, capacity={"memory": "2Gi"}) for name in ("a", "b")]
    verdict = decide(facts, claim_document("c", *two))
    assert [granted.consumed for granted in verdict.devices] == [{"memory": Fraction(3 * 2**30)}] * 2
    assert decide(facts, claim_document("c", *two, request("e", capacity={"memory": "2Gi"}))).outcome is Outcome.REFUSED
    assert decide(facts, claim_document("c", *two, request("e"))).outcome is Outcome.ALLOCATED
    assert decide(facts, claim_document("c", request(capacity={"memory": "6Gi"}))).outcome is Outcome.REFUSED


def test_one_request_gets_a_shared_device_once() -> None:
    facts = cluster([slice_document("s", [device("d", allowMultipleAllocations=True)])])
    assert decide(facts, claim_document("c", request(count=2))).outcome is Outcome.REFUSED
    assert devices_of(decide(facts, claim_document("c", request("a"), request("b")))) == ["d", "d"]


def test_a_capacity_is_requested_by_the_name_that_the_device_gives_it() -> None:
    facts = cluster([slice_document("s", [device("d", capacity={"memory": {"value": "8Gi"}})])])
    assert decide(facts, claim_document("c", request(capacity={"memory": "8Gi"}))).outcome is Outcome.ALLOCATED
    for name in (f"{DRIVER}/memory", "disk"):
        assert decide(facts, claim_document("c", request(capacity={name: "1Gi"}))).outcome is Outcome.REFUSED


def test_a_search_that_takes_too_long_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "MOST_STEPS", 50)
    facts = cluster([slice_document("s", [device(f"d{number}", {"numa": number}) for number in range(20)])])
    same = [{"matchAttribute": f"{DRIVER}/numa"}]
    asked = claim_document("c", request("a", count=2), constraints=same)
    assert decide(facts, asked).outcome is Outcome.NOT_JUDGED


def test_the_beta_forms_are_read_alike() -> None:
    flat = {"name": "d", "basic": {key: value for key, value in device("d", {"slots": 2}).items() if key != "name"}}
    asked = claim_document("c", {"name": "gpu", **body(selectors=[TWO_SLOTS])})
    assert devices_of(decide(cluster([slice_document("s", [flat])]), asked)) == ["d"]
