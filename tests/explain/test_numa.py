# SPDX-License-Identifier: Apache-2.0
"""A TopologyAffinityError is predicted where the kubelet's topology manager refuses, and nowhere else."""

from collections.abc import Sequence
from itertools import chain, combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cli.explain import snapshot_of
from app.explain.pending_pod import explain
from app.kube.numa_zones import (
    RESTRICTED,
    SINGLE,
    Amounts,
    NodeResourceTopology,
    NUMAZones,
    device_amounts,
    read_topology,
    topology_refusal,
)
from app.kube.pods import read_pod
from app.kube.records import read_record
from app.values.computations import finish
from app.values.errors import MalformedPod
from tests.builders import container, gpus, node_document, pod
from tests.dra.recorded_worlds import objects_of

GPU, NIC = "nvidia.com/gpu", "example.com/nic"


def masks(number: int) -> tuple[tuple[int, ...], ...]:
    """List all sets of NUMA nodes."""
    return tuple(chain.from_iterable(combinations(range(number), size) for size in range(1, number + 1)))


def admitted(zones: NUMAZones, wanted: dict[str, int]) -> tuple[int, ...] | None:
    """Merge hints as the kubelet does; return the NUMA nodes of the best one, None where the pod is refused."""
    places = masks(len(zones.total))
    hints: list[list[tuple[int, ...]]] = []
    for name, amount in wanted.items():
        able = [mask for mask in places if sum(dict(zones.total[zone]).get(name, 0) for zone in mask) >= amount]
        least = min(map(len, able), default=0)
        now = [mask for mask in places if sum(dict(zones.free[zone]).get(name, 0) for zone in mask) >= amount]
        preferred = [mask for mask in now if len(mask) == least]
        hints.append([mask for mask in preferred if zones.policy != SINGLE or len(mask) == 1])
    merged = [choice[0] for choice in product(*hints) if len(set(choice)) == 1]
    return min(merged, key=lambda mask: (len(mask), mask), default=None)


ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=3
)
Rows = list[tuple[int, int, int, int]]


def zones_of(policy: str, rows: Rows) -> NUMAZones:
    """Make zones of rows: GPUs, of them taken, NICs, of them taken."""
    total = [{GPU: gpu, NIC: nic} for gpu, _, nic, _ in rows]
    return numa_zones(policy, total, [{GPU: max(0, gpu - a), NIC: max(0, nic - b)} for gpu, a, nic, b in rows])


def numa_zones(policy: str, total: Sequence[Amounts], free: Sequence[Amounts]) -> NUMAZones:
    """Make zones of amounts by resource."""
    return NUMAZones(policy, "container", *(tuple(tuple(zone.items()) for zone in zones) for zones in (total, free)))


def asking(*containers: dict[str, int]) -> dict[str, Any]:
    """Write a pod whose containers have these limits."""
    return pod(*({**container(limits), "name": f"c{number}"} for number, limits in enumerate(containers)))


@settings(deadline=None, max_examples=300)
@given(ROWS, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=3))
def test_single_numa_node_is_judged_as_the_hints_of_the_kubelet_are_merged(
    rows: Rows, amounts: list[tuple[int, int]]
) -> None:
    """F83: container by container, each of which takes its devices from the lowest NUMA node that has them."""
    zones = zones_of(SINGLE, rows)
    wanted = [{name: count for name, count in ((GPU, gpu), (NIC, nic)) if count} for gpu, nic in amounts]
    free = [dict(zone) for zone in zones.free]
    refused = False
    for limits in filter(None, wanted):
        place = admitted(numa_zones(SINGLE, [*map(dict, zones.total)], free), limits)
        refused = place is None
        if place is None:
            break
        for name, count in limits.items():
            free[place[0]][name] -= count
    assert bool(topology_refusal(device_amounts(read_pod(asking(*wanted))), zones)) == refused


@settings(deadline=None, max_examples=300)
@given(ROWS, st.integers(1, 9))
def test_restricted_is_judged_as_the_hints_of_the_kubelet_are(rows: Rows, count: int) -> None:
    """F83."""
    zones = zones_of(RESTRICTED, rows)
    refused = admitted(zones, {GPU: count}) is None
    assert bool(topology_refusal(device_amounts(read_pod(asking({GPU: count}))), zones)) == refused


def topology(policy: str = SINGLE, scope: str = "", **more: Any) -> dict[str, Any]:
    """Write the NodeResourceTopology of node n: two NUMA nodes of four GPUs, of which two and one are free."""
    attributes = [{"name": "topologyManagerPolicy", "value": policy}]
    attributes += [{"name": "topologyManagerScope", "value": scope}] if scope else []
    gpus_free = [{"name": GPU, "capacity": "4", "allocatable": "4", "available": free} for free in ("2", "1")]
    cpus = {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "1"}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "n"},
        "attributes": attributes,
        "zones": [{"name": f"node-{n}", "type": "Node", "resources": [one, cpus]} for n, one in enumerate(gpus_free)],
        **more,
    }


