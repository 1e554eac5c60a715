# SPDX-License-Identifier: Apache-2.0
"""The allocator gives the devices that a search of all ways in order gives, on random nodes and claims (F135)."""

from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.dra.allocator import Outcome, allocate
from app.dra.selectors import Selection
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaim
from tests.builders import node
from tests.dra.twin import slow_allocate
from tests.dra.worlds import (
    DRIVER,
    MODEL_A,
    OWN,
    TWO_SLOTS,
    allocated_document,
    body,
    claim_document,
    cluster,
    device,
    slice_document,
)

Document = dict[str, Any]
NAMES = tuple(f"d{number}" for number in range(5))
COUNTERS = {"slices": {"value": "4"}}


@st.composite
def devices(draw: st.DrawFn, name: str) -> Document:
    attributes = {"model": draw(st.sampled_from("ab")), "numa": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        attributes["slots"] = draw(st.integers(1, 3))
    more: Document = {"capacity": {"memory": {"value": str(draw(st.sampled_from([2, 4])))}}}
    if draw(st.booleans()):
        used = {"slices": {"value": str(draw(st.integers(1, 3)))}}
        more["consumesCounters"] = [{"counterSet": draw(st.sampled_from(["g0", "g1"])), "counters": used}]
    if draw(st.integers(0, 3)) == 0:
        more["taints"] = [{"key": "sick", "effect": draw(st.sampled_from(["NoSchedule", "None"]))}]
    if draw(st.integers(0, 3)) == 0:
        more["allowMultipleAllocations"] = True
    return device(name, attributes, **more)


@st.composite
def bodies(draw: st.DrawFn) -> Document:
    fields: Document = {"count": draw(st.integers(1, 2))}
    if draw(st.integers(0, 4)) == 0:
        fields = {"allocationMode": "All"}
    fields["selectors"] = draw(st.lists(st.sampled_from([MODEL_A, TWO_SLOTS, f"{OWN}.numa == 0"]), max_size=2))
    if draw(st.integers(0, 3)) == 0:
        fields["tolerations"] = [{"key": "sick", "operator": "Exists"}]
    if draw(st.integers(0, 2)) == 0:
        fields["capacity"] = {"memory": str(draw(st.sampled_from([1, 2, 3])))}
    return body(**fields)


@st.composite
def requests(draw: st.DrawFn, name: str) -> Document:
    if draw(st.integers(0, 3)):
        return {"name": name, "exactly": draw(bodies())}
    alternatives = [{"name": f"s{number}", **draw(bodies())} for number in range(draw(st.integers(1, 2)))]
    return {"name": name, "firstAvailable": alternatives}


@st.composite
def claims(draw: st.DrawFn, name: str) -> Document:
    wanted = [draw(requests(f"r{number}")) for number in range(draw(st.integers(1, 2)))]
    everything = any("All" in str(one) for one in wanted)
    constraints = []
    if not everything and draw(st.integers(0, 2)) == 0:
        constraints = [{"matchAttribute": f"{DRIVER}/{draw(st.sampled_from(['numa', 'slots']))}"}]
    return claim_document(name, *wanted, constraints=constraints)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Document], list[Document], list[Document]]:
    sets = [{"name": name, "counters": COUNTERS} for name in ("g0", "g1")]
    pool = {"resourceSliceCount": 2}
    count = draw(st.integers(1, len(NAMES)))
    slices = [
        slice_document("a", [draw(devices(name)) for name in NAMES[:count]], pool=pool),
        slice_document("b", sharedCounters=sets, pool=pool),
    ]
    taken = draw(st.sets(st.sampled_from(NAMES), max_size=2))
    holders = [allocated_document(f"of-{name}", name, **draw(shares())) for name in sorted(taken)]
    return slices, holders, [draw(claims(f"c{number}")) for number in range(draw(st.integers(1, 2)))]


def shares() -> st.SearchStrategy[Document]:
    return st.sampled_from([{}, {"shareID": "1", "consumedCapacity": {"memory": "1"}}, {"adminAccess": True}])


@settings(
    max_examples=150, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(worlds())
def test_the_first_of_all_ways_in_order_is_the_one_taken(world: Any) -> None:
    slices, holders, asked = world
    facts = cluster(slices, holders)
    wanted = [read_record(ResourceClaim, document) for document in asked]
    verdict = allocate(wanted, node("n"), facts, Selection())
    expected = slow_allocate(wanted, node("n"), facts)
    assert verdict.outcome in (Outcome.ALLOCATED, Outcome.REFUSED), verdict.text
    if expected is None:
        assert verdict.outcome is Outcome.REFUSED
    else:
        names = [(one.claim, one.request, one.device.name) for one in verdict.devices]
        assert names == [(one.claim, one.request, one.device.name) for one in expected]
