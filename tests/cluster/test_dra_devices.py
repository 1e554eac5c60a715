# SPDX-License-Identifier: Apache-2.0
"""GPUs that DRA partitions on demand: free shares and layouts follow slices and claims; slots decide (F60, F135)."""

from typing import Any

import msgspec
import pytest

from app.cluster.snapshot import fill
from app.cluster.watched_kinds import dra_kinds
from app.knowledge.mig_geometry import Instance
from app.placement.engine import judge
from app.world.state import State
from tests.builders import demand, gpus, knowledge, node_document, pod, state_of
from tests.cluster.dynamic import carved, claim, device_class, name_of, resource_slice

SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-4g.40gb"
BARE = node_document("n", product=None, driver=None, offers={})


def state(*objects: dict[str, Any], count: int = 1) -> State:
    """Make a state of one node with `count` H100 that are partitioned on demand, and these objects."""
    made = State(knowledge())
    slices = [resource_slice(carved(minor), f"s{minor}") for minor in range(count)]
    fill(made, [BARE, *slices, device_class(SMALL), device_class(LARGE, "four.example.com"), *objects])
    return made


def layouts(made: State) -> list[tuple[str, list[Instance]]] | None:
    gpu_layouts = made.nodes["n"].free.layouts
    return None if gpu_layouts is None else [(layout.gpu, sorted(layout.taken)) for layout in gpu_layouts]


def refusal(made: State, *requests: tuple[str, int], recount: bool = True) -> str | None:
    pod_demand = demand(pod(*(gpus(amount, name, **{"name": f"c{n}"}) for n, (name, amount) in enumerate(requests))))
    reason = judge(pod_demand, made.nodes["n"], recount)
    return reason.message if reason else None


def test_facts_of_a_carved_node_are_those_of_its_whole_gpus() -> None:
    """F135: the thirty placements of slices beside a GPU leave its product, memory and sharing known."""
    node_class = state(count=2).nodes["n"].node_class

    assert (node_class.product, node_class.memory_mib, node_class.driver) == ("h100-80gb-hbm3", 81559, (570, 124, 6))
    assert (node_class.sharing.name, node_class.mig_profile, node_class.device_variants) == ("Exclusive", None, ())
    assert "1g.10gb.me" in node_class.dra_profiles


def test_empty_gpus_are_all_free() -> None:
    made = state(count=2)

    assert made.nodes["n"].free.gpus == (1000, 1000)
    assert layouts(made) == [("gpu-0-counter-set", []), ("gpu-1-counter-set", [])]
    assert refusal(made, (LARGE, 2)) is None
    assert refusal(made, (LARGE, 3)) == f"no room for the MIG slices beside others: wants 3 {LARGE}"


def test_small_slice_at_a_bad_start_blocks_a_large_one() -> None:
    """F60, P14: with one of seven compute slices taken, a 4g slice has no place."""
    bad = state(claim("c", name_of("1g.10gb", 0)))
    good = state(claim("c", name_of("1g.10gb", 6)))

    assert layouts(bad) == [("gpu-0-counter-set", [Instance("1g.10gb", 0)])]
    assert [made.nodes["n"].free.gpus for made in (bad, good)] == [(857,), (857,)]
    assert refusal(bad, (LARGE, 1)) == f"no room for the MIG slices beside others: wants 1 {LARGE}"
    assert refusal(bad, (SMALL, 6)) is None
    assert refusal(good, (LARGE, 1), (SMALL, 2)) is None
    assert refusal(good, (LARGE, 1), (SMALL, 3)) is not None


def test_layout_is_left_to_a_live_scheduler() -> None:
    """Its DRA plugin evaluates the same counters on newer data (docs/reference/scores.md#counts)."""
    assert refusal(state(claim("c", name_of("1g.10gb", 0))), (LARGE, 1), recount=False) is None


def test_amount_beyond_all_reason_is_refused_at_once() -> None:
    assert refusal(state(), (SMALL, 10**15)) is not None


def test_gpu_given_away_whole_has_no_layout() -> None:
    made = state(claim("c", "gpu-1"), count=2)

    assert made.nodes["n"].free.gpus == (1000, 0)
    assert layouts(made) == [("gpu-0-counter-set", [])]


@pytest.mark.parametrize(
    "other",
    [
        claim("c"),
        claim("c", name_of("1g.10gb", 0), driver="gpu.example.com"),
        claim("c", name_of("1g.10gb", 0), pool="elsewhere"),
        claim("c", name_of("1g.10gb", 0), adminAccess=True),
        claim("c", "gpu-9-mig-gone"),
    ],
    ids=["not allocated", "another driver", "another node", "for administration", "a device that no slice shows"],
)
def test_claim_that_takes_nothing_here_changes_nothing(other: dict[str, Any]) -> None:
    assert layouts(state(other)) == [("gpu-0-counter-set", [])]


