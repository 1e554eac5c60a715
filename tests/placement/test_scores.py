# SPDX-License-Identifier: Apache-2.0
"""Scores: each scorer stays within [0, 1] on any node, what each prefers, and exact integers on the wire."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.nodes.model import FreeResources, Node
from app.placement.engine import LESSER_SHARE, breakdown, total
from app.placement.ranking import wire_scores
from app.placement.scorers import (
    PENALTIES,
    SCORERS,
    driver_headroom,
    interconnect,
    nvlink_domain,
    packing,
    product_preference,
    spreading,
)
from app.policy.compiled import PolicySet
from app.policy.demand import Demand
from tests.builders import demand, gpus, make_service, node, node_document, pod, policies, policy
from tests.finished import prioritize
from tests.placement.test_engine import NAMES

GPU = "nvidia.com/gpu"
TORCH = "nvcr.io/nvidia/pytorch:24.05-py3"
"""This image has CUDA 12.4.1, which runs natively from driver 550.54.15 on and by minor-version compatibility from
525.60.13 on (app/knowledge/cuda_driver.yaml)."""
PREFERRING = policies(policy("p", "placement: {products: {prefer: [H200, H100, A10]}, cuda: {fromImage: true}}"))

OFFERS = st.dictionaries(st.sampled_from([GPU, "nvidia.com/mig-1g.10gb"]), st.integers(0, 2**40), max_size=2)
FREE = st.dictionaries(st.sampled_from([GPU, "nvidia.com/mig-1g.10gb"]), st.integers(-(2**40), 2**40), max_size=2)
NODES = st.builds(
    lambda free, **made: replace(node(**made), free=FreeResources(free)),
    FREE,
    product=st.sampled_from([None, "Tesla-T4", "NVIDIA-H200", "NVIDIA-A10-SHARED", "NVIDIA-B100-X"]),
    driver=st.sampled_from([None, "450.51", "535.104.05", "550.54.15", "999.1", "not a driver"]),
    offers=OFFERS,
)
DEMANDS = st.builds(
    lambda amount, resource, image, chosen: demand(pod(gpus(amount, resource, image=image)), chosen),
    st.integers(0, 2**40),
    st.sampled_from([GPU, "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"]),
    st.sampled_from(["train:1", TORCH, "nvidia/cuda:13.0.0-base-ubuntu24.04"]),
    st.sampled_from([None, PREFERRING]),
)


def packed(amount: int, used: int) -> tuple[Demand, Node]:
    """Make a demand and a node of eight GPUs."""
    return demand(pod(gpus(amount))), node(used={GPU: used})


@given(DEMANDS, NODES)
@settings(max_examples=100, deadline=None)
def test_every_scorer_is_finite_and_within_0_and_1(pod_demand: Demand, made: Node) -> None:
    """F55, F56, fault 55: also where a node's free count and its allocatable were read at different times.

    See docs/reference/scores.md#totals.
    """
    scores = {name.value: scorer(pod_demand, made) for name, scorer in SCORERS}

    assert {name: score for name, score in scores.items() if not (math.isfinite(score) and 0 <= score <= 1)} == {}
    assert scores == {name.value: scorer(pod_demand, made) for name, scorer in SCORERS}
    weighed = breakdown(pod_demand, made).values()
    mean = sum(score * weight for score, weight in weighed) / sum(weight for _, weight in weighed)
    doubts = sum(doubt(pod_demand, made.node_class) for doubt in PENALTIES)
    assert math.isclose(LESSER_SHARE**doubts * mean, total(pod_demand, made))


@pytest.mark.parametrize(
    ("amount", "product", "expected"),
    [
        (1, "NVIDIA-H100-80GB-HBM3", 0.0),
        (1, "NVIDIA-L4", 1.0),
        (4, "NVIDIA-H100-80GB-HBM3", 1.0),
        (4, "NVIDIA-L4", 0.0),
        (4, "NVIDIA-XYZ-9000", 0.5),
    ],
)
def test_gpus_joined_all_to_all_are_for_pods_of_several(amount: int, product: str, expected: float) -> None:
    """F54."""
    assert interconnect(demand(pod(gpus(amount))), node(product=product)) == expected


def test_pods_of_a_group_are_drawn_into_its_nvlink_domain() -> None:
    """F54: nodes of one gpu.clique share NVLink; a node without the label is in no domain."""
    near_group = replace(demand(pod()), group_cliques=frozenset({"rack-1.0"}))
    nodes = [
        node(labels={"nvidia.com/gpu.clique": clique} if clique else {}) for clique in ("rack-1.0", "rack-2.0", "")
    ]

    assert [nvlink_domain(near_group, candidate) for candidate in nodes] == [1.0, 0.0, 0.0]
    assert [nvlink_domain(demand(pod()), candidate) for candidate in nodes] == [0.0, 0.0, 0.0]


def test_second_pod_of_a_job_follows_the_first_before_the_watch_shows_it(tmp_path: Path) -> None:
    """F54: on three racks of equal nodes, all pods of a Job go to the rack that its first pod was sent to."""
    racks = [
        node_document(f"r{rack}-{index}", labels={"nvidia.com/gpu.clique": f"rack-{rack}.0"})
        for rack in range(3)
        for index in range(3)
    ]
    scores = "placement: {scores: [{name: NVLinkDomain, weight: 5}, {name: Spreading}]}"
    service = make_service(tmp_path, racks, policies(policy("p", scores)), recount="false")
    names = [rack_node["metadata"]["name"] for rack_node in racks]

    def seat(uid: str, job: str) -> str:
        made = pod(gpus(8))
        made["metadata"] |= {"uid": uid, "labels": {"batch.kubernetes.io/job-name": job}}
        priorities = json.loads(prioritize(json.dumps({"Pod": made, "NodeNames": names}).encode(), service).body)
        winner = str(next(priority["Host"] for priority in priorities if priority["Score"] == 10))
        names.remove(winner)  # the scheduler counts its GPUs as taken
        return winner.partition("-")[0]

    assert len({seat(f"a{index}", "a") for index in range(3)}) == 1
    assert len({seat(f"b{index}", "b") for index in range(3)}) == 1


@pytest.mark.parametrize(
    ("amount", "used", "expected"),
    [
        pytest.param(1, 0, 0.125, id="first GPU of eight"),
        pytest.param(8, 0, 1.0, id="fills an empty node"),
        pytest.param(1, 7, 1.0, id="takes the last GPU"),
        pytest.param(2, 4, 0.75, id="in between"),
    ],
)
def test_packing_is_the_share_in_use_with_the_pod_there_and_spreading_the_rest(
    amount: int, used: int, expected: float
) -> None:
    pod_demand, made = packed(amount, used)

    assert expected == packing(pod_demand, made)
    assert 1 - expected == spreading(pod_demand, made)


def test_products_are_preferred_in_the_order_given_and_unknown_ones_last() -> None:
    """F33."""
    pod_demand = demand(pod(), PREFERRING)
    made = [node(product=product) for product in ("NVIDIA-H200", "NVIDIA-H100-80GB-HBM3", "NVIDIA-A10", "Tesla-T4")]

    scores = [product_preference(pod_demand, candidate) for candidate in [*made, node(product=None)]]

    assert sorted(scores, reverse=True) == scores
    assert scores[0] == 1.0
    assert scores[-2:] == [0.0, 0.0]
    assert len(set(scores[:3])) == 3


def test_native_driver_is_preferred_to_minor_version_to_too_old() -> None:
    """The score prefers a better driver than the pod needs (docs/reference/compatibility.md#cuda)."""
    pod_demand = demand(pod(gpus(1, image=TORCH)))

    native, minor, old = (
        driver_headroom(pod_demand, node(driver=driver)) for driver in ("550.54.15", "525.60.13", "450.51")
    )

    assert native > minor > old
    assert native == driver_headroom(pod_demand, node(driver="580.95.05")) == 1.0


@pytest.mark.parametrize(
    ("spec", "better"),
    [
        pytest.param("placement: {scores: [{name: Packing, weight: 1}]}", "busy", id="packing"),
        pytest.param("placement: {scores: [{name: Spreading, weight: 1}]}", "idle", id="spreading"),
        pytest.param(
            "placement: {scores: [{name: Packing, weight: 1}, {name: Spreading, weight: 3}]}", "idle", id="by weight"
        ),
    ],
)
def test_policy_chooses_how_nodes_are_weighed(spec: str, better: str) -> None:
    """F50."""
    chosen: PolicySet = policies(policy("p", spec))
    totals = {name: total(demand(pod(), chosen), node(used={GPU: used})) for name, used in (("idle", 0), ("busy", 6))}

    assert better == max(totals, key=totals.__getitem__)


def floor_of_nine(value: float, totals: list[float]) -> int:
    """Compute floor(9 x min-max) exactly, as docs/reference/scores.md#scores-on-the-wire writes it."""
    low, high = Fraction(min(totals)), Fraction(max(totals))
    return int(9 * (Fraction(value) - low) / (high - low))


@given(st.lists(st.integers(0, 256).map(lambda step: step / 256), min_size=2, max_size=40))
def test_ranked_scores_are_the_formula_of_the_paper(totals: list[float]) -> None:
    """The totals lie on a grid, so that their differences are exact."""
    scores = wire_scores(NAMES[: len(totals)], totals, ranked=True)

    assert scores == [10 if value == max(totals) else floor_of_nine(value, totals) for value in totals]


@pytest.mark.parametrize("ranked", [True, False], ids=["ranked", "proportional"])
@pytest.mark.parametrize("least", [5e-324, 1e-300, 2**-53])
def test_totals_that_hardly_differ_are_no_crash(least: float, ranked: bool) -> None:
    """F55: any totals within [0, 1] become integers from 0 to 10."""
    scores: list[Any] = wire_scores(NAMES[:2], [least, 0.0], ranked)

    assert scores == [10, 0]
