# SPDX-License-Identifier: Apache-2.0
"""The scoring engine: order of nodes, ties, and scores that kube-scheduler can read."""

import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.placement.engine import LESSER_SHARE, breakdown, eviction_helps, judge, total
from app.placement.ranking import best_position, tie_break, wire_scores
from app.placement.scorers import image_without_known_code
from tests.builders import demand, gpus, node, pod, policies, policy

NAMES = sorted((f"n{index}" for index in range(50)), key=tie_break)
"""Node names in the order in which ties are broken: the first one wins."""
TOTALS = st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=50)


def test_names_longer_than_a_node_can_have_are_ranked_and_not_remembered() -> None:
    """F125: names longer than a node's name can be are not cached, so that the cache is bounded in bytes."""
    names = [letter * 300 for letter in "abcdef"]
    before = tie_break.cache_info().currsize

    winner = best_position(names, [1.0] * len(names))

    assert names[winner] == min(names, key=lambda name: (zlib.crc32(name.encode()), name))
    assert tie_break.cache_info().currsize == before


@given(TOTALS, st.booleans())
def test_scores_are_integers_from_0_to_10_one_a_node_and_the_winner_has_10(totals: list[float], ranked: bool) -> None:
    """F55, fault 55."""
    names = NAMES[: len(totals)]
    winner = best_position(names, totals)

    scores = wire_scores(names, totals, ranked)

    assert len(totals) == len(scores)
    assert all(type(score) is int and 0 <= score <= 10 for score in scores)
    assert scores[winner] == 10
    if ranked:
        assert all(score <= 9 for score, total in zip(scores, totals, strict=True) if total != totals[winner])


@given(st.lists(st.sampled_from([0.1, 0.4, 0.7]), min_size=1, max_size=50), st.booleans())
def test_equal_totals_get_equal_scores_but_where_one_node_must_be_known(totals: list[float], ranked: bool) -> None:
    """F55: kube-scheduler chooses among equal nodes; a pod that something is promised to must get the one we name."""
    names = NAMES[: len(totals)]

    scores, known = wire_scores(names, totals, ranked), wire_scores(names, totals, ranked, one_best=True)

    assert len(set(zip(totals, scores, strict=True))) == len(set(totals))
    assert known.index(10) == best_position(names, totals)
    assert known.count(10) == 1


@pytest.mark.parametrize(
    ("totals", "ranked", "expected"),
    [
        ([0.0, 0.5, 1.0], True, [0, 4, 10]),
        ([0.0, 0.5, 1.0], False, [0, 5, 10]),
        ([1.0, 1.0, 0.0], True, [10, 10, 0]),
        ([0.3, 0.3], True, [10, 10]),
        ([0.3, 0.3], False, [10, 10]),
        ([0.7], True, [10]),
    ],
    ids=["ranked", "proportional", "tie at the top", "all equal, ranked", "all equal, proportional", "one node"],
)
def test_totals_become_scores_as_the_interface_says(totals: list[float], ranked: bool, expected: list[int]) -> None:
    """See docs/reference/scores.md#scores-on-the-wire."""
    assert expected == wire_scores(NAMES[: len(totals)], totals, ranked)


@given(
    st.lists(
        st.tuples(st.text("abcdef", min_size=1, max_size=4), st.sampled_from([0.1, 0.5])),
        min_size=1,
        unique_by=lambda named_total: named_total[0],
    )
)
def test_ties_go_to_the_lowest_crc_of_the_name(nodes: list[tuple[str, float]]) -> None:
    names, totals = [name for name, _ in nodes], [value for _, value in nodes]
    expected = sorted(
        nodes, key=lambda named_total: (-named_total[1], zlib.crc32(named_total[0].encode()), named_total[0])
    )[0][0]

    assert expected == names[best_position(names, totals)]


@pytest.mark.parametrize("need", ["products: {allow: [H200]}", "nodeSelector: {matchLabels: {pool: train}}"])
def test_node_that_a_warning_policy_would_refuse_scores_lower(need: str) -> None:
    """F20, F38."""
    pod_demand = demand(pod(), policies(policy("w", f"action: Warn, placement: {{{need}}}")))
    suited, other = node(product="NVIDIA-H200", labels={"pool": "train"}), node()

    assert judge(pod_demand, other, recount=True) is None
    assert total(pod_demand, other) < total(pod_demand, suited)


@pytest.mark.parametrize(
    ("image", "product", "capability", "doubted"),
    [
        ("nvidia/cuda:11.6.2-base-ubuntu20.04", "NVIDIA-H100-80GB-HBM3", "9.0", True),
        ("nvidia/cuda:11.8.0-base-ubuntu20.04", "NVIDIA-H100-80GB-HBM3", "9.0", False),
        ("pytorch/pytorch:2.5.1-cuda11.8-cudnn9-runtime", "NVIDIA-B200", "10.0", True),  # a build that only tells
        ("registry.example/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime", "NVIDIA-B200", "10.0", True),
        # a preference lowers the score as a requirement does
        ("registry.example/train:1-cu118", "NVIDIA-B200", "10.0", True),
        # a capability that no row of the tables knows is unknown to old and new toolkits alike
        ("nvidia/cuda:12.4.1-base-ubuntu20.04", "NVIDIA-X", "13.0", True),
        ("nvidia/cuda:13.2.0-base-ubuntu20.04", "NVIDIA-X", "13.0", True),
        ("registry.example/train:1", "NVIDIA-B200", "10.0", False),
    ],
)
def test_gpu_newer_than_the_toolkit_is_taken_with_half_the_score(
    image: str, product: str, capability: str, doubted: bool
) -> None:
    """F35, F56: a newer GPU can run PTX, and whether the image has any is not known, so the node is not refused."""
    pod_demand = demand(pod(gpus(1, image=image)))
    major, _, minor = capability.partition(".")
    labels = {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
    made = node(product=product, driver="610.43.02", labels=labels)

    assert judge(pod_demand, made, recount=True) is None
    assert image_without_known_code(pod_demand, made.node_class) is doubted
    scores = breakdown(pod_demand, made).values()
    mean = sum(score * weight for score, weight in scores) / sum(weight for _, weight in scores)
    assert math.isclose(total(pod_demand, made), LESSER_SHARE**doubted * mean)


def test_minimum_doubts_no_gpu() -> None:
    """F35: an image with a newer toolkit meets a minimum too, so a minimum says nothing about machine code."""
    pod_demand = demand(pod(annotations={"cuda": "11.6"}))

    assert not image_without_known_code(pod_demand, node(product="NVIDIA-B200").node_class)


def test_pod_without_gpus_fits_anywhere() -> None:
    """F9, P33."""
    pod_demand = demand(pod(gpus(0), annotations={"products": "H100"}))

    assert judge(pod_demand, node(product=None, offers={}), recount=True) is None


def test_pod_that_asks_no_gpu_is_not_our_business_in_preemption() -> None:
    assert eviction_helps(demand(pod(gpus(0))), node(product=None, offers={}))