@pytest.mark.parametrize(
    ("containers", "object_", "words"),
    [
        ([1], topology(), ""),
        ([2], topology(), ""),
        ([3], topology(), "container c0 wants 3 nvidia.com/gpu, and the most that are free on one NUMA node are 2"),
        ([2, 1], topology(), ""),
        ([1, 1, 1], topology(), ""),
        ([2, 2], topology(), "container c1 wants 2 nvidia.com/gpu, and the most that are free on one NUMA node are 1"),
        ([2, 1], topology(scope="pod"), "the pod wants 3 nvidia.com/gpu"),
        ([5], topology("restricted"), "container c0 wants 5"),
        ([3], topology("best-effort"), ""),
        ([3], topology("none"), ""),
        ([3], {**topology(), "attributes": [], "topologyPolicies": ["SingleNUMANodePodLevel"]}, "the pod wants 3"),
        ([3], {**topology(), "attributes": []}, "a guess"),
    ],
)
def test_explain_says_where_the_kubelet_will_refuse(containers: list[int], object_: dict[str, Any], words: str) -> None:
    """F83."""
    node = {**node_document("n", offers={GPU: 8}), "kind": "Node"}
    explanation = finish(explain(asking(*({GPU: count} for count in containers)), snapshot_of([node, object_], None)))
    assert explanation.fits
    found = [note for note in explanation.notes if "Topology" in note]
    assert [words in note for note in found] == ([True] if words else [])


@pytest.mark.parametrize(("count", "expected"), [(2, 0), (3, 1)])
def test_without_an_object_numa_nodes_of_dra_are_a_guess(count: int, expected: int) -> None:
    """F83: node-2 of the recorded world has four GPUs by the device plugin, which DRA publishes on two NUMA nodes."""
    world = objects_of("device-plugin-and-dra-on-one-node")
    explanation = finish(explain(pod(gpus(count)), snapshot_of(world, None)))
    found = [note for note in explanation.notes if "TopologyAffinityError" in note]
    assert len(found) == expected
    assert all(note.startswith("a guess, as no NodeResourceTopology says") for note in found)


def test_zones_that_are_no_numa_nodes_are_left_out() -> None:
    """F83."""
    document = topology(zones=[{"name": "socket", "type": "Socket"}, {"name": "n", "type": "Node"}])
    assert read_topology(read_record(NodeResourceTopology, document)).total == ((),)


CONSTRAINT = {"matchAttribute": "resource.kubernetes.io/numaNode"}


@pytest.mark.parametrize(
    ("count", "constraints", "expected"),
    [(1, [], ""), (2, [], "0 and 1"), (2, [CONSTRAINT], "")],
)
def test_claims_that_spread_over_numa_nodes_are_told_what_keeps_them_on_one(
    count: int, constraints: list[dict[str, str]], expected: str
) -> None:
    """F135: on node-1 of the recorded world each of two H100 is on a NUMA node of its own."""
    request = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "team-a", "name": "c"},
        "spec": {"devices": {"requests": [request], "constraints": constraints}},
    }
    document = pod(container(), resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
    document["spec"]["containers"][0]["resources"] = {"claims": [{"name": "c"}]}
    world = objects_of("device-plugin-and-dra-on-one-node")
    explanation = finish(explain(document, snapshot_of([*world, claim], None)))
    found = [note for note in explanation.notes if "NUMA" in note]
    assert [expected in note for note in found] == ([True] if expected else [])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topologyPolicies": 7}, "topologyPolicies: got an integer, wants a list"),
        ({"topologyPolicies": [{"a": 1}, None]}, "topologyPolicies[0]: got an object, wants a string"),
        ({"attributes": "single-numa-node", "zones": {"a": 1}}, "attributes: got a string, wants a list"),
        ({"zones": [{"type": "Node", "resources": "none"}, 7]}, "zones[0].resources: got a string, wants a list"),
        ({"zones": [{"type": "Node"}] * 1025}, "zones: got more, wants at most 1024"),
        ({"zones": [{"type": "Node", "resources": [{"name": GPU, "available": "a lot"}]}]}, "quantity: got 'a lot'"),
    ],
)
def test_topology_that_the_api_server_would_refuse_is_named_with_its_place(change: dict[str, Any], words: str) -> None:
    """F83."""
    topology = {"kind": "NodeResourceTopology", "metadata": {"name": "n"}, **change}

    with pytest.raises(MalformedPod) as raised:
        snapshot_of([node_document("n", offers={GPU: 8}), topology], None)

    assert str(raised.value).startswith("NodeResourceTopology n: ")
    assert words in str(raised.value)