def test_claims_come_and_go_and_touch_their_node_alone() -> None:
    """F60: claim and slices may come in either order, and the cost of an event is independent of the fleet."""
    made = state(count=2)
    for number in range(3):
        made.put_node(node_document(f"other-{number}"))
    empty, before = made.nodes["n"].free, made.changes.generation

    made.devices.put_claim(claim("a", name_of("3g.40gb", 0, 1), name_of("1g.10gb", 4)))
    first = layouts(made)
    made.devices.put_claim(claim("b", name_of("3g.40gb", 4, 1)))
    made.devices.put_claim(claim("a", name_of("2g.20gb", 4)))
    second = layouts(made)
    made.devices.put_claim(claim("b", name_of("3g.40gb", 4, 1)))
    touched = list(made.changes.since(before) or ())
    made.devices.drop_claim("team-a/a")
    made.devices.put_claim(claim("b"))
    made.devices.drop_claim("team-a/never-there")

    assert first == [("gpu-0-counter-set", [("1g.10gb", 4)]), ("gpu-1-counter-set", [("3g.40gb", 0)])]
    assert second == [("gpu-0-counter-set", [("2g.20gb", 4)]), ("gpu-1-counter-set", [("3g.40gb", 4)])]
    assert touched == ["n", "n", "n"]
    assert made.nodes["n"].free == empty


def test_claim_known_before_the_slices_counts_once_they_come() -> None:
    made = state_of([claim("a", name_of("3g.40gb", 0)), BARE, device_class(SMALL)])

    made.devices.put_slice(resource_slice(carved()))

    assert layouts(made) == [("gpu-0-counter-set", [("3g.40gb", 0)])]


def test_claims_are_decoded_with_what_they_were_given() -> None:
    """Only the fields that count are decoded (docs/reference/measurements.md#decoding)."""
    made = state()
    kind = {watched.name: watched for watched in dra_kinds(made, "v1")}["resourceclaims"]

    decoded = msgspec.json.decode(msgspec.json.encode(claim("a", name_of("3g.40gb", 0))), type=kind.shape)
    kind.put("team-a/a", "u", kind.read(decoded))
    taken = layouts(made)
    kind.drop("team-a/a", "u")

    assert taken == [("gpu-0-counter-set", [("3g.40gb", 0)])]
    assert layouts(made) == [("gpu-0-counter-set", [])]


def test_counters_in_a_slice_of_their_own_make_no_difference() -> None:
    """The driver writes them so from Kubernetes 1.35 on, and beside the devices before."""
    counters = [{"name": "gpu-0-counter-set", "counters": {"memory-slice-0": {"value": "1"}}}]

    assert state(resource_slice([], "counters", sharedCounters=counters)).nodes["n"] == state().nodes["n"]


def test_older_generation_of_a_pool_no_longer_holds() -> None:
    """While the driver writes a pool anew, its old and new slices exist together (resource/v1 ResourcePool)."""
    made = state_of([BARE, device_class(SMALL), resource_slice([*carved(0), *carved(1)], "old")])

    made.devices.put_slice(resource_slice(carved(0), "new", generation=2))

    assert made.nodes["n"].free.gpus == (1000,)


def test_beta_shape_is_carved_alike() -> None:
    """resource.k8s.io/v1beta1 wraps all fields of a device but the name in `basic`."""
    wrapped = [{"name": gpu_device.pop("name"), "basic": gpu_device} for gpu_device in carved()]
    made = state_of([BARE, device_class(SMALL), device_class(LARGE, "four.example.com"), resource_slice(wrapped, "s0")])

    assert made.nodes["n"] == state().nodes["n"]


def other_product(product: str) -> list[dict[str, Any]]:
    name = {"productName": {"string": product}}
    return [{**gpu_device, "attributes": {**gpu_device["attributes"], **name}} for gpu_device in carved()]


def static_slices() -> list[dict[str, Any]]:
    """Write two slices that were made beforehand and consume no counters."""
    names = (name_of("3g.40gb", 0), name_of("3g.40gb", 4))
    return [
        {k: v for k, v in gpu_device.items() if k != "consumesCounters"}
        for gpu_device in carved()
        if gpu_device["name"] in names
    ]


@pytest.mark.parametrize(
    ("devices", "milli", "after"),
    [
        (other_product("NVIDIA H900"), (1000,), (510,)),
        (other_product("NVIDIA H200"), (1000,), (510,)),
        (static_slices(), (1000,), (500,)),
        ([*static_slices(), *carved(1)], (1000, 1000), (1000, 500)),
    ],
    ids=["unknown product", "placements unlike the tables'", "fixed slices", "fixed slices beside a carved GPU"],
)
def test_unknown_and_fixed_layouts_are_not_judged(
    devices: list[dict[str, Any]], milli: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """F60: where slices are fixed, counts are exact and left to kube-scheduler."""
    made = state_of([BARE, device_class(SMALL), resource_slice(devices)])
    before = made.nodes["n"].free

    made.devices.put_claim(claim("c", name_of("3g.40gb", 0)))

    assert (before.gpus, before.layouts) == (milli, None)
    assert refusal(made, (SMALL, 8)) is None
    assert made.nodes["n"].free.gpus == after


def test_device_plugin_node_has_no_layouts_and_no_free_shares() -> None:
    """It has neither layouts nor free shares. See docs/reference/listeners.md#state."""
    made = state_of([node_document("n", offers={SMALL: 7})])

    assert (made.nodes["n"].free.gpus, made.nodes["n"].free.layouts) == (None, None)
